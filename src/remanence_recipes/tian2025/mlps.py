"""The paper's MLP."""

from collections.abc import Sequence
from functools import partial

from remanence.attacks import SimuDy
from remanence.experiment import Cell, Claim, Scale
from remanence.release import initial_and_final
from remanence_recipes.tian2025.setting import PAPERS, cut, images_of, torch_start, wide


def mlp_100(scale: Scale) -> Sequence[Cell]:
    """100 images from an MLP of 3072-1000-1000-10, trained for 20 epochs at full batch."""
    records, width, steps = {"smoke": (10, 64, 150), "small": (20, 300, 300), "paper": (100, 1000, 5000)}[scale]
    images = images_of(scale)
    return [
        Cell(
            label=f"MLP, {records} images",
            split=partial(cut, scale, records),
            model=wide(width),
            training=PAPERS,
            start=torch_start(images),
            reveal=initial_and_final,
            attack=SimuDy(candidates=records, steps=steps),
            matching=images.matching,
            metrics=images.metrics,
            claims=(Claim.mean(images.ssim, printed=0.3374, target=0.80, where="100 images, greedy SSIM"),),
            tuned_on_truth=True,  # the rate of the search, on 20 images of seed 0 at `small`
        )
    ]
