"""Networks with another activation in place of ReLU, however ReLU is written."""

from copy import deepcopy

from torch import fx, nn

from remanence.models.functions import ACTIVATIONS
from remanence.models.tracing import graph_of


def replace_relu(model: nn.Module, activation: nn.Module) -> nn.Module:
    """A copy of `model` with `activation` for every `nn.ReLU` and, where its forward pass can be traced, for every call
    of a function such as `F.relu`. Parameters and buffers have the names that they have in `model`."""
    copy = deepcopy(model)
    for path, layer in model.named_modules():
        if isinstance(layer, nn.ReLU):
            copy.set_submodule(path, activation)
    graph = graph_of(copy)
    functions = [node for node in graph.nodes if ACTIVATIONS.get(node.target) is nn.ReLU] if graph else []
    if graph is None or not functions:
        return copy
    copy.add_module(_NAME, activation)
    for node in functions:
        with graph.inserting_before(node):
            node.replace_all_uses_with(graph.call_module(_NAME, node.args[:1]))
        graph.erase_node(node)
    return fx.GraphModule(copy, graph)


_NAME = "activation_for_relu"
