"""What is captured on a CUDA device: a step that makes nothing on the host and asks for no number, and the same end."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from stopping import stopped
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from remanence import SGD, Adam, Data, FineTuned, SquaredError, Training, train_victim
from remanence.attacks import L2, Cosine, Linearised, SimuDy
from remanence.attacks._convolved import Convolved
from remanence.attacks._gates import Gates
from remanence.attacks._simulation import Coordinates, Simulation, Whole
from remanence.attacks._spanned import Spanned
from remanence.attacks.finetuning.linearised import pulls
from remanence.engine.cuda import precision
from remanence.models import initial_params, mlp, resnet, vgg
from remanence.releases import fine_tuned
from remanence.search import solver as _search
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
WAYS = ["written in the records", "whitened, with gates", "written out", "made again", "gated and cut", *NETS]
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


def whitened(there: FineTuned, training: Training, y: Tensor) -> Coordinates:
    spanned = Spanned.of(there.model, training, there.initial, there.final, y, L2())
    spanned = spanned and spanned.whitened(0.5, shrunk=0.9)
    assert spanned is not None
    gates = Gates.of((2.0, 40.0), there.final["1.weight"].new_ones(()))
    gates.sharpen(0.5)
    return replace(spanned, gates=gates)


@in_segments
@by_training
@pytest.mark.parametrize("way", WAYS)
def test_a_step_of_simudy_stays_on_the_device(digits: Data, way: str, training: Training, segment: int) -> None:
    written = {"written out": NETS["resnet"], "made again": NETS["vgg"], "gated and cut": NETS["resnet"]}
    there = moved(release(digits, (NETS | written).get(way, NETS["mlp"]), training), "meta")
    batches = tuple(b if b is None else b.to("meta") for b in training.batches(4, 0))
    x, y = torch.rand(4, *there.shape, device="meta", dtype=torch.float64), torch.zeros(4, device="meta").long()
    coordinates: Coordinates | None = Whole(
        model=there.model, training=training, initial=there.initial, final=there.final, y=y, distance=Cosine()
    )
    if way == "written in the records":
        coordinates = Spanned.of(there.model, training, there.initial, there.final, y, Cosine())
    if way in written:
        convolved = Convolved.of(there.model, training, there.initial, there.final, y, Cosine(), shape=there.shape)
        assert convolved is not None
        coordinates = replace(convolved, kept=way != "made again")
    if way == "gated and cut":
        assert isinstance(coordinates, Convolved)
        coordinates, training = coordinates.gated((2.0, 40.0), x), replace(training, clip=1.0)
    if way == "whitened, with gates":
        coordinates = whitened(there, training, y)
    assert coordinates is not None
    simulation = Simulation(training=training, coordinates=coordinates, batches=batches, segment=segment)
    x.requires_grad_()
    with OnTheDevice():
        (slope,) = torch.autograd.grad(simulation(x) + total_variation(x), x)
    assert slope.shape == x.shape


@pytest.mark.parametrize("loss", [CrossEntropy(), SquaredError(values=(-2.0, 3.0))], ids=repr)
def test_a_step_of_linearised_stays_on_the_device(digits: Data, loss: Loss) -> None:
    there = moved(release(digits, NETS["resnet"], FULL), "meta")
    names = [name for name, _ in there.model.named_parameters()]
    x, y = torch.rand(4, *there.shape, device="meta", dtype=torch.float64), torch.zeros(4, device="meta").long()
    multipliers = torch.rand(2, 4, device="meta", dtype=torch.float64)

    def step() -> Tensor:
        return pulls(there.model, loss, names, (there.final, there.initial), multipliers, x.requires_grad_(), y).sum()

    step()  # a first step makes what is made once
    with OnTheDevice():
        (slope,) = torch.autograd.grad(step(), x)
    assert slope.shape == x.shape


@on_cuda
@in_segments
@by_training
@pytest.mark.parametrize("net", NETS.values(), ids=NETS)
def test_captured_simudy_is_simudy(
    digits: Data, net: Net, training: Training, segment: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = moved(release(digits, net, training), "cuda")
    attack = SimuDy(candidates=4, steps=20, segment=segment, optimizer=Adam(lr=0.01), octaves=2)
    captured = attack.run(there, seed=0)
    monkeypatch.setattr(_search, "replayed", lambda step, _: step)
    torch.testing.assert_close(captured.x, attack.run(there, seed=0).x, rtol=1e-6, atol=1e-6)


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
        written = Convolved.of(shown.model, training, initial, final, y, Cosine(), shape=shown.shape)
        assert written is not None
        assert written.net.order.form == (torch.channels_last if place == "cuda" else torch.contiguous_format)
        batches = tuple(b if b is None else b.to(place) for b in training.batches(4, 0))
        simulation = Simulation(training=training, coordinates=written, batches=batches, segment=4)
        with precision(tf32=False):
            found.append(torch.autograd.grad(simulation(x), x)[0].cpu().double())
    assert float((found[0] - found[1]).norm() / found[1].norm()) < 1e-3


@on_cuda
@in_segments
@by_training
@pytest.mark.parametrize(("net", "own"), [("mlp", {"whitening": 0.5}), ("resnet", {"clip": 10.0})])
def test_captured_gates_grow_steep_as_they_do_step_by_step(
    digits: Data, training: Training, segment: int, net: str, own: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    there = moved(release(digits, NETS[net], training), "cuda")
    attack = SimuDy(candidates=4, steps=20, segment=segment, distance=L2(), sharpness=(2.0, 40.0), **own)
    captured = attack.run(there, seed=0)
    monkeypatch.setattr(_search, "replayed", lambda step, _: step)
    eager = attack.run(there, seed=0)
    torch.testing.assert_close(captured.x, eager.x, rtol=1e-6, atol=1e-6)
    assert captured.objective == pytest.approx(eager.objective, rel=1e-6)


@on_cuda
def test_a_captured_search_goes_on_where_it_was(digits: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = moved(release(digits, NETS["mlp"], FULL), "cuda")
    attack = SimuDy(candidates=4, steps=20, optimizer=Adam(lr=0.01), octaves=2)
    whole, kept = attack.run(there, seed=0), replace(attack, checkpoints=tmp_path)

    with stopped(monkeypatch, after=7):
        kept.run(there, seed=0)
    torch.testing.assert_close(kept.run(there, seed=0).x, whole.x, rtol=1e-6, atol=1e-6)


@on_cuda
@pytest.mark.parametrize("net", NETS.values(), ids=NETS)
def test_captured_linear_theories_are_the_same(digits: Data, net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    there = moved(release(digits, net, FULL), "cuda")
    attack = Linearised(candidates=4, steps=20, optimizer=Adam(lr=0.01))
    captured = attack.run(there, seed=0)
    monkeypatch.setattr(_search, "replayed", lambda step, _: step)
    torch.testing.assert_close(captured.x, attack.run(there, seed=0).x, rtol=1e-6, atol=1e-6)
