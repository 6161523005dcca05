"""The published attack and ours on weights alone: both ways to the slopes, diverged runs, the span, the refusals."""

from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest
import torch
from scipy.optimize import nnls
from torch import Tensor, nn
from torch.func import grad, vmap

from remanence import (
    KKT,
    SGD,
    BadInput,
    Data,
    Equilibrium,
    KKTRun,
    Logistic,
    SquaredError,
    Training,
    Victim,
    WeightsOnly,
    centred_mlp,
    cnn,
    initial_params,
    load,
    mlp,
    torch_params,
    train_victim,
    weights_only,
)
from remanence.attacks import _stationarity
from remanence.attacks._row_space import RowSpace
from remanence.attacks.kkt import Search
from remanence.nets import apply
from remanence.preflight import preflight
from remanence.training import KnownLoss

RECORDS = 10
CALM = KKTRun(lr=2e-4, multiplier_lr=0.01, spread=0.1)  # rounding does not grow
WHERE = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])


def private(classes: int) -> Data:
    digits = load("digits")
    place = torch.cat([(digits.y == label).nonzero()[: RECORDS // classes, 0] for label in range(classes)])
    return Data(x=digits.x[place].double(), y=digits.y[place], num_classes=classes)


GREY = torch.full((64,), 0.5, dtype=torch.float64)


@cache
def at_rest(loss: KnownLoss | None = None, *, centred: bool = True, hidden: tuple[int, ...] = (40,)) -> Victim:
    """Five classes of digits, or two with one output."""
    return trained(private(5 if loss is None else 2), loss, centred=centred, hidden=hidden)


def trained(
    data: Data, loss: KnownLoss | None = None, *, centred: bool = True, hidden: tuple[int, ...] = (40,)
) -> Victim:
    """With weight decay until it rests."""
    net = centred_mlp if centred else partial(mlp, activation=nn.ReLU)
    model = net(data.shape, data.num_classes if loss is None else 1, hidden=hidden)
    initial = {name: p.double() for name, p in torch_params(model, seed=0).items()}
    if centred:
        initial["1.mean"] = data.x.mean(0).flatten()
    training = Training(
        optimizer=SGD(lr=0.1, momentum=0.9), epochs=1500, weight_decay=0.02, stages=((1000, 0.2), (1250, 0.04))
    )
    training = training if loss is None else replace(training, loss=loss)
    return train_victim(model, training, initial, data.take(slice(0, 0)), data, seed=0)


def layers_of(victim: Victim) -> tuple[_stationarity.Layer, ...]:
    layers = _stationarity.layers_of(victim.model, victim.final)
    assert layers is not None
    return layers


def release(loss: KnownLoss | None = None) -> WeightsOnly:
    return weights_only(at_rest(loss)).release


@pytest.mark.parametrize("loss", [None, Logistic(), SquaredError()], ids=repr)
@pytest.mark.parametrize("squared", [False, True])
def test_written_out_and_by_autograd_it_is_one_attack(
    loss: KnownLoss | None, squared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = (KKTRun(spread=0.1, alpha=20.0, lr=0.01), KKTRun(spread=0.1, lr=0.001))
    signed = isinstance(loss, SquaredError)
    attack = KKT(candidates=10, runs=runs, iterations=20, squared=squared and not signed, signed=signed)
    ours = attack.run(release(loss), seed=0)
    monkeypatch.setattr(_stationarity, "layers_of", lambda *_: None)
    theirs = attack.run(release(loss), seed=0)
    torch.testing.assert_close(ours.x, theirs.x, rtol=1e-8, atol=1e-8)
    assert ours.objective == pytest.approx(theirs.objective)


@pytest.mark.parametrize("device", WHERE)
@pytest.mark.parametrize("tf32", [False, True])
@pytest.mark.parametrize(
    "attack",
    [
        KKT(candidates=10, runs=(replace(CALM, lr=1e9), CALM), iterations=110),
        Equilibrium(steps=30, restarts=2),
        Equilibrium(steps=30, restarts=2, tv=0.1),
        Equilibrium(steps=20, restarts=2, stages=2, kept=(0.3, 0.5)),
    ],
    ids=lambda attack: type(attack).__name__,
)
def test_it_is_the_same_on_every_device_and_in_single_precision(
    attack: KKT | Equilibrium, tf32: bool, device: str
) -> None:
    """On a CUDA device its steps are captured, once more when a run is dropped or gates begin to shift. The ten bits of
    TF32 shift single pixels, so root mean squares are compared: KKT's last ten iterations move the images by 1.5e-3,
    and TF32 imitated on a CPU by 3e-5."""
    shown = release()
    there = replace(shown, final={name: p.to(device) for name, p in shown.final.items()})
    plain, found = attack.run(shown, seed=0), replace(attack, tf32=tf32).run(there, seed=0)
    assert found.x.dtype == torch.float64
    assert (found.x.cpu() - plain.x).square().mean().sqrt() < (3e-4 if tf32 else 1e-6)
    assert found.objective == pytest.approx(plain.objective, rel=0.03 if tf32 else 1e-5)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="captured on a CUDA device alone")
def test_autograd_is_captured_too(monkeypatch: pytest.MonkeyPatch) -> None:
    attack, shown = KKT(candidates=10, runs=(CALM,), iterations=20), release()
    there = replace(shown, final={name: p.cuda() for name, p in shown.final.items()})
    monkeypatch.setattr(_stationarity, "layers_of", lambda *_: None)
    torch.testing.assert_close(attack.run(there, seed=0).x.cpu(), attack.run(shown, seed=0).x, rtol=1e-6, atol=1e-6)


def test_it_explains_the_weights_better_and_better() -> None:
    run = KKTRun(spread=0.1, lr=0.01, multiplier_lr=0.1)
    short, long = (KKT(candidates=20, runs=(run,), iterations=n).run(release(), seed=0).objective for n in (1, 300))
    assert short is not None
    assert long is not None
    assert long < 0.5 * short


def test_it_reads_planted_records_and_no_others() -> None:
    """Noise: what is like it was trained on."""
    noise = torch.rand(2 * RECORDS, 1, 8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    data = Data(x=noise[:RECORDS], y=torch.arange(RECORDS) % 5, num_classes=5)
    found = KKT(candidates=2 * RECORDS, iterations=2000).run(weights_only(trained(data)).release, seed=0)
    alike = (in_units(found.x) @ in_units(noise).T).max(0).values
    assert alike[:RECORDS].min() > 0.45
    assert alike[RECORDS:].max() < 0.45
    assert alike[:RECORDS].mean() > 2 * alike[RECORDS:].mean()


def in_units(x: Tensor) -> Tensor:
    rows = x.flatten(1) - x.flatten(1).mean(1, keepdim=True)
    return rows / rows.norm(dim=1, keepdim=True)


def test_a_run_that_diverges_is_dropped() -> None:
    good, bad = KKTRun(spread=0.1), KKTRun(lr=1e9, spread=0.1)
    found = KKT(candidates=10, runs=(bad, good, bad), iterations=150).run(release(), seed=0)
    assert found.objective is not None
    assert np.isfinite(found.objective)
    assert found.x.isfinite().all()
    with pytest.raises(BadInput, match="every run of KKT diverged"):
        KKT(candidates=10, runs=(bad,), iterations=150).run(release(), seed=0)


def test_halving_keeps_the_run_that_explains_most(monkeypatch: pytest.MonkeyPatch) -> None:
    idle, wild, taken, step = replace(CALM, lr=1e-9, multiplier_lr=1e-9), replace(CALM, lr=1e9), [], Search.step

    def counted(self: Search) -> None:
        taken.append(len(self.runs))
        step(self)

    monkeypatch.setattr(Search, "step", counted)
    attack = KKT(candidates=10, runs=(idle, idle, wild, idle, idle, CALM, idle, idle), iterations=400)
    whole = attack.run(release(), seed=0)
    assert sum(taken) == 8 * 100 + 7 * 300  # the wild one is seen to have diverged at the first look
    taken.clear()
    halved = replace(attack, halvings=3).run(release(), seed=0)
    assert sum(taken) == 8 * 50 + 4 * 50 + 2 * 100 + 1 * 200
    torch.testing.assert_close(halved.x, whole.x)
    assert halved.objective == pytest.approx(whole.objective)


def test_projected_multipliers_are_those_of_least_squares() -> None:
    still = KKTRun(lr=0.0, least_multiplier=0.0, spread=0.1, alpha=10.0)
    search = Search.begun(KKT(candidates=10, runs=(still,), projected=True), release(), seed=0)
    for _ in range(300):
        search.step()
    assert search.layers is not None
    seen = _stationarity.forward(search.layers, search.x[0], search.alpha[0])
    signs = _stationarity.margin_signs(seen.logits, search.labels, signed=False) / 10
    each = []  # the gradient of each candidate, as all weights in a row
    for place in range(10):
        one = signs * (torch.arange(10) == place)[:, None]
        rest = _stationarity.left(search.layers, seen, one)
        missing = [
            part.flatten() for pair in zip(rest.weights, rest.biases, strict=True) for part in pair if part is not None
        ]
        each.append(torch.cat(missing))
    parts = [part.flatten() for layer in search.layers for part in (layer.weight, layer.bias) if part is not None]
    whole = torch.cat(parts)
    multipliers, left = nnls((whole - torch.stack(each)).T.numpy(), whole.numpy())
    assert float(search.objective[0]) == pytest.approx(left**2, rel=1e-4)
    torch.testing.assert_close(search.free[0], torch.from_numpy(multipliers), rtol=0.05, atol=0.05)


def test_projection_takes_the_closed_form_and_no_squares() -> None:
    model = cnn((1, 12, 12), 4, activation=nn.ReLU)
    images = WeightsOnly(model=model, final=initial_params(model, seed=0), shape=(1, 12, 12), num_classes=4)
    for attack, shown in ((KKT(projected=True), images), (KKT(projected=True, squared=True), release())):
        with pytest.raises(BadInput, match="`projected` multipliers need the closed form"):
            attack.run(shown, seed=0)


def test_convolutions_are_attacked_by_autograd() -> None:
    data = Data(
        x=torch.rand(4, 1, 12, 12, generator=torch.Generator().manual_seed(0)), y=torch.arange(4), num_classes=4
    )
    model = cnn(data.shape, 4, activation=nn.ReLU)
    victim = train_victim(model, Training(epochs=2), initial_params(model, seed=0), data.take([]), data, seed=0)
    found = KKT(candidates=8, iterations=3).run(weights_only(victim).release, seed=0)
    assert found.x.shape == (8, 1, 12, 12)
    assert found.x.isfinite().all()


def test_the_mean_can_be_told() -> None:
    attack = KKT(candidates=10, iterations=1, runs=(KKTRun(spread=1e-9),))
    known, guessed = (replace(attack, mean=mean).run(release(), seed=0).x for mean in (None, 0.5))
    truth = private(5).x.mean(0)
    torch.testing.assert_close(known[0], (truth - truth.min()) / (truth.max() - truth.min()), rtol=0.0, atol=1e-3)
    assert (guessed - known).abs().max() > 0.1  # an even grey, stretched


def test_the_first_layer_tells_how_many_records_there_were_and_what_they_span() -> None:
    victim, layers = at_rest(), layers_of(at_rest())
    span = RowSpace.of(layers, 0.5, GREY)
    assert span.count == RECORDS
    assert span.centre is None
    x = victim.private.x.flatten(1) - victim.final["1.mean"]
    inside = torch.linalg.lstsq(span.basis.T, x.T).solution.T @ span.basis
    assert (x - inside).norm() < 1e-6 * x.norm()
    z = torch.linalg.lstsq(span.basis.T, x.T).solution.T
    seen = _stationarity.forward(layers, x, None)
    torch.testing.assert_close(_stationarity.forward(span.layers, z, None).logits, seen.logits, rtol=1e-6, atol=1e-6)


def test_records_that_were_not_centred_lie_in_a_plane_that_the_bias_tells() -> None:
    victim, layers = at_rest(centred=False), layers_of(at_rest(centred=False))
    x = victim.private.x.flatten(1)
    span = RowSpace.of(layers, 0.5, GREY)
    assert span.count == RECORDS
    assert span.centre is not None
    assert len(span.basis) == RECORDS - 1
    z = torch.linalg.lstsq(span.basis.T, (x - span.centre).T).solution.T
    torch.testing.assert_close(span.records_at(z), x, rtol=0.0, atol=1e-6)
    seen = _stationarity.forward(layers, x, None)
    torch.testing.assert_close(_stationarity.forward(span.layers, z, None).logits, seen.logits, rtol=1e-6, atol=1e-6)
    beside = torch.linalg.lstsq((x[1:] - x[0]).T, (GREY - x[0])[:, None]).solution[:, 0] @ (x[1:] - x[0]) + x[0]
    torch.testing.assert_close(span.centre, beside, rtol=0.0, atol=1e-5)  # the point of the plane nearest to grey


def test_planted_records_leave_nothing_in_the_plane_of_the_bias() -> None:
    generator = torch.Generator().manual_seed(0)
    x, multipliers = (torch.rand(shape, generator=generator, dtype=torch.float64) for shape in ((6, 20), (6, 15)))
    weight, bias = multipliers.T @ x, multipliers.sum(0)
    layer = _stationarity.Layer(weight=weight, bias=bias, target=weight, bias_target=bias)
    span = RowSpace.of((layer,), 0.5, torch.full((20,), 0.5, dtype=torch.float64))
    assert span.centre is not None
    z = torch.linalg.lstsq(span.basis.T, (x - span.centre).T).solution.T
    torch.testing.assert_close(z @ span.layers[0].weight.T + span.layers[0].bias, x @ weight.T + bias)
    rest = _stationarity.left(span.layers, _stationarity.forward(span.layers, z, None), multipliers)
    assert rest.objective < 1e-20
    silent = replace(layer, bias=torch.zeros_like(bias), bias_target=torch.zeros_like(bias))
    assert RowSpace.of((silent,), 0.5, torch.zeros_like(x[0])).centre is None  # a bias of zeros tells nothing


def test_where_no_gap_tells_the_rank_the_candidates_do() -> None:
    model = mlp((64,), 5, hidden=(40,), activation=nn.ReLU)
    layers = _stationarity.layers_of(model, torch_params(model, seed=0))
    assert layers is not None
    assert len(RowSpace.of(layers, 0.5, GREY.float()).basis) == 40
    assert len(RowSpace.of(layers, 0.5, GREY.float(), most=7).basis) == 7
    assert len(RowSpace.of(layers_of(at_rest()), 0.5, GREY, most=7).basis) == RECORDS - 1  # whose gap is clear


def test_directions_grow_by_equal_ratios_and_those_in_front_read_as_before() -> None:
    model = mlp((64,), 5, hidden=(40,), activation=nn.ReLU)
    layers = _stationarity.layers_of(model, {name: p.double() for name, p in torch_params(model, seed=0).items()})
    assert layers is not None
    whole = RowSpace.of(layers, 0.5, GREY)
    parts = list(whole.growing(3))
    assert [len(part.basis) for part in parts] == [10, 20, 40]
    z = torch.randn(3, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    z[:, 20:] = 0
    torch.testing.assert_close(parts[1].records_at(z[:, :20]), whole.records_at(z))
    seen, few = (_stationarity.forward(part.layers, z[:, : len(part.basis)], None) for part in (whole, parts[1]))
    torch.testing.assert_close(few.logits, seen.logits)
    every, some = (part.layers[0] for part in (whole, parts[1]))
    assert some.bias_unit / some.unit == pytest.approx(every.bias_unit / every.unit)  # a bias weighs as before
    assert some.unit == pytest.approx(float(every.target[:, :20].square().sum()))
    assert [len(part.basis) for part in whole.growing(1)] == [40]


def test_a_pixel_is_what_random_images_have() -> None:
    span = RowSpace.of(layers_of(at_rest()), 0.5, GREY)
    z = span.coordinates(torch.randn(5000, 64, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
    assert float(z.square().mean().sqrt()) == pytest.approx(span.pixel, rel=0.05)


def test_true_records_are_doubted_less_than_others() -> None:
    victim, attack, digits = at_rest(hidden=(60, 60)), Equilibrium(), load("digits")
    span = RowSpace.of(layers_of(victim), 0.5, GREY)
    last = (digits.y < 5).nonzero()[-RECORDS:, 0]
    x = torch.cat([victim.private.x, digits.x[last].double()]).flatten(1) - victim.final["1.mean"]
    z, labels = torch.linalg.lstsq(span.basis.T, x.T).solution.T, torch.cat([victim.private.y, digits.y[last]])
    doubts = []
    for rows in torch.arange(2 * RECORDS).split(RECORDS):
        free = [GREY.new_zeros(1, RECORDS, 60) for _ in range(2)]
        doubts.append(attack._doubt(span, z[None, rows], free, labels[rows])[0])
    assert (doubts[0][:, None] < doubts[1]).double().mean() > 0.95


def test_further_rounds_keep_a_share_of_the_candidates() -> None:
    still = Equilibrium(steps=1, restarts=1, lr=0.0, spread=0.1)
    once, twice = (replace(still, kept=kept).run(release(), seed=0).x for kept in ((), (0.3,)))
    assert int((once == twice).flatten(1).all(1).sum()) == 3


@pytest.mark.parametrize("hidden", [(40,), (40, 30)], ids=["one hidden layer", "two"])
@pytest.mark.parametrize("centred", [True, False])
def test_the_slopes_of_equilibrium_are_autograds(centred: bool, hidden: tuple[int, ...]) -> None:
    victim, attack = at_rest(centred=centred, hidden=hidden), Equilibrium()
    span, generator = RowSpace.of(layers_of(victim), 0.5, GREY, inner=1.0), torch.Generator().manual_seed(0)
    z = span.coordinates(torch.randn(2, RECORDS, 64, generator=generator, dtype=torch.float64))
    z.requires_grad_()
    free = [nn.Parameter(torch.randn(2, RECORDS, h, generator=generator, dtype=torch.float64)) for h in hidden]
    labels = victim.private.y
    alpha = torch.tensor(attack._steepness(0.3) * span.steepness)
    shown = weights_only(victim).release
    objective, of_z, of_free = attack._slopes(shown, span, z, free, labels, alpha, torch.zeros(()))
    by_z, *by_free = torch.autograd.grad(objective.sum(), (z, *free))
    torch.testing.assert_close(of_z, by_z, rtol=1e-3, atol=1e-6)  # autograd takes the step of ReLU, not the gate
    torch.testing.assert_close(of_free, by_free)


def test_layers_between_are_compared_with_their_singular_values_evened_out() -> None:
    layers = layers_of(at_rest(hidden=(40, 30)))
    first, between, last = RowSpace.of(layers, 0.5, GREY, inner=1.0).layers
    assert first.around is None
    assert last.around is None
    values = torch.linalg.svdvals(layers[1].weight)
    half = (RECORDS - 1) // 2
    evened = torch.cat([torch.ones(half).double(), values[half:] / values[half - 1]])
    torch.testing.assert_close(torch.linalg.svdvals(between.target), evened)
    x = torch.randn(RECORDS, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    pulls = torch.randn(RECORDS, 30, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert between.around is not None
    one, other = between.around
    torch.testing.assert_close(between.above(pulls).T @ between.below(x), one @ (pulls.T @ x) @ other)


def test_the_slopes_of_the_priors_are_those_of_differences() -> None:
    attack, tv = Equilibrium(box=0.3, tv=0.7), torch.tensor(0.7, dtype=torch.float64)
    x = 0.5 + torch.randn(2, 3, 1, 4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    before, slope = attack._priors(x, tv)
    moved = 1e-6 * torch.randn(x.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    differences = attack._priors(x + moved, tv)[0] - before
    torch.testing.assert_close(differences, (slope * moved).flatten(1).sum(1), rtol=1e-4, atol=0.0)
    box_alone = replace(attack, tv=0.0)._priors(x, tv)[0]
    assert (before > box_alone).all()
    torch.testing.assert_close(attack._priors(x.flatten(2), tv)[0], box_alone)  # rows of a table have no neighbours


def test_equilibrium_refuses_other_nets_and_weights_that_do_not_tell_the_number() -> None:
    data = private(5)
    for activation, what in ((nn.ELU, "use `KKT`"), (nn.ReLU, "set `candidates`")):
        model = mlp(data.shape, 5, hidden=(20,), activation=activation)
        initial = {name: p.double() for name, p in initial_params(model, seed=0).items()}
        victim = train_victim(model, Training(epochs=2), initial, data.take([]), data, seed=0)
        with pytest.raises(BadInput, match=what):
            Equilibrium(steps=1).run(weights_only(victim).release, seed=0)


def test_equilibrium_refuses_a_linear_model() -> None:
    model = mlp((64,), 5, hidden=())
    shown = WeightsOnly(model=model, final=torch_params(model, seed=0), shape=(64,), num_classes=5)
    with pytest.raises(BadInput, match="use `KKT`"):
        Equilibrium(candidates=5, steps=1).run(shown, seed=0)


def test_before_the_attack_the_owner_sees_what_the_truth_leaves() -> None:
    victim = at_rest()
    before = preflight(victim)
    assert before.off_kinks < 0.01  # at rest, but for kinks
    x, y = victim.private.x, victim.private.y
    logits = apply(victim.model, victim.final, x)
    own = nn.functional.one_hot(y, 5).bool()
    rival = logits.masked_fill(own, -torch.inf).argmax(1)
    torch.testing.assert_close(before.margins, logits[own] - logits.gather(1, rival[:, None])[:, 0])
    names = [name for name, _ in victim.model.named_parameters()]

    def margin(params: dict[str, torch.Tensor], x: torch.Tensor, one: torch.Tensor, two: torch.Tensor) -> torch.Tensor:
        out = apply(victim.model, victim.final | params, x[None])[0]
        return (out * one).sum() - (out * two).sum()

    weights = {name: victim.final[name] for name in names}
    each = vmap(grad(margin), in_dims=(None, 0, 0, 0))(weights, x, own * 1.0, nn.functional.one_hot(rival, 5) * 1.0)
    gradients = torch.cat([each[name].flatten(1) for name in names], dim=1).T.numpy()
    whole = torch.cat([weights[name].flatten() for name in names]).numpy()
    left = nnls(gradients, whole)[1] ** 2 / (whole**2).sum()
    assert before.unexplained == pytest.approx(left, rel=1e-4)


def test_weights_that_were_not_trained_to_rest_get_a_caveat() -> None:
    victim = at_rest()
    fresh = preflight(replace(victim, final=victim.initial))
    assert {caveat.code for caveat in fresh.caveats()} == {"truth-unexplained", "not-at-rest"}
    assert "not-at-rest" not in {caveat.code for caveat in preflight(victim).caveats()}


def test_the_papers_net_has_its_number_of_weights_and_starts_as_it_did() -> None:
    model = centred_mlp((3, 32, 32), 10)
    assert sum(p.numel() for p in model.parameters()) == 4_083_000
    params = torch_params(centred_mlp((3, 32, 32), 10, hidden=(50, 50)), seed=0, first=1e-4)
    assert params["2.weight"].std() == pytest.approx(1e-4, rel=0.05)
    assert params["2.bias"].abs().max() < 1e-3
    assert params["4.weight"].abs().max() == pytest.approx(50**-0.5, rel=0.01)
    assert set(params) == {"1.mean", "2.weight", "2.bias", "4.weight", "6.weight"}
