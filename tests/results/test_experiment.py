"""One pipeline: experiments share victims by holding them, sweep along axes, and repeat over seeds."""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from refusals import refused
from tiny_experiments import Guess, cut, made_data, tiny_experiment, tiny_measurement, tiny_victims

from remanence.experiments import (
    Experiment,
    Measure,
    Measurement,
    Outcome,
    Reconstructed,
    Trial,
    prepare,
    run_experiment,
    sweep,
)
from remanence.experiments.evaluations import Accuracy
from remanence.experiments.run import Job, run_job
from remanence.metrics import MSE, identity
from remanence.models import initial_params
from remanence.training import SGD, Training


def counted(calls: list[int], seed: int) -> Any:
    calls.append(seed)
    return cut(made_data, seed)


def job(folder: Any, **changes: Any) -> Job:
    fields = {"recipe": "tiny", "scale": "small", "seed": 3, "device": "cpu", "folder": folder, "command": "-"}
    return Job(**(fields | changes))


def test_victims_that_experiments_hold_are_prepared_once_and_equal_ones_are_not(tmp_path: Any) -> None:
    calls: list[int] = []
    one = tiny_experiment("one", split=partial(counted, calls))
    two = replace(one, label="two", attack=Guess(grey=0.4))
    three = replace(one.with_victims(per_victim=None), label="three")
    list(run_job([one, two, three], job(tmp_path)))
    assert calls == [3, 3]


def test_several_evaluations_see_one_trial() -> None:
    def extra(trial: Trial) -> Outcome:
        name = f"{len(trial.victims.cases)} releases"
        return Outcome(measures=(Measure(name=name, value=1.0, meaning="."),), verdict="Said.")

    scored = Reconstructed(matching=identity, metrics=(MSE,))
    completed = run_experiment(
        tiny_experiment(evaluations=(scored, extra, Accuracy()), attack=Guess(records=10), per_victim=10)
    )
    assert completed.finding.scores.means["mse"].value > 0
    assert [measure.name for measure in completed.outcome.measures] == ["2 releases", "test accuracy"]
    assert completed.outcome.verdict == "Said."
    with refused("conflict", "evaluations"):
        run_experiment(tiny_experiment(evaluations=(scored, scored)))


def test_the_accuracy_is_that_of_the_weights_asked_for() -> None:
    victims = tiny_victims()
    values = {}
    for weights in ("initial", "final"):
        experiment = Experiment(label="a", victims=victims, evaluations=(Accuracy(weights=weights),))
        (measure,) = run_experiment(experiment, seed=1).outcome.measures
        assert measure.chance == pytest.approx(0.5, abs=0.1)
        values[weights] = measure.value
    assert (values["final"] or 0.0) > 0.9 > (values["initial"] or 0.0)


def test_repeats_give_means_with_intervals_over_seeds() -> None:
    seeds: list[int] = []

    def value(seed: int, _: torch.device) -> Outcome:
        seeds.append(seed)
        return Outcome(measures=(Measure(name="v", value=float(len(seeds)), meaning="A count.", chance=0.5),))

    (measure,) = run_experiment(tiny_measurement(run=value, repeats=3), seed=5).outcome.measures
    assert seeds[0] == 5
    assert len(set(seeds)) == 3
    assert (measure.value, measure.chance) == (2.0, 0.5)
    assert measure.low < 2.0
    assert "3 repeats" in measure.meaning
    attacked = run_experiment(tiny_experiment(repeats=2), seed=5)
    alone = run_experiment(tiny_experiment(), seed=5)
    assert torch.equal(attacked.finding.truth.x, alone.finding.truth.x)
    assert {"mean mse", "share found"} <= {measure.name for measure in attacked.outcome.measures}


def test_a_sweep_labels_its_experiments_and_keeps_victims_where_only_the_attack_varies() -> None:
    usual = tiny_experiment()
    greys = sweep(usual, "grey", (0.2, 0.4), lambda e, grey: replace(e, attack=Guess(grey=grey)), label="at {value:g}")
    assert [each.label for each in greys] == ["at 0.2", "at 0.4"]
    assert [each.point and each.point.value for each in greys] == [0.2, 0.4]
    assert all(each.victims is usual.victims for each in greys)
    longer = sweep(usual, "epochs", (4, 8), lambda e, n: e.with_victims(training=Training(epochs=n)), log=True)
    assert [each.victims.training.epochs for each in longer if each.victims] == [4, 8]


def test_a_smoke_run_takes_a_victim_that_did_not_fit_for_a_caveat(tmp_path: Any) -> None:
    lazy = tiny_experiment(training=Training(optimizer=SGD(lr=0.0), epochs=1))
    with refused("not-fitted"):
        list(run_job([lazy], job(tmp_path)))
    ((_, result),) = run_job([lazy], job(tmp_path, scale="smoke"))
    assert "learnt-nothing" in {caveat.code for caveat in result.caveats}


def test_experiments_that_contradict_themselves_are_refused() -> None:
    with refused("conflict", "victims"):
        Experiment(label="a", attack=Guess())
    with refused("empty", "evaluations"):
        Experiment(label="a", victims=tiny_victims(), evaluations=())
    with refused("out-of-range", "repeats"):
        tiny_experiment(repeats=0)
    with refused("empty"):
        run_experiment(Experiment(label="a", victims=tiny_victims()))
    with refused("empty"):
        run_experiment(Experiment(label="a", evaluations=(Accuracy(),)))
    with refused("empty"):
        _ = run_experiment(tiny_measurement()).finding
    with refused("empty", "victims"):
        tiny_measurement().with_victims(per_victim=1)
    with refused("conflict", "init_per_victim"):
        tiny_victims(init_per_victim=True)


def test_initial_weights_are_one_set_or_one_for_each_victim() -> None:
    def zeros(model: torch.nn.Module, seed: int) -> Any:
        return {name: torch.zeros_like(p) for name, p in initial_params(model, seed=seed).items()}

    given = prepare(tiny_victims(initial=zeros))
    assert all(not p.any() for p in given.initial.values())
    own = prepare(tiny_victims(per_victim=1, init_per_victim=True))
    first, second, *_ = own.trained
    assert not any(torch.equal(p, second.initial[name]) for name, p in first.initial.items() if name.endswith("weight"))


def test_measurements_need_no_victims() -> None:
    experiment = Experiment(label="a", evaluations=(Measurement(measure=lambda seed, device: Outcome(verdict="v")),))
    assert run_experiment(experiment).outcome.verdict == "v"
