"""Epochs per second of long full-batch training of the victims of Buzaglo et al. (2023): in the span of the records,
one model and several stacked, against the plain loop.

    python benchmarks/span.py                                # 500 records, 3072-1000-1000, float64
    python benchmarks/span.py --records 50 --pixels 192 --width 100 --count 100

An epoch takes 2n (3 D H + 3 H²) FLOP with n records, D pixels and width H in the plain loop, and 2n (n H + 3 H²) in the
span. Both are captured graphs on a CUDA device. Before timing, the weights are compared.

Measured on one H200: 7,500 epochs/s of one model in the span, a million epochs in 130 s.
"""

import argparse
import time
from collections.abc import Callable

import torch

from remanence import SGD, CrossEntropy, Data, Logistic, Training
from remanence.engine import train
from remanence.engine.span import SpanTraining
from remanence.models import centred_mlp, torch_params
from remanence.training import KnownLoss
from remanence.types import Params


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=500)
    parser.add_argument("--pixels", type=int, default=3072)
    parser.add_argument("--width", type=int, default=1000)
    parser.add_argument("--stack", type=int, nargs="*", default=[1, 3], help="models at once")
    parser.add_argument("--count", type=int, help="epochs timed of each way: 4,000 on a CUDA device, 40 elsewhere")
    given = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    count = given.count or (4000 if device == "cuda" else 40)
    print(f"{device}, {given.records} records, {given.pixels}-{given.width}-{given.width}, float64, epochs/s")
    for loss, outputs in ((Logistic(), 1), (CrossEntropy(), 10)):
        compare(loss, outputs, given, device, count)


def compare(loss: KnownLoss, outputs: int, given: argparse.Namespace, device: str, count: int) -> None:
    """Time both ways with one loss."""
    model, name = centred_mlp((given.pixels,), outputs, hidden=(given.width, given.width)), type(loss).__name__
    several = [torch_params(model, seed=k, first_std=1e-4) for k in range(max(given.stack))]
    initial = [{key: p.to(device, torch.float64) for key, p in each.items()} for each in several]
    x = torch.rand(given.records, given.pixels, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    data = Data(x=x, y=torch.arange(given.records) % max(outputs, 2), num_classes=max(outputs, 2)).to(device)
    training = Training(optimizer=SGD(lr=2**-7), epochs=count, loss=loss)
    finished: Params = {}
    seconds = timed(lambda: finished.update(train(training, model, initial[0], data)))
    print(f"{name}, plain loop         {count / seconds:9.1f}")
    for models in given.stack:
        ours = SpanTraining(training, model, initial[:models], [data] * models)
        seconds, found = timed(lambda: ours.advance(count)), ours.weights()[0]  # noqa: B023
        assert all(torch.allclose(found[key], value, rtol=1e-6, atol=1e-9) for key, value in finished.items())
        print(
            f"{name}, span, {models} stacked    {count / seconds:9.1f}, of all models {models * count / seconds:9.1f}"
        )


def timed(call: Callable[[], object]) -> float:
    """The seconds of a call."""
    start = time.perf_counter()
    call()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
