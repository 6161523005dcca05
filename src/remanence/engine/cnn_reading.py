"""A convolutional net with ReLU and frozen BatchNorm as layers whose passes are written out."""

from collections.abc import Callable, Container, Iterator, Sequence
from itertools import pairwise
from typing import TypeAlias

from torch import nn

from remanence.engine.cnn_layers import Convolution, Dense, Scaling
from remanence.engine.cnn_pieces import Flat, Maximum, Mean, Piecewise, Rectifier
from remanence.engine.cnn_tape import Beside, Layer
from remanence.models import Residual

Named: TypeAlias = tuple[str, nn.Module]


def parts(path: str, module: nn.Module) -> Iterator[Named]:
    """The layers in turn; a residual block is one."""
    if type(module) is nn.Sequential:
        for name, child in zip(module._modules, module, strict=True):  # one that is used again too
            yield from parts(f"{path}.{name}" if path else name, child)
    elif type(module) is not nn.Identity:
        yield path, module


def inside(named: Sequence[Named]) -> Iterator[Named]:
    """The same with what is in residual blocks."""
    for path, module in named:
        if isinstance(module, Residual):
            for way in ("inner", "shortcut"):
                yield from parts(f"{path}.{way}", getattr(module, way))
        else:
            yield path, module


def norms_of(named: Sequence[Named]) -> dict[str, str]:
    """The norm behind each convolution that has one."""
    return {path: norm for (path, conv), (norm, behind) in pairwise(inside(named)) if _folds(conv, behind)}


def layers_of(named: Sequence[Named], light: Container[str], *, first: bool = True) -> tuple[Layer, ...] | None:
    """With norms folded into the convolutions in front of them that are `light`; None where a layer is unknown."""
    found = list[Layer]()
    before: Named = "", nn.Identity()
    for path, module in named:
        if _folds(before[1], module):
            found += [] if before[0] in light else [Scaling(name=path)]
        else:
            read = _layers(path, module, light, first=first and not found)
            if read is None:
                return None
            found += read
        before = path, module
    return tuple(found)


def rectified(layers: Sequence[Layer]) -> Iterator[str]:
    """The names of what is a ReLU."""
    for layer in layers:
        if isinstance(layer, Beside):
            yield from rectified((*layer.inner, *layer.shortcut))
        elif isinstance(layer, Piecewise) and isinstance(layer.piece, Rectifier):
            yield layer.piece.name


def in_place_of_kinks(layers: Sequence[Layer], made: Callable[[str], Layer]) -> tuple[Layer, ...]:
    """With what is made for the name of each ReLU."""

    def exchanged(layer: Layer) -> Layer:
        if isinstance(layer, Beside):
            inner, shortcut = (in_place_of_kinks(way, made) for way in (layer.inner, layer.shortcut))
            return Beside(inner=inner, shortcut=shortcut)
        if isinstance(layer, Piecewise) and isinstance(layer.piece, Rectifier):
            return made(layer.piece.name)
        return layer

    return tuple(map(exchanged, layers))


def _folds(conv: nn.Module, norm: nn.Module) -> bool:
    """Whether `norm` is frozen and can be folded into `conv`."""
    return (
        type(conv) is nn.Conv2d
        and conv.bias is None
        and type(norm) is nn.BatchNorm2d
        and not norm.training
        and norm.affine
        and norm.running_mean is not None
    )


def _layers(path: str, module: nn.Module, light: Container[str], *, first: bool) -> list[Layer] | None:
    if isinstance(module, Residual):
        return _residual(path, module, light)
    if type(module) is nn.Conv2d and not isinstance(module.padding, str):
        plain = module.groups == 1 and module.padding_mode == "zeros"
        shape = {"stride": module.stride, "padding": module.padding, "dilation": module.dilation}
        return [Convolution(name=path, first=first, joined=path in light, **shape)] if plain else None
    if type(module) is nn.Linear:
        return [Dense(name=path)]
    if type(module) is nn.ReLU:
        return [Piecewise(piece=Rectifier(name=path))]
    if type(module) is nn.MaxPool2d and repr(module) == repr(nn.MaxPool2d(module.kernel_size)):
        side = module.kernel_size
        return [Piecewise(piece=Maximum(name=path, side=side))] if isinstance(side, int) else None
    if type(module) is nn.AdaptiveAvgPool2d and module.output_size in (1, (1, 1)):
        return [Piecewise(piece=Mean(name=path))]
    if type(module) is nn.Flatten and (module.start_dim, module.end_dim) == (1, -1):
        return [Piecewise(piece=Flat(name=path))]
    return None


def _residual(path: str, block: Residual, light: Container[str]) -> list[Layer] | None:
    inner, shortcut = (
        layers_of(list(parts(f"{path}.{way}", getattr(block, way))), light, first=False)
        for way in ("inner", "shortcut")
    )
    if inner is None or shortcut is None or type(block.activation) is not nn.ReLU:
        return None
    return [Beside(inner=inner, shortcut=shortcut), Piecewise(piece=Rectifier(name=f"{path}.activation"))]
