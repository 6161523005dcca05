"""Real attacks with small budgets: how many records are found that were trained on, and that never were.

remanence run evidence.attacks --scale small     two cores: minutes for each attack and data set
expected      most of the records trained on, none of the others; p <= 0.05 in all audits of the first kind, in one of
              twenty of the second
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from remanence.attacks import KKT, GradientMatching, KKTRun, Search, SimuDy, SoftLabels, Stationarity, with_search
from remanence.engine import train
from remanence.experiments import Experiment, Measure, Outcome, Scale
from remanence.metrics.leakage import LeakTest, leak_test
from remanence.metrics.statistics import binomial_proportion
from remanence.models import centred_mlp, initial_params, mlp, torch_params
from remanence.progress import track
from remanence.releases import Victim, fine_tuned, gradient_at_initial, weights_only
from remanence.seeds import derive_seed
from remanence.training import SGD, Adam, Training
from remanence.types import Data
from remanence_recipes.curves import measured
from remanence_recipes.evidence.sets import data_set, data_sets
from remanence_recipes.records import first_of_each_class, resized, shuffled
from remanence_recipes.weights_alone.target import sampled_runs

PER_CLASS, HELD_OUT, SIDE = 2, 1000, 14
ALL, BATCH = 10 * PER_CLASS, "gradient matching"
VICTIMS: Mapping[Scale, int] = {"smoke": 2, "small": 10, "full": 10}
Attacked = Callable[[Data, int], Tensor]


def attacks(scale: Scale) -> Sequence[Experiment]:
    """Stationarity, KKT, SimuDy and gradient matching on small nets: records trained on against others, never seen."""
    about = f"Audits of {ALL} records each (gradients: 8), trained on or never seen, with the same reconstructions."
    sets = [name for name in ("digits", "fashion-mnist") if name in data_sets(scale)]
    return [
        measured(f"{attack}, {name}", about, partial(_measure, scale, name, run, 8 if attack == BATCH else ALL))
        for name in sets
        for attack, run in ATTACKS.items()
    ]


def _measure(scale: Scale, name: str, run: Attacked, records: int, seed: int, device: torch.device) -> Outcome:
    trained_on, unseen = list[LeakTest](), list[LeakTest]()
    for i in track(range(VICTIMS[scale]), total=VICTIMS[scale], label="victims"):
        data = shuffled(data_set(name), derive_seed(seed, "victim", i))
        data = resized(data, SIDE) if data.shape[1] > SIDE else data
        private, others = first_of_each_class(data, PER_CLASS)
        never, others = first_of_each_class(others, PER_CLASS)
        few = torch.arange(len(private))[:: len(private) // records][:records]  # of different classes
        found = run(private.take(few).to(device), seed + i).float()
        held_out = others.take(slice(0, HELD_OUT)).to(device)
        for audits, tested in ((trained_on, private), (unseen, never)):
            test = leak_test(found, tested.take(few).to(device), held_out, seed=derive_seed(seed, "test", i))
            audits.append(test)
    return Outcome(measures=(*_measures("trained on", trained_on, unseen), *_measures("never seen", unseen, unseen)))


def _measures(who: str, audits: Sequence[LeakTest], null: Sequence[LeakTest]) -> Iterator[Measure]:
    found, by_chance = (torch.cat([test.found for test in each]) for each in (audits, null))
    yield Measure.from_interval(
        f"found, {who}",
        binomial_proportion(int(found.sum()), len(found)),
        meaning=f"of {len(found)} records at a false-discovery rate of 5 %; chance: of records never seen",
        chance=float(by_chance.double().mean()),
    )
    small = torch.tensor([test.together <= 0.05 for test in audits])
    yield Measure.from_interval(
        f"audits with p <= 0.05, {who}",
        binomial_proportion(int(small.sum()), len(small)),
        meaning=f"of {len(small)} audits, one victim each",
        chance=0.05,
    )


def _converged(private: Data, seed: int) -> Victim:
    """An MLP trained with weight decay until little is left of its initial weights; it subtracts the records' mean."""
    private = private.to(private.x.device, torch.float64)
    model = centred_mlp(private.shape, private.num_classes, hidden=(150,))
    training = Training(optimizer=SGD(lr=0.3), epochs=1200, lr_schedule=((720, 0.3), (960, 0.1)), weight_decay=0.01)
    mean = {"1.mean": private.x.mean(0).flatten()}
    initial = {name: p.to(private.x) for name, p in torch_params(model, seed=seed).items()} | mean
    final = train(training, model, initial, private, seed=seed)
    none = private.take(slice(0, 0))
    return Victim(model=model, training=training, initial=initial, final=final, fixed=none, private=private)


def _stationarity(private: Data, seed: int) -> Tensor:
    search = Search(optimizer=Adam(lr=0.003, eps=1e-20), steps=500, restarts=1)
    attack = Stationarity(candidates=len(private), search=search)
    return attack.run(weights_only(_converged(private, seed)).release, seed=seed).x


def _kkt(private: Data, seed: int) -> Tensor:
    runs = (KKTRun(), *sampled_runs(2, seed))
    attack = with_search(KKT(candidates=2 * len(private), runs=runs), steps=300)
    return attack.run(weights_only(_converged(private, seed)).release, seed=seed).x


def _simudy(private: Data, seed: int) -> Tensor:
    model, training = mlp(private.shape, private.num_classes, hidden=(64,)), Training(optimizer=SGD(lr=0.05), epochs=20)
    initial = {name: p.to(private.x) for name, p in torch_params(model, seed=seed).items()}
    final = train(training, model, initial, private, seed=seed)
    none = private.take(slice(0, 0))
    victim = Victim(model=model, training=training, initial=initial, final=final, fixed=none, private=private)
    attack = with_search(SimuDy(labels=SoftLabels()), steps=300)
    return attack.run(fine_tuned(victim).release, seed=seed).x


def _gradient(private: Data, seed: int) -> Tensor:
    model, training = mlp(private.shape, private.num_classes, hidden=(64,)), Training(epochs=1)
    initial = {name: p.to(private.x) for name, p in initial_params(model, seed=seed).items()}
    none = private.take(slice(0, 0))
    victim = Victim(model=model, training=training, initial=initial, final=initial, fixed=none, private=private)
    attack = with_search(GradientMatching(), steps=300, restarts=1)
    return attack.run(gradient_at_initial(victim).release, seed=seed).x


ATTACKS: Mapping[str, Attacked] = {
    "Stationarity": _stationarity,
    "KKT": _kkt,
    "SimuDy": _simudy,
    BATCH: _gradient,
}
