"""The provenance of a result: machine, versions, commit."""

import os
import platform
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import final

import torch

UNKNOWN = "source tree"  # the version where the package is not installed


@final
@dataclass(frozen=True, kw_only=True)
class Hardware:
    """The machine that an experiment ran on, and the versions of the software."""

    device: str
    threads: int
    platform: str
    python: str
    torch: str
    remanence: str


def hardware(device: torch.device) -> Hardware:
    """This machine, with `device` as the one that computes."""
    return Hardware(
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else f"{platform.machine()} CPU",
        threads=torch.get_num_threads(),
        platform=platform.system(),
        python=platform.python_version(),
        torch=torch.__version__,
        remanence=version(),
    )


def version() -> str:
    from importlib import metadata

    try:
        return metadata.version("remanence")
    except metadata.PackageNotFoundError:  # run from a source tree that was not installed
        return UNKNOWN


def commit() -> str | None:
    """The commit of the code that ran, marked when it was changed since; None outside a checkout.

    A copy without its history, or with another one (a container, another machine), names it in `$REMANENCE_COMMIT`.
    """
    if given := os.environ.get("REMANENCE_COMMIT"):
        return given
    checkout = Path(__file__).parents[3]
    if not (checkout / ".git").exists():  # an installed copy may lie inside the checkout of another project
        return None
    call = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        done = subprocess.run(call, cwd=checkout, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
