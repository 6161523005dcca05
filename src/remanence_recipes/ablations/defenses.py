"""Defenses of a federated client: what is reconstructed from what it sends, and how well the model still learns.

    remanence run ablations.gradient_defenses --scale full     one CPU core, about ten minutes

The net is an ordinary one with random initial weights. The model is trained by federated SGD: in each round every
client sends the defended gradient of a batch of its own records and the server steps along their mean, with the
learning rate that does best on held-out records. The number of rounds is the same for all. Clipping hides nothing;
the other defenses hide by degrees.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from math import isfinite
from typing import final

import torch
from torch import Tensor, nn

from remanence.attacks import GradientMatching, Stein, with_search
from remanence.data import Split, load, split
from remanence.engine import loss_gradient
from remanence.errors import BadInput
from remanence.experiments import Experiment, Measure, Outcome, Scale
from remanence.experiments.evaluations import Accuracy
from remanence.metrics import hungarian
from remanence.metrics.statistics import bootstrap_mean
from remanence.models import initial_params, mlp
from remanence.progress import track
from remanence.releases import gradient_at_initial, train_victim
from remanence.releases.defenses import Clipping, Defense, GaussianNoise, Quantization, Sign, TopK, defended
from remanence.seeds import derive_seed
from remanence.training import SGD, Training
from remanence.types import Data, Params
from remanence_recipes.curves import figure_along, measured

HELD_OUT = 0.25  # fraction of the public records that selects the learning rate
LOOK_ALIKES = 50  # draws of other images for their chance level
MAX_BATCH = {"Stein": 16, "gradient matching": 32}  # Stein's cost grows with the sixth power of the batch
MEANING = (
    "root mean square error of a record's pixels, the mean over records after the best assignment; a batch whose "
    "gradient the attack refuses counts as the mean image, which is chance here"
)
READ = "root mean square error of a pixel"
LEARNT = "on held-out records; chance is the commonest class"


@final
@dataclass(frozen=True, kw_only=True)
class Setting:
    """The sizes of the study at one scale."""

    data: str = "mnist"
    width: int = 300
    records: int = 8  # attacked, but for larger batches
    restarts: int = 2  # of Stein
    steps: int = 300  # of gradient matching
    clients: int = 5
    rounds: int = 100
    learning_rates: tuple[float, ...] = (0.1, 0.5, 2.5)
    public: int = 20_000
    test: int = 2000


SMALL = Setting(records=4, rounds=50, learning_rates=(0.5,), public=5000)
SMOKE = replace(SMALL, data="digits", width=100, restarts=1, steps=40, clients=3, rounds=40, public=1000, test=500)
SETTINGS: dict[Scale, Setting] = {"smoke": SMOKE, "small": SMALL, "full": Setting()}


@final
@dataclass(frozen=True, kw_only=True)
class Client:
    """What a client does: the defenses of its gradient, and the size of its batches."""

    defenses: tuple[Defense, ...] = ()
    batch: int = 4


@final
@dataclass(frozen=True, kw_only=True)
class Curve:
    """Clients by the strength of one defense, from next to none to the strongest."""

    axis: str
    clients: Mapping[float | str, Client]
    prefix: str = ""  # of a number on the axis, in the names of measures


CURVES = {
    "Gaussian noise": Curve(
        prefix="noise ",
        axis="noise, in units of the norm of each tensor",
        clients={s: Client(defenses=(GaussianNoise(relative_std=s),)) for s in (0.01, 0.1, 0.3, 1.0, 3.0)},
    ),
    "clipping": Curve(
        prefix="norm ",
        axis="largest norm of the gradient",
        clients={norm: Client(defenses=(Clipping(norm=norm),)) for norm in (10.0, 1.0, 0.1)},
    ),
    "top-k": Curve(
        prefix="share ",
        axis="fraction of the entries sent",
        clients={fraction: Client(defenses=(TopK(fraction=fraction),)) for fraction in (1.0, 0.1, 0.03, 0.01)},
    ),
    "few bits": Curve(
        axis="what is sent of each entry",
        clients={
            **{f"{bits} bits": Client(defenses=(Quantization(bits=bits),)) for bits in (8, 4, 2)},
            "1 bit": Client(defenses=(Quantization(bits=1),)),
            "sign": Client(defenses=(Sign(),)),
        },
    ),
    "larger batches": Curve(
        prefix="batch of ", axis="records in a batch", clients={float(b): Client(batch=b) for b in (1, 2, 4, 8, 16, 32)}
    ),
}


def gradient_defenses(scale: Scale) -> Sequence[Experiment]:
    """Each defense of a federated client: what two attacks still reconstruct, and the accuracy of the model."""
    about = "The error of reconstructed images against the strength of a client's defense, and the model's accuracy."
    return [
        replace(
            measured(label, about, partial(_study, SETTINGS[scale], curve, scale)),
            tuned_on_truth=True,  # the defaults of both attacks: on digits, MNIST and CIFAR-10
        )
        for label, curve in CURVES.items()
    ]


def _study(setting: Setting, curve: Curve, scale: Scale, seed: int, device: torch.device) -> Outcome:
    points = [*curve.clients][:: len(curve.clients) - 1] if scale == "smoke" else [*curve.clients]
    parts = _split(setting, seed, device)
    model = mlp(parts.private.shape, parts.private.num_classes, hidden=(setting.width,), activation=nn.Tanh)
    at = {name: p.to(parts.private.x) for name, p in initial_params(model, seed=derive_seed(seed, "weights")).items()}
    attacks: dict[str, tuple[Stein | GradientMatching, torch.dtype]] = {
        "Stein": (Stein(restarts=setting.restarts, reseeds=setting.restarts - 1), torch.float64),
        "gradient matching": (with_search(GradientMatching(), steps=setting.steps, restarts=1), torch.float32),
    }
    errors: dict[str, list[Measure]] = {name: [] for name in attacks}
    accuracies, measures = list[Measure](), list[Measure]()
    chance: dict[str, list[float]] = {"mean image": [], "other images": []}
    for point in track(points, total=len(points), label="strengths"):
        client, named = curve.clients[point], point if isinstance(point, str) else f"{curve.prefix}{point:g}"
        private = parts.private.take(slice(0, max(setting.records, client.batch)))
        mean_image = _rms(private.x - parts.public.x.mean(0))
        chance["mean image"].append(float(mean_image.mean()))
        chance["other images"].append(_look_alikes(private.x, parts.test.x, client.batch, seed))
        for name, (attack, dtype) in attacks.items():
            attacked = private.take(slice(0, len(private) if client.batch <= MAX_BATCH[name] else 0)).to(device, dtype)
            found = _attacked(attack, model, at, attacked, client, mean_image, seed)
            error = bootstrap_mean(found, seed=derive_seed(seed, "interval"))
            level = chance["mean image"][-1]
            errors[name].append(Measure.from_interval(f"error, {name}, {named}", error, meaning=MEANING, chance=level))
        trained = _federated(setting, model, at, parts.public, client, seed)
        accuracies.append(Accuracy(name=f"accuracy, {named}", meaning=LEARNT).measure(model, trained, parts.test))
        measures += [each[-1] for each in errors.values() if isfinite(each[-1].value or 0.0)] + accuracies[-1:]
    learnt, log = {"federated SGD": accuracies}, not isinstance(points[0], str)
    levels = {"commonest class": [accuracy.chance or 0.0 for accuracy in accuracies]}
    return Outcome(
        measures=tuple(measures),
        figures=(
            figure_along("What is read", (curve.axis, READ), errors, points, chance, log_x=log),
            figure_along("What is learnt", (curve.axis, "accuracy"), learnt, points, levels, log_x=log),
        ),
    )


def _split(setting: Setting, seed: int, device: torch.device) -> Split:
    """The same for all curves; the public records train the model and select its learning rate."""
    private = max(client.batch for curve in CURVES.values() for client in curve.clients.values())
    parts = split(load(setting.data), private=private, fixed=0, public=setting.public, test=setting.test, seed=seed)
    return parts.to(device)


def _attacked(
    attack: Stein | GradientMatching,
    model: nn.Module,
    at: Params,
    records: Data,
    client: Client,
    refused: Tensor,
    seed: int,
) -> Tensor:
    """The error of each record, reconstructed from the gradients of batches; `refused` where the attack refuses."""
    weights, errors = {name: p.to(records.x) for name, p in at.items()}, refused.new_zeros(0)
    for first in range(0, len(records), client.batch):
        batch = records.take(slice(first, first + client.batch))
        victim = train_victim(model, Training(epochs=0), weights, batch.take([]), batch, seed=0)
        release = gradient_at_initial(victim, defenses=client.defenses, seed=seed).release
        try:
            found = _matched_rms(attack.run(release, seed=derive_seed(seed, "attack", first)).x, batch.x)
        except BadInput:
            found = refused[first : first + client.batch]
        errors = torch.cat([errors, found.to(errors)])
    return errors


def _matched_rms(x: Tensor, truth: Tensor) -> Tensor:
    return _rms(x[hungarian(x, truth)] - truth)


def _rms(difference: Tensor) -> Tensor:
    """The root mean square of each record, shape (records,)."""
    return difference.square().flatten(1).mean(1).sqrt()


def _look_alikes(truth: Tensor, others: Tensor, batch: int, seed: int) -> float:
    """The error of as many held-out images in place of the reconstruction of each batch."""
    generator = torch.Generator().manual_seed(derive_seed(seed, "other images"))
    errors = [
        _matched_rms(others[torch.randperm(len(others), generator=generator)[: len(records)]], records)
        for records in truth.split(batch)
        for _ in range(LOOK_ALIKES)
    ]
    return float(torch.cat(errors).mean())


def _federated(setting: Setting, model: nn.Module, at: Params, pool: Data, client: Client, seed: int) -> Params:
    """The weights after federated SGD, with the learning rate that does best on held-out records."""
    n = int(HELD_OUT * len(pool))
    held_out, pool = pool.take(slice(0, n)), pool.take(slice(n, None))

    def trained(learning_rate: float) -> Params:
        training, rounds = Training(optimizer=SGD(lr=learning_rate)), count()

        def gradient(params: Params, batches: Tensor | None) -> Params:
            assert batches is not None
            round_seed = derive_seed(seed, "round", next(rounds))
            sent = [
                defended(
                    loss_gradient(model, params, pool.x[rows], pool.y[rows], loss=training.loss),
                    client.defenses,
                    seed=derive_seed(round_seed, k),
                )
                for k, rows in enumerate(batches)
            ]
            return {name: torch.stack([each[name] for each in sent]).mean(0) for name in params}

        batches = _batches(setting, len(pool), client.batch, seed)
        return training.descend(gradient, at, batches, records=len(pool), noise_seed=0)

    def accuracy(params: Params) -> float:
        return Accuracy().measure(model, params, held_out).value or 0.0

    return max(map(trained, setting.learning_rates), key=accuracy)


def _batches(setting: Setting, records: int, size: int, seed: int) -> Iterator[Tensor]:
    """Indices of each round's batches, shape (clients, size); every client has records of its own."""
    generator = torch.Generator().manual_seed(derive_seed(seed, "batches"))
    indices = torch.randperm(records, generator=generator)[: records - records % setting.clients]
    by_client = indices.view(setting.clients, -1)
    for _ in range(setting.rounds):
        yield by_client.gather(1, torch.randint(by_client.shape[1], (setting.clients, size), generator=generator))
