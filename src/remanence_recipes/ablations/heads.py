"""Heads on frozen backbones, as people fine-tune: embeddings from the head's weights, then images from embeddings.

remanence run ablations.heads --scale full --device cuda      one GPU: meant for five minutes, two of them for decoders
expected      embeddings of the unknown record of a linear head exactly, of an MLP's many in part; images no better than
              those from the true embeddings, which is the ceiling
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import torch

from remanence.experiments import Experiment, Measurement, Outcome, Scale, Trial
from remanence.experiments.checks import tuned_on_truth
from remanence_recipes.weights_alone.backbones import Kind, Setting, setting
from remanence_recipes.weights_alone.heads import attacked_head
from remanence_recipes.weights_alone.heads import heads as heads_of
from remanence_recipes.weights_alone.linear_heads import LinearHead, attacked_unknown, attacked_weights

H = TypeVar("H")
NAMES: dict[Scale, dict[Kind, str]] = {
    "smoke": {"published": "random convolutions", "trained": "small ResNet"},
    "small": {"published": "AlexNet", "trained": "small ResNet"},
    "full": {"published": "AlexNet", "trained": "ResNet-18"},
}
LINEAR: dict[Scale, LinearHead] = {
    "smoke": LinearHead(scale="smoke", per_class=2, unknown=4, epochs=600),
    "small": LinearHead(scale="small", per_class=5, unknown=5),
    "full": LinearHead(scale="full", per_class=20, unknown=20),
}


def heads(scale: Scale) -> Sequence[Experiment]:
    """MLP and linear heads on the embeddings of frozen backbones: embeddings and images from the weights alone."""
    return [each for kind in NAMES[scale] for each in _on_backbone(scale, kind)]


def _on_backbone(scale: Scale, kind: Kind) -> list[Experiment]:
    name, linear = NAMES[scale][kind], LINEAR[scale]
    about = (
        "An MLP is trained on embeddings of private images; its weights alone are released, the backbone, the number "
        "of images and that classes are equally frequent are known. Images come from a decoder of public images."
    )
    alone = (
        "Softmax regression on the embeddings: its weights are as many combinations of records as there are classes."
    )
    unknown = "Softmax regression on the embeddings, of which all but one are known: that one in closed form."
    return [
        *(
            _experiment(f"{name}, MLP, {what}", about, attacked_head, head, scale, kind)
            for what, head in heads_of(scale).items()
        ),
        _experiment(f"{name}, linear head, weights alone", alone, attacked_weights, linear, scale, kind),
        _experiment(f"{name}, linear head, one unknown", unknown, attacked_unknown, linear, scale, kind),
    ]


def _experiment(
    label: str, about: str, attacked: Callable[[H, Setting, int], Outcome], head: H, scale: Scale, kind: Kind
) -> Experiment:
    measure = Measurement(measure=partial(_measure, attacked, head, scale, kind))
    return Experiment(label=label, about=about, evaluations=(measure, _tuned))


def _measure(
    attacked: Callable[[H, Setting, int], Outcome], head: H, scale: Scale, kind: Kind, seed: int, device: torch.device
) -> Outcome:
    return attacked(head, setting(scale, kind, seed, device), seed)


def _tuned(trial: Trial) -> Outcome:
    caveat = tuned_on_truth(
        "That embeddings are centred and scaled to the standard deviation of pixels, the learning rates of heads and "
        "attack, its whitening and its rounds were chosen by looking at true records of seeds 0 and "
        "2: quote another seed."
    )
    return Outcome(caveats=(caveat,))
