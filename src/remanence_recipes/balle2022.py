"""Balle, Cherubin, Hayes, "Reconstructing Training Data with Informed Adversaries" (IEEE S&P 2022)."""

from collections.abc import Sequence
from functools import partial

from remanence.attacks import RecoNN
from remanence.data import Split, load, split
from remanence.experiment import Cell, Claim, Scale
from remanence.metrics import MAE, MSE, PSNR, SSIM, identity
from remanence.nets import mlp
from remanence.release import all_but_one
from remanence.training import SGD, AdamW, Training
from remanence.types import Data

SIZES: dict[Scale, tuple[int, int, int, int]] = {  # private, fixed, public, test
    "smoke": (20, 100, 100, 500),
    "small": (200, 1000, 2000, 2000),
    "paper": (1000, 10_000, 58_000, 1000),
}


def mnist(scale: Scale) -> Sequence[Cell]:
    """Table III, ELU: MNIST, 784-10-10, full batch, 100 epochs. `smoke` runs the same walk on 8x8 digits."""
    if scale == "smoke":
        return [_cell("ELU, smoke", scale, RecoNN(hidden=(100, 100), epochs=20))]
    ours = RecoNN(hidden=(2000, 2000), optimizer=AdamW(lr=5e-4, weight_decay=1e-2))
    return [
        _cell("ELU, the paper's width and optimiser", scale, RecoNN()),
        _cell("ELU, wider and with AdamW", scale, ours),
    ]


def _cell(label: str, scale: Scale, attack: RecoNN) -> Cell:
    return Cell(
        label=label,
        split=partial(_cut, scale),
        model=lambda data: mlp(data.shape, data.num_classes),
        training=Training(optimizer=SGD(lr=0.2, momentum=0.9), epochs=20 if scale == "smoke" else 100),
        reveal=all_but_one,
        per_victim=1,
        attack=attack,
        matching=identity,
        metrics=(MSE, MAE, PSNR, SSIM),
        tuned_on_truth=True,  # the clip, the falling rate and AdamW's values were chosen by the error on MNIST targets
        claims=(Claim.mean(MSE, printed=0.0089, where="table III, ELU"),),
    )


def _cut(scale: Scale, seed: int) -> Split:
    private, fixed, public, test = SIZES[scale]
    return split(_records(scale), private=private, fixed=fixed, public=public, test=test, seed=seed)


def _records(scale: Scale) -> Data:
    return load("digits" if scale == "smoke" else "mnist")
