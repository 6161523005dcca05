"""What is captured on a CUDA device: a step that makes nothing on the host and asks for no number, and the same end."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from remanence import SGD, Adam, Data, FineTuned, SquaredError, Training, train_victim
from remanence.attacks import L2, Cosine, Linearised, SimuDy, Simulation, Surrogate, Whitening, with_search
from remanence.attacks.finetuning.linearised import weighted_gradients
from remanence.engine.cuda import precision
from remanence.engine.surrogate import SurrogateState
from remanence.engine.unroll import Dynamics, GenericDynamics, Unrolled
from remanence.engine.unroll_cnn import CNNDynamics
from remanence.engine.unroll_mlp import SpanDynamics
from remanence.models import initial_params, mlp, resnet, vgg
from remanence.releases import fine_tuned
from remanence.search import solver
from remanence.search.distances import between
from remanence.search.priors import total_variation
from remanence.training import CrossEntropy, Loss

Net = Callable[[Data], nn.Module]
FULL = Training(optimizer=SGD(lr=0.1), epochs=4)
BATCHES = Training(optimizer=SGD(lr=0.05, momentum=0.9), epochs=2, batch_size=2, weight_decay=0.01)
NETS: dict[str, Net] = {
    "mlp": lambda data: mlp(data.shape, 10, hidden=(16,), activation=nn.ReLU),
    "resnet": lambda data: resnet(data.shape, 10, blocks=(1, 1), width=4),
    "vgg": lambda data: vgg(data.shape, 10, blocks=(1, 1), width=4),
}
KINDS = ["span", "span, basis, surrogate", "cnn", "cnn, recomputed", "cnn, surrogate, clipped", *NETS]
on_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="captured on a CUDA device alone")
in_segments = pytest.mark.parametrize("segment", [4, 1], ids=["one graph", "step by step"])
by_training = pytest.mark.parametrize("training", [FULL, BATCHES], ids=["full batch", "mini-batches"])


class OnTheDevice(TorchDispatchMode):
    """Refuses whatever makes a tensor elsewhere than on the device `meta`, which has no numbers to ask for."""

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        assert all(t.device.type == "meta" for t in tree_leaves(out) if isinstance(t, Tensor)), f"{func} on the host"
        return out


def release(digits: Data, net: Net, training: Training) -> FineTuned:
    data = digits.take(slice(0, 4)).to("cpu", torch.float64)
    model = net(data)
    initial = {name: p.double() for name, p in initial_params(model, seed=0).items()}
    return fine_tuned(train_victim(model, training, initial, data.take([]), data, seed=0)).release


def moved(shown: FineTuned, device: str) -> FineTuned:
    initial, final = ({name: p.to(device) for name, p in params.items()} for params in (shown.initial, shown.final))
    return replace(shown, initial=initial, final=final)


def dynamics_for(kind: str, there: FineTuned, training: Training, x: Tensor) -> Dynamics:
    endpoints = there.model, training, there.initial, there.final
    if kind in NETS:
        names = tuple(name for name, _ in there.model.named_parameters())
        return GenericDynamics(
            model=there.model, training=training, initial=there.initial, final=there.final, trained=names
        )
    if "span" in kind:
        span = SpanDynamics.from_release(*endpoints, records=4, shape=there.shape)
        span = span and span.in_basis(4, decay=0.9) if "basis" in kind else span
        state = SurrogateState.initial(Surrogate(), x.new_ones(()))
        return replace(span, surrogate=state) if "surrogate" in kind else span
    cnn = CNNDynamics.from_release(*endpoints, records=4, shape=there.shape)
    cnn = cnn.with_surrogate(Surrogate(), x) if "surrogate" in kind else cnn
    return replace(cnn, store_tapes="recomputed" not in kind)


@pytest.mark.slow
@in_segments
@by_training
@pytest.mark.parametrize("kind", KINDS)
def test_a_step_of_simudy_stays_on_the_device(digits: Data, kind: str, training: Training, segment: int) -> None:
    net = NETS.get(kind, NETS["resnet" if "cnn" in kind else "mlp"])
    there = moved(release(digits, net, training), "meta")
    batches = tuple(b if b is None else b.to("meta") for b in training.batches(4, 0))
    x, y = torch.rand(4, *there.shape, device="meta", dtype=torch.float64), torch.zeros(4, device="meta").long()
    dynamics = dynamics_for(kind, there, training, x)
    training = replace(training, clip=1.0) if "clipped" in kind else training
    unrolled = Unrolled(training=training, dynamics=dynamics, batches=batches, segment=segment)
    x.requires_grad_()
    with OnTheDevice():
        value = between(Cosine(), dynamics.compare(*unrolled(x, y))) + total_variation(x)
        (grad,) = torch.autograd.grad(value, x)
    assert grad.shape == x.shape


@pytest.mark.slow
@pytest.mark.parametrize("loss", [CrossEntropy(), SquaredError(values=(-2.0, 3.0))], ids=repr)
def test_a_step_of_linearised_stays_on_the_device(digits: Data, loss: Loss) -> None:
    there = moved(release(digits, NETS["resnet"], FULL), "meta")
    names = [name for name, _ in there.model.named_parameters()]
    x, y = torch.rand(4, *there.shape, device="meta", dtype=torch.float64), torch.zeros(4, device="meta").long()
    multipliers = torch.rand(2, 4, device="meta", dtype=torch.float64)

    def step() -> Tensor:
        return weighted_gradients(
            there.model, loss, names, (there.final, there.initial), multipliers, x.requires_grad_(), y
        ).sum()

    step()  # a first step makes what is made once
    with OnTheDevice():
        (grad,) = torch.autograd.grad(step(), x)
    assert grad.shape == x.shape


PLAIN = SimuDy(candidates=4, whitening=None, surrogate=None)
SMOOTH = SimuDy(candidates=4, distance=L2(), whitening=None, surrogate=Surrogate())
SEARCHES: dict[str, tuple[str, SimuDy | Linearised]] = {
    **{net: (net, with_search(PLAIN, steps=20, optimizer=Adam(lr=0.01), scales=2)) for net in NETS},
    **{f"linearised {net}": (net, with_search(Linearised(candidates=4), steps=20)) for net in NETS},
    "mlp, surrogate": ("mlp", with_search(replace(SMOOTH, whitening=Whitening()), steps=20)),
    "resnet, surrogate": ("resnet", with_search(replace(SMOOTH, simulation=Simulation(clip=10.0)), steps=20)),
}


@on_cuda
@in_segments
@by_training
@pytest.mark.parametrize(("net", "attack"), SEARCHES.values(), ids=SEARCHES)
def test_a_captured_search_is_that_of_single_steps(
    digits: Data,
    net: str,
    attack: SimuDy | Linearised,
    training: Training,
    segment: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    there = moved(release(digits, NETS[net], training), "cuda")
    if isinstance(attack, SimuDy):
        attack = replace(attack, simulation=replace(attack.simulation, segment=segment))
    captured = attack.run(there, seed=0)
    monkeypatch.setattr(solver, "replayed", lambda step, _: step)
    eager = attack.run(there, seed=0)
    torch.testing.assert_close(captured.x, eager.x, rtol=1e-6, atol=1e-6)
    assert captured.objective == pytest.approx(eager.objective, rel=1e-6)


@on_cuda
@by_training
@pytest.mark.parametrize("net", [NETS["resnet"], NETS["vgg"]], ids=["resnet", "vgg"])
def test_slopes_with_channels_last_are_those_of_the_host(digits: Data, net: Net, training: Training) -> None:
    shown, found = release(digits, net, training), []
    start = torch.rand(4, *shown.shape, generator=torch.Generator().manual_seed(0))
    for place, dtype in (("cuda", torch.float32), ("cpu", torch.float64)):
        initial, final = (
            {name: p.to(place, dtype) for name, p in params.items()} for params in (shown.initial, shown.final)
        )
        y, x = torch.arange(4, device=place), start.to(place, dtype).requires_grad_()
        dynamics = CNNDynamics.from_release(shown.model, training, initial, final, records=4, shape=shown.shape)
        assert dynamics.net.layout.memory_format == (
            torch.channels_last if place == "cuda" else torch.contiguous_format
        )
        batches = tuple(b if b is None else b.to(place) for b in training.batches(4, 0))
        unrolled = Unrolled(training=training, dynamics=dynamics, batches=batches, segment=4)
        with precision(tf32=False):
            value = between(Cosine(), dynamics.compare(*unrolled(x, y)))
            found.append(torch.autograd.grad(value, x)[0].cpu().double())
    assert float((found[0] - found[1]).norm() / found[1].norm()) < 1e-3


@on_cuda
def test_a_captured_search_resumes_where_it_was(digits: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = moved(release(digits, NETS["mlp"], FULL), "cuda")
    _, attack = SEARCHES["mlp"]
    stored, save = with_search(attack, checkpoints=tmp_path), solver.checkpoints.save

    def stopping(path: Path, optimizer: torch.optim.Optimizer, restarts: Tensor, done: int) -> None:
        save(path, optimizer, restarts, done)
        if done == 7:
            raise KeyboardInterrupt

    with monkeypatch.context() as often:
        often.setattr(solver, "_SAVE_EVERY", 0.0)
        often.setattr(solver.checkpoints, "save", stopping)
        with pytest.raises(KeyboardInterrupt):
            stored.run(there, seed=0)
    torch.testing.assert_close(stored.run(there, seed=0).x, attack.run(there, seed=0).x, rtol=1e-6, atol=1e-6)
