"""Two readings of Mnemonist's settings under which its gain might arise: a hardly trained reconstructor, and more rows.

remanence run ablations.mnemonist_readings --scale small

Table 2 gives the reconstructor "200 steps". Taken literally it is hardly trained, and fewer inputs may help it: the
paper's RecoNN of run 2 is worse than the mean image. And the superparameters may be the rows of all layers, of which
the paper's figures show those of the first.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from remanence.attacks import Mnemonist
from remanence.experiments import Budget, Claim, Experiment, Measure, Outcome, Scale, Trial
from remanence_recipes.ablations.mnemonist import GAIN, RANDOM, RECONN, SELECTED, WINS, Gains
from remanence_recipes.curves import proportion
from remanence_recipes.mnemonist2023.figures import error_by_initialisation, mean_error
from remanence_recipes.mnemonist2023.setting import RECONSTRUCTORS, TUNED, initialisations, null_errors, victims

PUBLIC: Mapping[Scale, int] = {"smoke": 200, "small": 1500, "full": 10_000}
RUNS: Mapping[Scale, int] = {"smoke": 2, "small": 3, "full": 8}
STEPS = 200  # of table 2
STEPWISE, ALL_ROWS = "reconstructor of 200 steps", "rows of all layers"


def mnemonist_readings(scale: Scale) -> Sequence[Experiment]:
    """The gain of Mnemonist-RecoNN with a reconstructor trained for 200 steps, and with rows of all layers."""
    trained = RECONSTRUCTORS[scale]
    usual = Mnemonist.paper()
    fitting = replace(usual.reconstructor.fitting, epochs=1, batch_size=max(1, PUBLIC[scale] // STEPS))
    readings = {
        STEPWISE: replace(usual, reconstructor=replace(usual.reconstructor, fitting=fitting)),
        ALL_ROWS: Mnemonist(reconstructor=trained, reset_to="initial", layers="all"),
    }
    claims = tuple(
        Claim(quantity=quantity.format(SELECTED), higher_is_better=True, printed=printed, where=where)
        for quantity, printed, where in ((GAIN, 0.145, "table 3, mean of four"), (WINS, 1.0, "table 3, four of four"))
    )
    return [
        Experiment(
            label=label,
            about=f"RecoNN and Mnemonist-RecoNN over initialisations, {label}; as many rows are sampled too.",
            victims=victims(scale, public=PUBLIC[scale]),
            evaluations=(partial(_compared, attack, RUNS[scale]),),
            claims=claims,
            budget=Budget(shadows=(PUBLIC[scale], 40_000), victims=(RUNS[scale], 4)) if scale == "full" else None,
        )
        for label, attack in readings.items()
    ]


def _compared(attack: Mnemonist, count: int, trial: Trial) -> Outcome:
    """Evaluation: errors of RecoNN, of the selected rows and of as many sampled ones, on the same targets."""
    errors: dict[str, list[Tensor]] = {RECONN: [], SELECTED: [], RANDOM: []}
    selected = list[int]()
    for study in initialisations(trial, attack.reconstructor, count):
        importance = attack.importance(study.victims.bank, seed=trial.seed)
        rows = importance.helpful
        sampled = study.random_rows(len(rows), total=importance.masks.shape[1])
        errors[RECONN].append(study.error(study.all_rows))
        for name, chosen in ((SELECTED, rows), (RANDOM, sampled)):
            fitted = attack.select(study.victims.bank, importance, chosen, seed=trial.seed)
            errors[name].append(study.error_of(study.run(fitted)))
        selected.append(len(rows))
    found = Gains(errors={name: torch.stack(each).double().cpu() for name, each in errors.items()}, seed=trial.seed)
    nulls, total = null_errors(trial.victims.split), importance.masks.shape[1]
    meaning = (
        "mean over the initialisations of 1 - error of Mnemonist-RecoNN / error of RecoNN, on the same targets; it "
        f"selects {min(selected)} to {max(selected)} of {total} rows, and chance is the gain of as many sampled rows"
    )
    wins = "fraction of the initialisations in which that is positive; chance is the same for sampled rows"
    random = found.gain(RANDOM, RECONN).value
    return Outcome(
        measures=(
            *(mean_error(name, each.mean(1), nulls, trial.seed) for name, each in found.errors.items()),
            Measure.from_interval(GAIN.format(SELECTED), found.gain(SELECTED, RECONN), meaning=meaning, chance=random),
            proportion(
                WINS.format(SELECTED),
                found.wins(SELECTED, RECONN),
                meaning=wins,
                chance=float(found.wins(RANDOM, RECONN).double().mean()),
            ),
        ),
        figures=(error_by_initialisation(errors, RECONN, nulls, trial.seed),),
        caveats=(TUNED,),
    )
