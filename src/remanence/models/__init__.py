"""Architectures as plain functions, their initial weights, and the parser that recognises networks.

A model here is only its architecture: it is built on the meta device, holds no values and samples none from the global
generator. The values are `Params`, which whoever calls the model passes in.
"""

from remanence.models.backbones import Backbone, alexnet, embedded, without_head
from remanence.models.batch_norm import apply_to_batch, running_statistics
from remanence.models.cnns import Residual, cnn, lenet, resnet, resnet18, vgg
from remanence.models.decoders import Doubling, Image, deconv, mirror, patchgan, transposed_cnn
from remanence.models.functional import activations, apply, apply_operations, replace_relu, tied_names
from remanence.models.init import initial_params, initial_stack, server_params, server_rows, torch_params
from remanence.models.layers import Centre, Normalize, Standardise, normalisation_of, normalized, normalized_params
from remanence.models.lora import LoRALinear, adapter_names
from remanence.models.mlps import centred_mlp, mlp
from remanence.models.normalisation import InputNormalisation
from remanence.models.replaced import layer_of, replaced_layers
from remanence.models.splitting import split_at_first_linear
from remanence.models.structure import CNN, MLP, FirstLinear, Unsupported, first_linear, input_normalisation, parse
from remanence.models.transformer import Transformer, decoder, encoder, transformer_params

__all__ = [
    "CNN",
    "MLP",
    "Backbone",
    "Centre",
    "Doubling",
    "FirstLinear",
    "Image",
    "InputNormalisation",
    "LoRALinear",
    "Normalize",
    "Residual",
    "Standardise",
    "Transformer",
    "Unsupported",
    "activations",
    "adapter_names",
    "alexnet",
    "apply",
    "apply_operations",
    "apply_to_batch",
    "centred_mlp",
    "cnn",
    "decoder",
    "deconv",
    "embedded",
    "encoder",
    "first_linear",
    "initial_params",
    "initial_stack",
    "input_normalisation",
    "layer_of",
    "lenet",
    "mirror",
    "mlp",
    "normalisation_of",
    "normalized",
    "normalized_params",
    "parse",
    "patchgan",
    "replace_relu",
    "replaced_layers",
    "resnet",
    "resnet18",
    "running_statistics",
    "server_params",
    "server_rows",
    "split_at_first_linear",
    "tied_names",
    "torch_params",
    "transformer_params",
    "transposed_cnn",
    "vgg",
    "without_head",
]
