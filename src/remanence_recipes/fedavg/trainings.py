"""Clients that train for epochs of shuffled mini-batches, and means over several clients.

remanence run fedavg.local_training       scale small, one CPU core: about ten minutes, most of them for Adam
expected      most records of a client that trained by SGD, some of one that trained by Adam; found falls with the
              number of clients whose updates are averaged, labels stay readable
"""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from remanence.attacks import FirstLayer, GradientMatching, SimuDy, SoftLabels, with_search
from remanence.errors import BadInput
from remanence.experiments import Experiment, Measure, Measurement, Outcome, Scale
from remanence.models import mlp
from remanence.progress import track
from remanence.releases import Case, Gradient, KnowsUpdate, LocalUpdate, Victim, gradient_at_initial, local_update
from remanence.seeds import derive_seed
from remanence.training import SGD, Adam, Training
from remanence.types import Data
from remanence_recipes.curves import figure_along
from remanence_recipes.fedavg.rounds import Attempt, Round, attacked, experiment, measures, seeds_of, tuned

ROUNDS: dict[Scale, int] = {"smoke": 1, "small": 3, "full": 10}
HIDDEN: dict[Scale, int] = {"smoke": 60, "small": 200, "full": 200}
RECORDS: dict[Scale, int] = {"smoke": 8, "small": 16, "full": 16}
STEPS: dict[Scale, int] = {"smoke": 40, "small": 600, "full": 1000}
PER_CLIENT = 8  # records, in `clients` and `client_trainings`
WIDE: dict[Scale, int] = {"smoke": 200, "small": 500, "full": 500}


def local_training(scale: Scale) -> Sequence[Experiment]:
    """A client that trained for five epochs on mini-batches of four, by SGD and Adam, simulated in another order."""
    trainings = {
        "SGD": Training(optimizer=SGD(lr=0.05), epochs=5, batch_size=4),
        "SGD with momentum": Training(optimizer=SGD(lr=0.01, momentum=0.9), epochs=5, batch_size=4),
        "Adam": Training(optimizer=Adam(lr=1e-3), epochs=5, batch_size=4),
    }
    about = (
        f"One hidden layer of {HIDDEN[scale]} neurons, {RECORDS[scale]} records, mini-batches of four in an order that "
        "is not sent; the server knows the recipe and the number of records. Labels are not known."
    )
    network = partial(_network, HIDDEN[scale])
    rounds = {
        name: Round(scale=scale, records=RECORDS[scale], training=training, network=network)
        for name, training in trainings.items()
    }
    return [experiment(name, about, each, ROUNDS[scale], _simulated) for name, each in rounds.items()]


def clients(scale: Scale) -> Sequence[Experiment]:
    """Gradients of clients of eight records, of which the server sees the mean: found and labels by their number."""
    counts = {"smoke": (1, 2), "small": (1, 2, 5, 10), "full": (1, 2, 5, 10, 20)}[scale]
    about = f"One hidden layer of {WIDE[scale]} neurons at fresh weights, {PER_CLIENT} records for each client."
    training = Training(optimizer=SGD(lr=0.1), epochs=1)
    return [_against_clients(scale, about, ROUNDS[scale], counts, training, WIDE[scale], _exact)]


def client_trainings(scale: Scale) -> Sequence[Experiment]:
    """Two epochs of mini-batches of each client of eight records, of which the server sees the mean of the updates."""
    counts = {"smoke": (1, 2), "small": (1, 2, 5), "full": (1, 2, 5, 10)}[scale]
    about = (
        f"One hidden layer of {HIDDEN[scale]} neurons at fresh weights, {PER_CLIENT} records for each client, "
        "mini-batches of four, SGD; gradient matching through the steps of all clients. Labels are not known."
    )
    training = Training(optimizer=SGD(lr=0.05), epochs=2, batch_size=4)
    rounds = {"smoke": 1, "small": 1, "full": 3}[scale]
    return [_against_clients(scale, about, rounds, counts, training, HIDDEN[scale], _matched)]


def _against_clients(
    scale: Scale, about: str, rounds: int, counts: Sequence[int], training: Training, hidden: int, attack: Attempt
) -> Experiment:
    network = partial(_network, hidden)

    def measure(seed: int, device: torch.device) -> Outcome:
        found, labels, all_measures = [], [], list[Measure]()
        for count in track(counts, total=len(counts), label="numbers of clients"):
            records = count * PER_CLIENT
            each = Round(scale=scale, records=records, training=training, network=network, clients=count)
            of_rounds = [attacked(each, one, device, attack) for one in seeds_of(seed, rounds)]
            of_count = tuple(measures(of_rounds, f"{count} clients"))
            all_measures += of_count
            found.append(of_count[0])
            labels.append(of_count[1])
        lines = {"records found": found, "labels": labels}
        chance = {"labels by chance": [each.chance or 0.0 for each in labels]}
        figure = figure_along("Means over clients", ("clients", "fraction"), lines, counts, chance, log_x=True)
        return Outcome(measures=tuple(all_measures), figures=(figure,))

    evaluations = (Measurement(measure=measure), tuned)
    return Experiment(label="found against clients", about=about, evaluations=evaluations)


def _network(hidden: int, data: Data) -> nn.Module:
    return mlp(data.shape, data.num_classes, hidden=(hidden,), activation=nn.ReLU)


def _simulated(each: Round, client: Victim, seed: int) -> tuple[KnowsUpdate, Tensor | None]:
    """By SimuDy, in an order of mini-batches of its own."""
    case: Case[LocalUpdate] = local_update(client, seed=seed)
    shown = case.release.fine_tuned(client.private.num_classes)
    attack = with_search(SimuDy(candidates=each.records, labels=SoftLabels()), steps=STEPS[each.scale])
    return case.release, attack.run(shown, seed=derive_seed(seed, "attack")).x


def _exact(each: Round, client: Victim, seed: int) -> tuple[KnowsUpdate, Tensor | None]:
    """In closed form. The mean of the gradients of clients of equal sizes is the gradient of all their records."""
    case: Case[Gradient] = gradient_at_initial(client)
    try:
        return case.release, FirstLayer().run(case.release, seed=seed).x
    except BadInput:  # no neuron is active on one record alone
        return case.release, None


def _matched(each: Round, client: Victim, seed: int) -> tuple[KnowsUpdate, Tensor | None]:
    """By gradient matching: the training of every client is simulated."""
    case: Case[LocalUpdate] = local_update(client, clients=each.clients, seed=seed)
    attack = with_search(GradientMatching(label_rounds=0), steps=STEPS[each.scale], restarts=1)
    return case.release, attack.run(case.release, seed=derive_seed(seed, "attack")).x
