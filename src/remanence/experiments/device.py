"""The device that was asked for, if it is there."""

import torch

from remanence.errors import BadInput


def device_of(device: torch.device | str) -> torch.device:
    """The device of this name; one that is not here is refused."""
    try:
        device = torch.device(device)
    except RuntimeError:
        raise BadInput(
            f"`device` must be like `cpu`, `cuda` or `cuda:0`, got `{device}`", code="unknown-name", argument="device"
        ) from None
    if device.type not in ("cpu", "cuda"):
        message = f"`device` must be like `cpu`, `cuda` or `cuda:0`, got `{device}`"
        raise BadInput(message, code="unknown-name", argument="device")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        message = f"`device` is `{device}`, but torch finds {torch.cuda.device_count()} CUDA devices here: use `cpu`"
        raise BadInput(message, code="unknown-name", argument="device")
    return device
