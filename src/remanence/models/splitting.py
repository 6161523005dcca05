"""A network as two: what is before a fully connected layer, and that layer with all that follows.

Both are graphs of the traced forward pass and share the modules of the network; parameters and buffers have the names
that they have in it. The part before the layer need not be recognised, only traced.
"""

from collections.abc import Container, Sequence

from torch import fx, nn

from remanence.models.recognition import is_linear
from remanence.models.structure import Unsupported
from remanence.models.tracing import NotRecognised, Trace, trace


def split_at_first_linear(
    model: nn.Module, shape: Sequence[int], *, trained: Container[str] | None = None
) -> tuple[nn.Module, nn.Module] | Unsupported:
    """The part of `model` from records of `shape` to features (n, width), and the head from features to logits, which
    begins with the first linear layer, or the first whose weights are among the names `trained`."""
    try:
        traced = trace(model, tuple(shape))
        output = traced.output
        linear = [node for node in traced.nodes if is_linear(traced, node)]
        first = next((node for node in linear if trained is None or _weight(node) in trained), None)
        if first is None:
            raise NotRecognised(f"the net has no linear layer{' that was trained' if linear else ''}")
        (features,) = traced.sources(first)
        if len(traced.record_shape(features)) != 1:
            raise NotRecognised(f"the linear layer `{first.target}` takes records that are not flat")
        return _part(traced, traced.input, features), _part(traced, features, output)
    except NotRecognised as reason:
        return Unsupported(reason=str(reason))


def _weight(linear: fx.Node) -> str:
    """The name of the weights of a linear layer; empty where they are computed."""
    if linear.op == "call_module":
        return f"{linear.target}.weight"
    weight = linear.args[1] if len(linear.args) > 1 else linear.kwargs["weight"]
    return str(weight.target) if isinstance(weight, fx.Node) and weight.op == "get_attr" else ""


def _part(traced: Trace, start: fx.Node, end: fx.Node) -> nn.Module:
    """The network from the value of `start` to that of `end`, which must not depend on records otherwise."""
    needed, waiting = set[fx.Node](), [end]
    while waiting:
        node = waiting.pop()
        if node is not start and node not in needed:
            needed.add(node)
            waiting += node.all_input_nodes
    if traced.input in needed:
        raise NotRecognised("the net takes its records past its first linear layer too")
    graph = fx.Graph()
    copies = {start: graph.placeholder("x")}
    for node in traced.nodes:
        if node in needed:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(copies[end])
    return fx.GraphModule(traced.model, graph)
