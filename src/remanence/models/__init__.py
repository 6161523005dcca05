"""Architectures as plain functions, and the weights they start from.

A model here is only its architecture: it is built on the meta device, holds no numbers and draws none from the global
generator. The numbers are `Params`, passed in by whoever calls the model.
"""

from remanence.models.cnns import cnn
from remanence.models.decoders import Doubling, Image, deconv, mirror, patchgan
from remanence.models.functional import activations, apply, apply_operations, outputs
from remanence.models.init import initial_params, initial_stack, server_params, server_rows, torch_params
from remanence.models.layers import Centre, Standardise
from remanence.models.mlps import centred_mlp, mlp
from remanence.models.resnets import Residual, resnet, resnet18, vgg
from remanence.models.structure import CNN, MLP, FirstLinear, Unsupported, first_linear, parse

__all__ = [
    "CNN",
    "MLP",
    "Centre",
    "Doubling",
    "FirstLinear",
    "Image",
    "Residual",
    "Standardise",
    "Unsupported",
    "activations",
    "apply",
    "apply_operations",
    "centred_mlp",
    "cnn",
    "deconv",
    "first_linear",
    "initial_params",
    "initial_stack",
    "mirror",
    "mlp",
    "outputs",
    "parse",
    "patchgan",
    "resnet",
    "resnet18",
    "server_params",
    "server_rows",
    "torch_params",
    "vgg",
]
