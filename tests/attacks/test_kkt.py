"""KKT: closed form and autograd, devices, diverged runs, halving, multipliers, and what its owner can check before."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from refusals import refused
from scipy.optimize import nnls
from stationary import RECORDS, private, release, stationary, trained, without_decay
from torch import Tensor, nn
from torch.func import grad, vmap

from remanence import Adam, CrossEntropy, Data, Logistic, SquaredError, Training, WeightsOnly, train_victim
from remanence.attacks import KKT, ImagePrior, KKTRun, Preprocessing, Rounds, Stationarity, with_search
from remanence.attacks.weights import residual
from remanence.attacks.weights.kkt import ExplainedWeights, Multipliers
from remanence.diagnostics.preflight import run_preflight
from remanence.errors import Diverged
from remanence.models import apply, centred_mlp, cnn, initial_params, torch_params
from remanence.releases import weights_only
from remanence.releases.victim import fit_of
from remanence.search.solver import Stack
from remanence.training import KnownLoss

CALM = KKTRun(lr=2e-4, multiplier_lr=0.01, init_std=0.1)  # rounding does not grow
WILD = replace(CALM, lr=1e9)
WHERE = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])


@pytest.mark.parametrize("loss", [None, Logistic(), SquaredError()], ids=repr)
@pytest.mark.parametrize("multipliers", ["penalised", "squared"])
def test_in_closed_form_and_by_autograd_it_is_one_attack(
    loss: KnownLoss | None, multipliers: Multipliers, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = (KKTRun(init_std=0.1, alpha=20.0, lr=0.01), KKTRun(init_std=0.1, lr=0.001))
    signed = isinstance(loss, SquaredError)
    attack = with_search(KKT(candidates=10, runs=runs, multipliers=multipliers, signed=signed), steps=20)
    ours = attack.run(release(loss), seed=0)
    monkeypatch.setattr(residual, "layers_of", lambda *_: None)
    theirs = attack.run(release(loss), seed=0)
    torch.testing.assert_close(ours.x, theirs.x, rtol=1e-8, atol=1e-8)
    assert ours.objective == pytest.approx(theirs.objective)


@pytest.mark.parametrize("device", WHERE)
@pytest.mark.parametrize("tf32", [False, True])
@pytest.mark.parametrize(
    "attack",
    [
        with_search(KKT(candidates=10, runs=(WILD, CALM)), steps=110),
        with_search(Stationarity(), steps=30),
        with_search(Stationarity(prior=ImagePrior(box=0.1, total_variation=0.1)), steps=30),
        with_search(Stationarity(rounds=Rounds(levels=2, keep_fractions=(0.3, 0.5))), steps=20),
    ],
    ids=lambda attack: type(attack).__name__,
)
def test_it_is_the_same_on_every_device_and_in_single_precision(
    attack: KKT | Stationarity, tf32: bool, device: str
) -> None:
    """On a CUDA device its steps are captured, once more when a run is dropped. TF32 shifts single pixels, so root mean
    squares are compared: KKT's last ten steps move the images by 1.5e-3, and TF32 imitated on a CPU by 3e-5."""
    shown = release()
    there = replace(shown, final={name: p.to(device) for name, p in shown.final.items()})
    plain, found = attack.run(shown, seed=0), with_search(attack, tf32=tf32).run(there, seed=0)
    assert found.x.dtype == torch.float64
    assert (found.x.cpu() - plain.x).square().mean().sqrt() < (3e-4 if tf32 else 1e-6)
    assert found.objective == pytest.approx(plain.objective, rel=0.03 if tf32 else 1e-5)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="captured on a CUDA device alone")
def test_autograd_is_captured_too(monkeypatch: pytest.MonkeyPatch) -> None:
    attack, shown = with_search(KKT(candidates=10, runs=(CALM,)), steps=20), release()
    there = replace(shown, final={name: p.cuda() for name, p in shown.final.items()})
    monkeypatch.setattr(residual, "layers_of", lambda *_: None)
    torch.testing.assert_close(attack.run(there, seed=0).x.cpu(), attack.run(shown, seed=0).x, rtol=1e-6, atol=1e-6)


def test_it_explains_the_weights_better_and_better() -> None:
    attack = KKT(candidates=20, runs=(KKTRun(init_std=0.1, lr=0.01, multiplier_lr=0.1),))
    short, long = (with_search(attack, steps=n).run(release(), seed=0).objective for n in (1, 300))
    assert short is not None
    assert long < 0.5 * short


@pytest.mark.slow
def test_it_reads_planted_records_and_no_others() -> None:
    """Noise: what is like it was trained on."""
    noise = torch.rand(2 * RECORDS, 1, 8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    data = Data(x=noise[:RECORDS], y=torch.arange(RECORDS) % 5, num_classes=5)
    found = with_search(KKT(candidates=2 * RECORDS), steps=2000).run(weights_only(trained(data)).release, seed=0)
    alike = (in_units(found.x) @ in_units(noise).T).max(0).values
    assert alike[:RECORDS].min() > 0.45
    assert alike[RECORDS:].max() < 0.45
    assert alike[:RECORDS].mean() > 2 * alike[RECORDS:].mean()


def in_units(x: Tensor) -> Tensor:
    rows = x.flatten(1) - x.flatten(1).mean(1, keepdim=True)
    return rows / rows.norm(dim=1, keepdim=True)


def test_a_run_that_diverges_is_dropped_with_a_warning() -> None:
    good = KKTRun(init_std=0.1)
    with pytest.warns(RuntimeWarning, match="2 of 3 restarts"):
        found = with_search(KKT(candidates=10, runs=(WILD, good, WILD)), steps=150).run(release(), seed=0)
    assert np.isfinite(found.objective)
    assert found.x.isfinite().all()
    with pytest.raises(Diverged):
        with_search(KKT(candidates=10, runs=(WILD,)), steps=150).run(release(), seed=0)


def test_halving_keeps_the_run_that_explains_most() -> None:
    idle = replace(CALM, lr=1e-9, multiplier_lr=1e-9)
    attack = with_search(KKT(candidates=10, runs=(idle, WILD, idle, CALM, idle, idle)), steps=400)
    total, halved = (with_search(attack, halvings=n).run(release(), seed=0) for n in (0, 3))
    torch.testing.assert_close(halved.x, total.x)
    assert halved.objective == pytest.approx(total.objective)


def test_projected_multipliers_are_those_of_least_squares() -> None:
    still = KKTRun(lr=0.0, min_multiplier=0.0, init_std=0.1, alpha=10.0)
    attack = KKT(candidates=10, runs=(still,), multipliers="projected")
    objective = ExplainedWeights.from_release(attack, release(), seed=0)
    stack = Stack(objective, objective.init(), attack.search)
    for _ in range(300):
        stack.step()
    activations = residual.forward(objective.layers, stack.values["x"][0], objective.alpha[0])
    signs = residual.margin_signs(activations.logits, objective.labels, signed=False) / 10
    gradients, weights = [], [part for layer in objective.layers for part in (layer.weight, layer.bias)]
    target = torch.cat([part.flatten() for part in weights if part is not None])
    for index in range(10):
        left = residual.unexplained(objective.layers, activations, signs * (torch.arange(10) == index)[:, None])
        parts = [part for pair in zip(left.weights, left.biases, strict=True) for part in pair if part is not None]
        gradients.append(target - torch.cat([part.flatten() for part in parts]))
    multipliers, norm = nnls(torch.stack(gradients).T.numpy(), target.numpy())
    assert float(stack.value[0]) == pytest.approx(norm**2, rel=1e-4)
    found = stack.values["multipliers"][0]
    torch.testing.assert_close(found, torch.from_numpy(multipliers), rtol=0.05, atol=0.05)


def test_settings_that_do_not_fit_are_refused() -> None:
    model = cnn((1, 12, 12), 4, activation=nn.ReLU)
    images = WeightsOnly(model=model, final=initial_params(model, seed=0), shape=(1, 12, 12), num_classes=4)
    with refused("unsupported-model", "multipliers"):
        KKT(multipliers="projected").run(images, seed=0)
    with refused("unknown-name", "multipliers"):
        KKT(multipliers="other")
    with refused("empty", "runs"):
        KKT(runs=())
    with refused("wrong-type", "optimizer"):
        with_search(KKT(candidates=10), optimizer=Adam()).run(release(), seed=0)


def test_convolutions_are_attacked_by_autograd() -> None:
    data = Data(
        x=torch.rand(4, 1, 12, 12, generator=torch.Generator().manual_seed(0)), y=torch.arange(4), num_classes=4
    )
    model = cnn(data.shape, 4, activation=nn.ReLU)
    victim = train_victim(model, Training(epochs=2), initial_params(model, seed=0), data.take([]), data, seed=0)
    found = with_search(KKT(candidates=8), steps=3).run(weights_only(victim).release, seed=0)
    assert found.x.shape == (8, 1, 12, 12)
    assert found.x.isfinite().all()


def test_the_mean_can_be_told() -> None:
    attack = with_search(KKT(candidates=10, runs=(KKTRun(init_std=1e-9),)), steps=1)
    known, guessed = (
        replace(attack, preprocessing=Preprocessing(mean=mean)).run(release(), seed=0).x for mean in (None, 0.5)
    )
    truth = private(5).x.mean(0)
    torch.testing.assert_close(known[0], (truth - truth.min()) / (truth.max() - truth.min()), rtol=0.0, atol=1e-3)
    assert (guessed - known).abs().max() > 0.1  # an even grey, stretched


def test_before_the_attack_the_owner_sees_what_the_truth_leaves() -> None:
    victim = stationary()
    before = run_preflight(victim)
    assert before.first_layer_residual < 0.01  # at rest, but for kinks
    x, y = victim.private.x, victim.private.y
    logits = apply(victim.model, victim.final, x)
    own = nn.functional.one_hot(y, 5).bool()
    rival = logits.masked_fill(own, -torch.inf).argmax(1)
    torch.testing.assert_close(before.margins, logits[own] - logits.gather(1, rival[:, None])[:, 0])
    margins = sorted(before.margins.tolist())
    median = margins[(len(margins) - 1) // 2]
    assert before.on_margin == pytest.approx(sum(0.9 * median <= m <= 1.1 * median for m in margins) / len(margins))
    assert 0 < before.on_margin <= 1
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


@pytest.mark.slow
@pytest.mark.parametrize("loss", [CrossEntropy(), Logistic()], ids=repr)
def test_without_decay_the_truth_explains_weights_whose_loss_is_below_any_number(loss: KnownLoss) -> None:
    victim = without_decay(loss, epochs=2000)
    assert float(fit_of(victim).after) == 0.0
    assert run_preflight(victim).first_layer_residual < 0.05


@pytest.mark.parametrize(
    "attack",
    [
        with_search(KKT(candidates=RECORDS), steps=5),
        with_search(Stationarity(candidates=RECORDS, loss=Logistic()), steps=5),
    ],
)
def test_the_length_of_the_weights_can_be_taken_off(attack: KKT | Stationarity) -> None:
    victim = stationary(Logistic())
    longer = {name: p if name == "1.mean" else 3 * p for name, p in victim.final.items()}
    shown = [weights_only(each).release for each in (victim, replace(victim, final=longer))]
    scaled = replace(attack, preprocessing=Preprocessing(norm=2.0))
    one, other = (scaled.run(each, seed=0).x for each in shown)
    torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)
    one, other = (attack.run(each, seed=0) for each in shown)
    assert one.objective != pytest.approx(other.objective, rel=1e-9)
    with refused("unsupported-model", "norm"):
        scaled.run(weights_only(stationary(centred=False)).release, seed=0)


def test_weights_that_were_not_trained_to_rest_get_a_caveat() -> None:
    victim = stationary()
    fresh = run_preflight(replace(victim, final=victim.initial))
    assert {caveat.code for caveat in fresh.caveats()} == {"truth-unexplained", "not-at-rest"}
    assert "not-at-rest" not in {caveat.code for caveat in run_preflight(victim).caveats()}


def test_the_papers_net_has_its_number_of_weights_and_starts_as_it_did() -> None:
    model = centred_mlp((3, 32, 32), 10)
    assert sum(p.numel() for p in model.parameters()) == 4_083_000
    params = torch_params(centred_mlp((3, 32, 32), 10, hidden=(50, 50)), seed=0, first_std=1e-4)
    assert params["2.weight"].std() == pytest.approx(1e-4, rel=0.05)
    assert params["2.bias"].abs().max() < 1e-3
    assert params["4.weight"].abs().max() == pytest.approx(50**-0.5, rel=0.01)
    assert set(params) == {"1.mean", "2.weight", "2.bias", "4.weight", "6.weight"}
