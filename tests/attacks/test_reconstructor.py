"""The parts of a reconstructor's training against plain loops, exact decompositions and formulas written out."""

import contextlib
import dataclasses
from collections.abc import Callable
from math import ceil, cos, pi

import pytest
import torch
from torch import Tensor, nn
from torch.func import grad
from torch.nn.functional import cosine_similarity

from remanence import SGD, Adam, AdamW, Data, RMSProp
from remanence.attacks import RecoNN
from remanence.attacks.one_unknown.reconstructor import Batch, Error, Judge, Reader, Step, materialised, shuffled
from remanence.engine.cuda import changed_by, copied, precision, rewind, torch_optimizer
from remanence.errors import BadInput
from remanence.models import apply, initial_params, mlp
from remanence.models.lpips import SHAPES, Lpips
from remanence.seeds import derive_seed
from remanence.shadow import ShadowBank
from remanence.shadow.features import Digest, Scaler, principal
from remanence.shadow.rows import first_layer
from remanence.training import Optimizer
from remanence.types import Params

OPTIMIZERS: list[Optimizer] = [
    SGD(lr=0.05),
    SGD(lr=0.05, momentum=0.9),
    Adam(lr=0.01, beta1=0.8, beta2=0.95, eps=1e-6),
    AdamW(lr=0.01, weight_decay=0.1),
    RMSProp(lr=0.01, decay=0.8, eps=1e-6),
]
WHERE = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])


def rand(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def linear_bank(count: int, *, shape: tuple[int, ...] = (1, 3, 3), dtype: torch.dtype = torch.float64) -> ShadowBank:
    x = rand(count, *shape, dtype=dtype)
    weights = x.flatten(1) @ (rand(x[0].numel(), 20, seed=1, dtype=dtype) - 0.5)
    return ShadowBank(weights=weights, targets=Data(x=x, y=torch.zeros(count).long(), num_classes=1))


def plain_loop(attack: RecoNN, bank: ShadowBank, seed: int) -> tuple[list[Params], list[float]]:
    """The weights after each epoch and their error on the held-out rows: pure functions, one batch after the other."""
    order = torch.randperm(len(bank.weights), generator=torch.Generator().manual_seed(derive_seed(seed, "held out")))
    kept = round(attack.held_out * len(order))
    rows, held = order[kept:], order[:kept]
    spread, mean = torch.std_mean(bank.weights[rows], dim=0)
    x, target = ((bank.weights - mean) / spread).clamp(-3, 3), bank.targets.x.flatten(1)
    net = mlp((x.shape[1],), target.shape[1], hidden=attack.hidden, activation=nn.ReLU)

    def error(params: Params, rows: Tensor) -> Tensor:
        difference = apply(net, params, x[rows]).sigmoid() - target[rows]
        return 2 * (difference**2).mean() + 0.5 * difference.abs().mean()

    params = {name: p.double() for name, p in initial_params(net, seed=derive_seed(seed, "start")).items()}
    state, step, generator = (
        attack.optimizer.init(params),
        0,
        torch.Generator().manual_seed(derive_seed(seed, "batches")),
    )
    after, errors = [], []
    for epoch in range(attack.epochs):
        rate = attack.optimizer.lr * (0.5 + 0.5 * cos(pi * epoch / attack.epochs))
        optimizer = dataclasses.replace(attack.optimizer, lr=rate)
        turn = rows[torch.randperm(len(rows), generator=generator)]
        for i in range(ceil(len(rows) / attack.batch_size)):
            some = turn.roll(-i * attack.batch_size)[: attack.batch_size]  # the last batch begins again in front
            params, state = optimizer.update(params, grad(error)(params, some), state, step)
            step += 1
        after.append(params)
        errors.append(float(error(params, held)) if kept else 0.0)
    return after, errors


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=repr)
@pytest.mark.parametrize("held_out", [0.0, 0.2])
def test_training_is_the_plain_loop(optimizer: Optimizer, held_out: float) -> None:
    bank = linear_bank(50)
    attack = RecoNN(
        hidden=(12,), optimizer=optimizer, epochs=5, batch_size=16, clip=3.0, held_out=held_out, mse=2.0, mae=0.5
    )
    after, errors = plain_loop(attack, bank, seed=7)
    best = errors.index(min(errors)) if held_out else -1
    found = dict(attack.fit(bank, seed=7).net.trunk.named_parameters())
    for name, value in after[best].items():
        torch.testing.assert_close(found[name].data, value, rtol=1e-8, atol=1e-10)


def test_the_epoch_is_chosen_by_the_held_out_shadows_alone() -> None:
    """At a rate that is too high the error goes up and down; the best epoch is kept, not the last."""
    attack = RecoNN(hidden=(12,), optimizer=Adam(lr=0.3), epochs=6, batch_size=16, clip=3.0, held_out=0.2)
    attack, bank = dataclasses.replace(attack, mse=2.0, mae=0.5), linear_bank(50)
    after, errors = plain_loop(attack, bank, seed=1)
    assert errors.index(min(errors)) not in (0, 5)
    found = dict(attack.fit(bank, seed=1).net.trunk.named_parameters())
    for name, value in after[errors.index(min(errors))].items():
        torch.testing.assert_close(found[name].data, value, rtol=1e-8, atol=1e-10)


@pytest.mark.filterwarnings("ignore:.*capturable=True")  # on a CUDA device these are made for a capture
@pytest.mark.parametrize("device", WHERE)
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=repr)
def test_our_optimisers_are_torchs(optimizer: Optimizer, device: str) -> None:
    net, x, y = mlp((6,), 3, hidden=(5,)), rand(8, 6).to(device), rand(8, 3, seed=1).to(device)
    params = {name: p.to(x) for name, p in initial_params(net, seed=0).items()}

    def loss(p: Params) -> Tensor:
        return (apply(net, p, x) - y).square().sum()

    real = [nn.Parameter(p.clone()) for p in params.values()]
    theirs, state = torch_optimizer(optimizer, real), optimizer.init(params)
    for step in range(20):
        for p, g in zip(real, grad(loss)(dict(zip(params, real, strict=True))).values(), strict=True):
            p.grad = g.detach()
        theirs.step()
        params, state = optimizer.update(params, grad(loss)(params), state, step)
    # on a CUDA device the rate is a float32
    tight = {"rtol": 1e-9, "atol": 1e-11} if device == "cpu" else {"rtol": 1e-5, "atol": 1e-7}
    for p, value in zip(real, params.values(), strict=True):
        torch.testing.assert_close(p.data, value, **tight)


def test_an_optimiser_without_a_counterpart_is_refused() -> None:
    class Mine:
        lr = 0.1

    with pytest.raises(BadInput, match=r"`optimizer` must be SGD, Adam, AdamW or RMSProp .* got Mine"):
        torch_optimizer(Mine(), [nn.Parameter(torch.zeros(1))])  # type: ignore[arg-type]


def make_step(optimizer: Optimizer, device: str, *, adversarial: float = 0.0) -> Step:
    inputs, targets = rand(12, 30, dtype=torch.float32).to(device), rand(12, 1, 24, 24, dtype=torch.float32).to(device)
    net = Reader(mlp((30,), 576, hidden=(16,), activation=nn.ReLU), (1, 24, 24))
    materialised(net, initial_params(net, seed=0), inputs)
    return Step(
        net=net,
        batch=Batch.of(net, inputs, targets, 4, scale=torch.zeros(30), dropout=0.0, seed=0),
        error=Error(mse=1.0, mae=1.0, lpips=0.0, network=None),
        optimizer=torch_optimizer(optimizer, list(net.parameters())),
        judge=Judge.start(targets, seed=1) if adversarial else None,
        adversarial=adversarial,
    )


def walk(step: Step, go: Callable[[], None]) -> list[Tensor]:
    for rows in ([0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]):
        step.batch.fill(torch.tensor(rows, device=step.batch.rows.device))
        go()
    return [p.detach().cpu() for p in step.net.parameters()]


@pytest.mark.parametrize("device", WHERE)
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=repr)
@pytest.mark.parametrize("adversarial", [0.0, 0.1])
def test_a_replayed_step_is_the_step(optimizer: Optimizer, device: str, adversarial: float) -> None:
    """On the CPU the two are one; on a CUDA device the second is a captured graph."""
    plain, captured = (make_step(optimizer, place, adversarial=adversarial) for place in ("cpu", device))
    with precision(tf32=False):
        replayed = walk(captured, captured.replayed())
    for p, q in zip(walk(plain, plain), replayed, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=repr)
def test_rewinding_undoes_the_warm_up(optimizer: Optimizer) -> None:
    plain, warmed = (make_step(optimizer, "cpu", adversarial=0.1) for _ in range(2))
    assert warmed.judge is not None
    optimizers = [warmed.optimizer, warmed.judge.optimizer]
    held = changed_by(optimizers)
    start = copied(held)
    walk(warmed, warmed)
    rewind(changed_by(optimizers), held, start)
    for p, q in zip(walk(plain, plain), walk(warmed, warmed), strict=True):
        torch.testing.assert_close(p, q, rtol=0, atol=0)


def test_the_judge_learns_to_tell_and_the_reconstructor_to_pass() -> None:
    real, fake = rand(6, 1, 24, 24, dtype=torch.float32), torch.zeros(6, 1, 24, 24)
    judge = Judge.start(real, seed=0)
    verdict = judge.net(fake)
    torch.testing.assert_close(judge.doubt(fake), ((1 - verdict) ** 2).sum() / verdict.numel())
    for _ in range(20):
        judge.learn(fake, real)
    assert judge.net(real).mean() > judge.net(fake).mean() + 0.3
    passing = fake.clone().requires_grad_()
    judge.doubt(passing).backward()
    assert passing.grad is not None
    moved = fake - 10 * passing.grad
    assert judge.doubt(moved) < judge.doubt(fake)


def test_the_adversarial_term_is_part_of_the_fit() -> None:
    bank = linear_bank(8, shape=(1, 24, 24), dtype=torch.float32)
    attack = RecoNN(hidden=(8,), epochs=2, batch_size=4)
    plain, judged, again = (
        next(a.fit(bank, seed=0).net.parameters())
        for a in (attack, *[dataclasses.replace(attack, adversarial=1.0)] * 2)
    )
    assert torch.equal(judged, again)
    assert not torch.equal(plain, judged)


def test_the_error_is_the_weighted_sum_over_all_rows() -> None:
    generator = torch.Generator().manual_seed(0)
    network = Lpips(weights={n: 0.1 * torch.rand(s, generator=generator) for n, s in SHAPES.items()})
    error = Error(mse=0.5, mae=2.0, lpips=3.0, network=network)
    inputs, targets = rand(5, 30, dtype=torch.float32), rand(5, 1, 8, 8, dtype=torch.float32)
    net = Reader(mlp((30,), 64, hidden=(4,), activation=nn.ReLU), (1, 8, 8))
    materialised(net, initial_params(net, seed=0), inputs)
    rows = torch.tensor([3, 0, 4])
    with torch.no_grad():
        found, target = net(inputs[rows]), targets[rows]
        each = [
            0.5 * ((f - t) ** 2).mean() + 2 * (f - t).abs().mean() + 3 * network(f[None], t[None])[0]
            for f, t in zip(found, target, strict=True)
        ]
        expected = torch.stack(each).mean()
        torch.testing.assert_close(error(found, target), expected)
    assert error.over(net, inputs, targets, rows, block=2) == pytest.approx(float(expected), rel=1e-5)


def test_every_row_is_seen_once_and_the_last_batch_is_filled_up() -> None:
    rows = torch.tensor([10, 11, 12, 13, 14, 15, 16])
    batches = shuffled(rows, 3, torch.Generator().manual_seed(0))
    assert batches.shape == (3, 3)
    flat = batches.flatten().tolist()
    assert sorted(flat[:7]) == rows.tolist()
    assert flat[7:] == flat[:2]


def test_noise_falls_on_living_inputs_and_dropout_on_hidden_layers() -> None:
    inputs, alive = torch.zeros(1, 100), torch.arange(100) < 60
    net = Reader(nn.Sequential(nn.Flatten(), nn.Linear(100, 100), nn.ReLU()), (100,))
    materialised(net, {"trunk.1.weight": torch.zeros(100, 100), "trunk.1.bias": torch.ones(100)}, inputs)
    batch = Batch.of(net, inputs, torch.zeros(1, 100), 400, scale=0.3 * alive, dropout=0.2, seed=0)
    batch.fill(torch.zeros(400, dtype=torch.int64))
    noisy, _ = batch.read(Reader(nn.Sequential(nn.Flatten()), (100,)))
    assert (noisy.logit()[:, alive].std() - 0.3).abs() < 0.01
    assert torch.equal(noisy[:, ~alive], torch.full((400, 40), 0.5))
    dropped, _ = batch.read(net)
    assert {round(float(v), 4) for v in dropped.detach().logit().unique()} == {0.0, 1.25}
    assert ((dropped == 0.5).float().mean() - 0.2).abs() < 0.01


def test_precision_is_given_back_also_after_an_error() -> None:
    places = torch.backends.cuda.matmul, torch.backends.cudnn.conv
    before = [place.fp32_precision for place in places]
    with precision(tf32=True):
        assert [place.fp32_precision for place in places] == ["tf32", "tf32"]
    with precision(tf32=False):
        assert [place.fp32_precision for place in places] == ["ieee", "ieee"]
    with contextlib.suppress(KeyError), precision(tf32=True):
        raise KeyError
    assert [place.fp32_precision for place in places] == before


def flat_and_dead(count: int) -> Tensor:
    """Forty coordinates that say something, a hundred of rounding noise and a constant."""
    alive = 1 + 1e-3 * torch.randn(count, 40, generator=torch.Generator().manual_seed(0))
    dead = 1e-9 * torch.randn(count, 100, generator=torch.Generator().manual_seed(1))
    return torch.cat([alive, dead, torch.full((count, 1), 7.0)], dim=1)


def test_coordinates_that_only_hold_rounding_noise_are_silenced() -> None:
    weights = flat_and_dead(200)
    scaler = Scaler.fit(weights, clip=5.0)
    scaled = scaler(weights)
    assert not scaled[:, 40:].any()
    assert torch.equal(scaler.alive, (torch.arange(141) < 40).float())
    assert torch.allclose(scaled[:, :40].std(dim=0), torch.ones(40), atol=0.05)
    far = Scaler.fit(weights, clip=2.0)(weights + 1)
    assert far[:, :40].max() == 2.0
    assert Scaler.fit(weights, clip=None)(weights + 1)[:, :40].min() > 100


def test_a_lower_floor_hears_what_is_quiet() -> None:
    """A few weights that end anywhere drown those that hold the record, unless the floor lies below these."""
    x = rand(400, 1, 4, 4)
    loud = torch.randn(400, 6, generator=torch.Generator().manual_seed(1), dtype=x.dtype)
    weights = torch.cat([0.02 + 1e-5 * x.flatten(1), loud], dim=1)
    bank = ShadowBank(weights=weights, targets=Data(x=x, y=torch.zeros(400).long(), num_classes=1))
    attack = RecoNN(hidden=(32,), epochs=30, batch_size=32)
    deaf, hearing = (dataclasses.replace(attack, floor=floor).fit(bank, seed=0) for floor in (1e-4, 1e-8))
    assert int(deaf.scaler.alive.sum()) == 6
    assert bool(hearing.scaler.alive.all())
    by_mean, by_deaf, by_hearing = (
        float((found - x).square().mean())
        for found in (x.mean(0), *(fitted.net(fitted.scaler(weights)) for fitted in (deaf, hearing)))
    )
    assert by_deaf > 0.9 * by_mean
    assert by_hearing < 0.5 * by_mean


def test_blocks_and_unseen_rows_do_not_change_the_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    weights, rows = rand(30, 13), torch.tensor([4, 9, 20, 3, 29, 11])
    monkeypatch.setattr("remanence.shadow.features._BLOCK", 4)
    spread, mean = torch.std_mean(weights[rows], dim=0)
    torch.testing.assert_close(
        Scaler.fit(weights, clip=1.5, rows=rows)(weights), ((weights - mean) / spread).clamp(-1.5, 1.5)
    )


def test_a_bank_of_equal_models_says_nothing_and_is_no_nan() -> None:
    scaler = Scaler.fit(torch.ones(10, 3), clip=5.0)
    assert not scaler(torch.rand(4, 3)).any()


def test_a_digest_does_not_depend_on_how_far_a_model_has_moved() -> None:
    weights, layer = rand(40, 30), first_layer(mlp((7,), 3, hidden=()), (7,))
    assert layer is not None
    weights = weights[:, : 3 + 3 * 7]
    digest = Digest.fit(weights, layer, clip=None, rows=torch.arange(30))
    read, gram = digest(weights), len(digest.alive) - 1
    assert gram == 3 + 6
    further = digest(digest.whole.mean + 4 * (weights - digest.whole.mean))
    others = [i for i in range(read.shape[1]) if i != gram]  # all but the logarithm of the distance
    torch.testing.assert_close(further[:, others], read[:, others])
    assert (further[:, gram] > read[:, gram]).all()
    rows = read[:, gram + 1 :].unflatten(1, (3, 7))
    torch.testing.assert_close(rows.square().mean((1, 2)), torch.ones(40, dtype=torch.float64))
    moved = (weights - digest.whole.mean)[:, 3:].unflatten(1, (3, 7))
    torch.testing.assert_close(cosine_similarity(rows, moved, dim=2), torch.ones(40, 3, dtype=torch.float64))
    assert digest(digest.whole.mean[None]).isfinite().all()


def test_the_axes_are_those_of_the_singular_value_decomposition() -> None:
    x = rand(60, 9) @ rand(9, 50, seed=1) + 1e-3 * rand(60, 50, seed=2)
    axes, squared = principal(lambda: iter(x.split(7)), rand(50, 12, seed=3), 9)
    _, values, rows = torch.linalg.svd(x, full_matrices=False)
    torch.testing.assert_close(squared, values[:9].square(), rtol=1e-8, atol=0)
    torch.testing.assert_close(axes @ axes.T, rows[:9].T @ rows[:9], rtol=0, atol=1e-7)


def test_reduced_inputs_are_the_standardised_ones_along_the_axes() -> None:
    weights, rows = rand(40, 6) @ rand(6, 30, seed=1), torch.arange(5, 40)
    whole = Scaler.fit(weights, clip=None, rows=rows)
    reduced = whole.reduced(weights, 6, rows=rows, seed=0)
    before = torch.get_rng_state()
    assert torch.equal(reduced(weights), whole.reduced(weights, 6, rows=rows, seed=0)(weights))
    assert torch.equal(before, torch.get_rng_state())
    assert reduced(weights).shape == (40, 6)
    assert reduced(weights[rows]).square().mean() == pytest.approx(1.0)
    assert torch.equal(reduced.alive, torch.ones(6, dtype=torch.float64))
    # the rank is 6, so that six axes lose nothing: distances are the same but for one factor
    ratio = torch.cdist(reduced(weights), reduced(weights)) / torch.cdist(whole(weights), whole(weights))
    off = ratio[~torch.eye(40, dtype=torch.bool)]
    torch.testing.assert_close(off, off[:1].expand_as(off))
