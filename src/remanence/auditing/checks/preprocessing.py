"""Whether records are preprocessed as the model was trained: its fit under the stated and other normalisations.

A model that is given other inputs than it was trained on still puts out numbers, and attacks that search for inputs of
the wrong scale find nothing. What fits is seen on three things: accuracy, loss, and the statistics that the first
BatchNorm kept of what it saw in training.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, final

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from remanence.auditing.answer.report import Check
from remanence.auditing.checks.outputs import is_correct, logits_of, losses_of, released_loss
from remanence.auditing.checks.records import evenly
from remanence.auditing.inputs.sources import raw_units
from remanence.models import MLP, Unsupported, normalisation_of, parse
from remanence.models.layers import broadcast_shape
from remanence.models.operations import Normalisation
from remanence.types import Data, Params, concat, float_like

_PUBLISHED = {  # mean and standard deviation of each channel
    "by MNIST's mean and standard deviation": ((0.1307,), (0.3081,)),
    "to [-1, 1]": ((0.5,), (0.5,)),
    "to 0..255": ((0.0,), (1 / 255,)),
    "by CIFAR-10's means and standard deviations": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "by ImageNet's means and standard deviations": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
}
_STANDARD = "by their own mean and standard deviation"
_MAX_SHOWN = 12  # features of a table whose numbers are named
_RECORDS = 200  # of each set
_MORE_CORRECT, _LEVEL = 0.08, 1e-4
_ABOUT = 0.01  # of the accuracy
_LEARNT = 0.6  # accuracy below which a model fits no preprocessing
_FITS = 0.9  # accuracy of a model that fits: the loss of others falls with any larger scale of inputs
_MUCH_LOWER = 0.5  # of the loss
_SHIFTED = 0.25  # standard deviations of a BatchNorm's inputs


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Normalising:
    """(x - mean) / std, a hypothesis on how records were preprocessed; each value is broadcast with one record."""

    name: str
    mean: Tensor
    std: Tensor

    def option(self, data: Data) -> str:
        """The option of the command line that states it, which for a table is in the units of its columns."""
        mean, std = self.mean, self.std
        if (units := raw_units(data)) is not None:
            mean, std = (mean.cpu() - units[0]) / units[1], std.cpu() / units[1]
        if mean.numel() > _MAX_SHOWN:
            return "`--normalize` with what training subtracted from each feature, then what it divided it by"
        means, stds = (",".join(f"{v:.4g}" for v in values.flatten().tolist()) for values in (mean, std))
        better = (
            ", or better the numbers of the scaler in training" if self.name == _STANDARD and not data.is_image else ""
        )
        return f"`--normalize {means},{stds}`{better}"


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class _Fit:
    correct: Tensor
    private_loss: float
    held_out_loss: float
    shift: float | None

    @property
    def accuracy(self) -> float:
        return float(self.correct.double().mean())

    @property
    def loss(self) -> float:
        return (self.private_loss + self.held_out_loss) / 2

    @property
    def rank(self) -> tuple[float, float, float]:
        """Smaller is better: the statistics of BatchNorm say more than the accuracy, that more than the loss."""
        return self.shift or 0.0, -self.accuracy, self.loss


def check_preprocessing(
    release: Any, params: Params, private: Data, held_out: Data
) -> tuple[list[Check], dict[str, float | None]]:
    """Whether another preprocessing fits the model much better than the stated one, with what to state instead."""
    private, held_out = (evenly(data, _RECORDS) for data in (private, held_out))
    both, stated = concat([private, held_out]), _stated(release, params)
    fit = _fit(release, params, private, held_out, None, stated)
    numbers = {
        "input_mean": float(both.x.mean()),
        "input_std": float(both.x.std(correction=0)),
        "batchnorm_shift": fit.shift,
    }
    fits = list[tuple[Normalising, _Fit]]()
    for other in hypotheses(both):
        with suppress(Exception):  # a forward pass may refuse other inputs, as embeddings of categories do
            fits.append((other, _fit(release, params, private, held_out, other, stated)))
    tests: tuple[tuple[Callable[[_Fit, _Fit], bool], Literal["warning", "note"]], ...]
    tests = (_fits_better, "warning"), (_may_fit_better, "note")
    for better, status in tests:
        if chosen := [each for each in fits if better(each[1], fit)]:
            best, found = min(chosen, key=lambda each: each[1].rank)
            text = (
                f"The preprocessing {'does not seem to' if status == 'warning' else 'may not'} fit: with inputs "
                f"normalised {best.name} {_compared(found, fit)}. Attacks that search for inputs of the wrong scale "
                f"find nothing: if so, give {best.option(private)}."
            )
            return [Check(name="normalize", status=status, text=text)], numbers
    if fit.shift is not None and fit.shift > _SHIFTED:
        text = (
            f"The first BatchNorm kept statistics that lie {fit.shift:.2g} standard deviations from what these records "
            "cause: the model was trained on others, or on inputs that were preprocessed otherwise (`--normalize`)."
        )
        return [Check(name="normalize", status="warning", text=text)], numbers
    text = "No usual normalisation of the inputs fits the model better than the stated one."
    return [Check(name="normalize", status="ok", text=text)], numbers


def _compared(found: _Fit, stated: _Fit) -> str:
    """By what another preprocessing fits better than the stated one, in words."""
    if found.shift is not None and stated.shift is not None and found.accuracy < stated.accuracy + _MORE_CORRECT:
        return (
            f"the records cause statistics that lie {found.shift:.2g} standard deviations from those that the first "
            f"BatchNorm kept, as stated {stated.shift:.2g}"
        )
    return (
        f"the model is right on {found.accuracy:.0%} of the records (loss {found.loss:.2g}), as stated on "
        f"{stated.accuracy:.0%} ({stated.loss:.2g})"
    )


def hypotheses(data: Data) -> Iterator[Normalising]:
    """Usual preprocessings: none, by their own statistics, and of images in [0, 1] by published constants."""
    shape = (-1, 1, 1) if data.is_image else (-1,)
    columns = data.x.transpose(0, 1).flatten(1) if data.is_image else data.x.T
    std, mean = torch.std_mean(columns, dim=1, correction=0)
    one = data.x.new_ones(1)
    unscaled = "not at all" if data.columns is None else "to [0, 1] by the extremes of each column"
    yield Normalising(name=unscaled, mean=0 * one.view(shape), std=one.view(shape))
    if len(data) > 1:
        floor = torch.where(std > 0, std, torch.ones_like(std))
        yield Normalising(name=_STANDARD, mean=mean.view(shape), std=floor.view(shape))
    if not data.is_image or not data.is_unit:
        return
    for name, (means, stds) in _PUBLISHED.items():
        if len(means) in (1, data.shape[0]):
            yield Normalising(
                name=name, mean=data.x.new_tensor(means).view(shape), std=data.x.new_tensor(stds).view(shape)
            )


def _stated(release: Any, params: Params) -> tuple[Tensor | float, Tensor | float]:
    """The mean and the standard deviation that the model itself normalises records by, in the shape of a record."""
    structure = parse(release.model, release.shape)
    norm: Normalisation | None = None
    if isinstance(structure, MLP):
        norm = structure.record_norm or structure.flat_norm
    elif not isinstance(structure, Unsupported):
        norm = structure.norm
    elif (given := normalisation_of(release.model)) is not None:
        shape = broadcast_shape(given.mean.shape, release.shape), broadcast_shape(given.std.shape, release.shape)
        like = float_like(params)
        return given.mean.to(like).reshape(shape[0]), given.std.to(like).reshape(shape[1])
    if norm is None:
        return 0.0, 1.0
    mean = 0.0 if norm.mean is None else norm.mean.value(params)
    std = 1.0 if norm.std is None else norm.std.value(params)
    flat = isinstance(structure, MLP) and structure.record_norm is None

    def shaped(value: Tensor | float) -> Tensor | float:
        return value.expand(structure_size).view(release.shape) if flat and isinstance(value, Tensor) else value

    structure_size = int(torch.Size(release.shape).numel())
    return shaped(mean), shaped(std)


def _fit(
    release: Any,
    params: Params,
    private: Data,
    held_out: Data,
    other: Normalising | None,
    stated: tuple[Tensor | float, Tensor | float],
) -> _Fit:
    """How the model fits the records where its first layer takes them in as `other` says; None: as stated."""
    data, loss = concat([private, held_out]), released_loss(release)
    x = data.x if other is None else (data.x - other.mean) / other.std * stated[1] + stated[0]
    logits, shift = _logits_and_shift(release.model, params, x)
    if getattr(release, "batch_norm", None) == "training":
        shift = None  # a client's batches have their own statistics, and few of them moved those that it keeps
    each = losses_of(logits, data.y, loss)
    return _Fit(
        correct=is_correct(logits, data.y, loss),
        private_loss=float(each[: len(private)].mean()),
        held_out_loss=float(each[len(private) :].mean()),
        shift=shift,
    )


def _logits_and_shift(model: nn.Module, params: Params, x: Tensor) -> tuple[Tensor, float | None]:
    """The logits, and how far mean and standard deviation of the first BatchNorm's inputs are from those that it kept,
    in standard deviations and as a logarithm: the sum of the medians over channels."""
    first = next(((path, layer) for path, layer in model.named_modules() if isinstance(layer, _BatchNorm)), None)
    if first is None or f"{first[0]}.running_mean" not in params:
        return logits_of(model, params, x), None
    inputs = list[Tensor]()
    handle = first[1].register_forward_pre_hook(lambda _layer, given: inputs.append(given[0].detach()))
    try:
        logits = logits_of(model, params, x)
    finally:
        handle.remove()
    if not inputs:
        return logits, None
    mean, variance = (params[f"{first[0]}.running_{name}"] for name in ("mean", "var"))
    if not bool(mean.any()) and bool((variance == 1).all()):  # as they are made: nothing went through it in training
        return logits, None
    var, observed = torch.var_mean(torch.cat(inputs).transpose(0, 1).flatten(1), dim=1, correction=0)
    shift = (observed - mean).abs() / variance.clamp_min(1e-12).sqrt()
    scale = (var.clamp_min(1e-12) / variance.clamp_min(1e-12)).log().abs() / 2
    return logits, float(shift.median() + scale.median())


def _fits_better(found: _Fit, stated: _Fit) -> bool:
    """By accuracy (McNemar's test), or by what the first BatchNorm kept."""
    from scipy.stats import binomtest

    if found.accuracy < _LEARNT:
        return False
    gained, lost = (int((a & ~b).sum()) for a, b in ((found.correct, stated.correct), (stated.correct, found.correct)))
    if found.accuracy >= stated.accuracy + _MORE_CORRECT:
        return bool(binomtest(gained, gained + lost, 0.5, alternative="greater").pvalue <= _LEVEL)
    if found.shift is None or stated.shift is None or found.accuracy < stated.accuracy - _ABOUT:
        return False
    return stated.shift > _SHIFTED and found.shift < stated.shift / 3


def _may_fit_better(found: _Fit, stated: _Fit) -> bool:
    """By the loss on both sets alone, which inputs of a larger scale lower too."""
    return (
        found.shift is None
        and found.accuracy >= max(_FITS, stated.accuracy - _ABOUT)
        and found.private_loss < _MUCH_LOWER * stated.private_loss
        and found.held_out_loss < _MUCH_LOWER * stated.held_out_loss
    )
