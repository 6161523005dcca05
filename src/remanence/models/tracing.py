"""A model's forward pass as a graph (torch.fx), each value with its shape, which the meta device gives.

A class of the user's own, nested blocks and an `nn.Sequential` come out alike. What cannot be traced, such as a branch
that depends on numbers, ends the graph early, and the reason is said.
"""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from operator import getitem
from typing import Any, final

import torch
from torch import Tensor, fx, nn
from torch.func import functional_call

from remanence.models.functions import function_shape, module_shape
from remanence.models.layers import Normalize

_BATCH = 2  # records in the traced batch: their number must come out as it went in
_LISTS = {torch.squeeze, torch.flatten, torch.reshape, getitem, "squeeze", "flatten", "view", "reshape"}


class NotRecognised(Exception):
    """The reason, in one plain sentence, why a network or an operation of it is not recognised."""


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Trace:
    """The nodes of a forward pass in order, with their values on the meta device."""

    model: nn.Module
    nodes: tuple[fx.Node, ...]
    values: dict[fx.Node, Any]
    dependent: frozenset[fx.Node]  # on the records; the others are made of parameters and buffers
    failure: str | None  # why the trace ends early

    @property
    def input(self) -> fx.Node:
        return self.nodes[0]

    @property
    def output(self) -> fx.Node:
        if self.failure is not None:
            raise NotRecognised(self.failure)
        (last,) = self.nodes[-1].args
        if not isinstance(last, fx.Node):
            raise NotRecognised("the net puts out something else than one tensor")
        return self._in_rows(last)

    def _in_rows(self, last: fx.Node) -> fx.Node:
        """The node before one that makes a list of numbers out of one output for each record."""
        before = last.all_input_nodes[0] if len(last.all_input_nodes) == 1 else None
        value, rows = self.values[last], self.values.get(before) if before else None
        listed = last.target in _LISTS and isinstance(value, Tensor) and tuple(value.shape) == (_BATCH,)
        return before if before and listed and isinstance(rows, Tensor) and rows.shape == (_BATCH, 1) else last

    def module(self, node: fx.Node) -> nn.Module:
        return self.model.get_submodule(str(node.target))

    def sources(self, node: fx.Node) -> list[fx.Node]:
        """The tensors that depend on the records and enter this node."""
        return [n for n in node.all_input_nodes if n in self.dependent and isinstance(self.values.get(n), Tensor)]

    def record_shape(self, node: fx.Node) -> tuple[int, ...]:
        """The shape of one record's value at this node."""
        shape = tuple(self.values[node].shape)
        if not shape or shape[0] != _BATCH:
            raise NotRecognised(f"`{name_of(node)}` mixes the records of a batch")
        return shape[1:]


def name_of(node: fx.Node) -> str:
    """The path of a module, or the name that the trace gives to a function."""
    return str(node.target) if node.op == "call_module" else node.name


def trace(model: nn.Module, shape: tuple[int, ...]) -> Trace:
    """Trace `model` for records of `shape`, as far as that goes. Nothing of the model is run, changed or copied."""
    failure = None
    if any(module._forward_hooks or module._forward_pre_hooks for module in model.modules()):
        failure = "the net has forward hooks, which may change what its layers do"
    tracer = _Tracer()
    try:
        with _unchanged(model):
            tracer.trace(model, concrete_args=_defaults(model))
    except NotRecognised as reason:
        failure = str(reason)
    except Exception as error:  # the code of a user's forward pass may raise anything under a trace
        said = str(error).partition("\n")[0]
        failure = f"the forward pass of {type(model).__name__} cannot be traced: {said or type(error).__name__}"
    nodes, values, dependent = list[fx.Node](), dict[fx.Node, Any](), set[fx.Node]()
    for node in tracer.graph.nodes if hasattr(tracer, "graph") else ():
        if node.op == "placeholder" and nodes and not node.args:
            failure = "the net takes more than one input"
            break
        try:
            values[node] = _evaluated(model, node, values, shape, first=not nodes)
        except Exception as error:  # a shape that does not fit, or an operation without a meta implementation
            said = str(error).partition("\n")[0]
            failure = f"`{name_of(node)}` does not take what records of shape {shape} become: {said}"
            break
        nodes.append(node)
        if node is nodes[0] or any(n in dependent for n in node.all_input_nodes):
            dependent.add(node)
    if not nodes:
        raise NotRecognised(failure or "the net has no forward pass")
    return Trace(model=model, nodes=tuple(nodes), values=values, dependent=frozenset(dependent), failure=failure)


def graph_of(model: nn.Module) -> fx.Graph | None:
    """The graph of the forward pass of `model`; None where it cannot be traced."""
    try:
        with _unchanged(model):
            return _Tracer().trace(model, concrete_args=_defaults(model))
    except Exception:  # the code of a user's forward pass may raise anything under a trace
        return None


@contextmanager
def _unchanged(model: nn.Module) -> Iterator[None]:
    """Afterwards the modules hold what they held: a forward pass that counts its calls or stores activations would
    leave proxies of the trace in them."""
    held = [(vars(module), vars(module).copy()) for module in model.modules()]
    held += [(values, values.copy()) for _, saved in held for values in saved.values() if isinstance(values, dict)]
    try:
        yield
    finally:
        for values, saved in held:
            values.clear()
            values.update(saved)


class _Tracer(fx.Tracer):
    proxy_buffer_attributes = True  # a view of a buffer is an operation too

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return (
            isinstance(m, Normalize)
            or super().is_leaf_module(m, module_qualified_name)
            or (not isinstance(m, nn.Sequential) and is_elementwise(m))
        )

    def create_arg(self, a: Any) -> Any:
        held = isinstance(a, nn.Parameter) or any(a is buffer for buffer in self.root.buffers())
        if isinstance(a, Tensor) and not held:
            raise NotRecognised("the net uses a tensor that is neither a parameter nor a buffer: register it")
        return super().create_arg(a)


def is_elementwise(module: nn.Module) -> bool:
    """Whether a module without parameters and submodules acts on each number alone."""
    if any(True for held in (module.children(), module.parameters(), module.buffers()) for _ in held):
        return False
    z = torch.tensor([[-0.7, 0.4], [1.3, 0.2]], dtype=torch.float64)
    forward = without_mutation(module).forward  # under a trace `module(z)` would be a node of the graph
    try:
        together = forward(z)
        alone = torch.stack([forward(value) for value in z.flatten()]).view_as(z)
    except Exception:  # whatever else it is, it is no function of a number
        return False
    return isinstance(together, Tensor) and torch.allclose(alone, together)


def without_mutation(module: nn.Module) -> nn.Module:
    """The module itself, or a copy that does not overwrite its input."""
    if getattr(module, "inplace", False):
        module = copy(module)
        module.inplace = False  # type: ignore[assignment]
    return module


def _defaults(model: nn.Module) -> dict[str, Any]:
    parameters = list(inspect.signature(model.forward).parameters.values())[1:]
    return {p.name: p.default for p in parameters if p.default is not p.empty}


def _evaluated(
    model: nn.Module, node: fx.Node, values: dict[fx.Node, Any], shape: tuple[int, ...], *, first: bool
) -> Any:
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: values[n])
    if node.op == "placeholder":
        return torch.empty(_BATCH, *shape, device="meta") if first else args[0]
    if node.op == "get_attr":
        path, _, name = str(node.target).rpartition(".")
        return torch.empty(getattr(model.get_submodule(path), name).shape, device="meta")
    if node.op == "call_module":
        return _called(model.get_submodule(str(node.target)), args, kwargs)
    if node.op in ("call_method", "call_function"):
        if (made := function_shape(node.target, args, kwargs)) is not None:
            return torch.empty(made, device="meta")
        function = getattr(args[0], node.target) if isinstance(node.target, str) else node.target
        return function(*args[1:] if node.op == "call_method" else args, **kwargs)
    return args[0] if args else None


def _called(module: nn.Module, args: Any, kwargs: Any) -> Any:
    if (made := module_shape(module, args[0])) is not None:
        return torch.empty(made, device="meta")
    held = {name: torch.empty(p.shape, device="meta") for name, p in module.state_dict(keep_vars=True).items()}
    return functional_call(module, held, args, kwargs)
