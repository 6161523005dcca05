"""Architectures as plain functions, and the weights they start from.

A model here is only its architecture: it is built on the meta device, holds no numbers and draws none from the global
generator. The numbers are `Params`, passed in by whoever calls the model.
"""

from remanence.nets.call import activations, apply, outputs
from remanence.nets.cnn import cnn
from remanence.nets.deep import Residual, resnet, resnet18, vgg
from remanence.nets.fixed import Centre, Standardise
from remanence.nets.generators import Doubling, Image, deconv, mirror, patchgan
from remanence.nets.mlp import centred_mlp, mlp
from remanence.nets.start import initial_params, initial_stack, server_params, server_rows, torch_params

__all__ = [
    "Centre",
    "Doubling",
    "Image",
    "Residual",
    "Standardise",
    "activations",
    "apply",
    "centred_mlp",
    "cnn",
    "deconv",
    "initial_params",
    "initial_stack",
    "mirror",
    "mlp",
    "outputs",
    "patchgan",
    "resnet",
    "resnet18",
    "server_params",
    "server_rows",
    "torch_params",
    "vgg",
]
