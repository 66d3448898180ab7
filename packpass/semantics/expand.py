"""An operation taken apart by torch itself: `expand` gives the operations that a call is made of.

Torch knows most of its operations as compositions of others: functions of Python and composite kernels run them,
and its tables of decompositions define the rest. `expand` runs one step of that on fake tensors whose unknown sizes
are new symbols of which nothing is known but that they are not negative, in an environment of its own: whatever would
ask for a size, bake one in, or take one for granted makes the call one that cannot be taken apart. What comes back
therefore holds for every size, and nothing of it is left in the graph or its guards. ::

    pieces = expand(node)           # F.softmin(x, 1), x of [u1 - u0, 4]
    pieces.inputs                   # ((placeholder, x),)
    pieces.nodes                    # neg(placeholder), softmax(neg, 1)
    pieces.results                  # (softmax,)

Nodes of the pieces have their fake values in ``meta["example_value"]``; their targets are aten overloads, in the
spelling that Dynamo's graphs have (`packpass.semantics.spelling`).

``Pieces.composite``: these are the very operations that eager runs below the call, each with its own gradient, so that
the gradient of the whole is theirs. Where it is False, torch has a gradient formula for the whole, which may differ
from that of the pieces where it is not defined (a norm at 0, the largest of equal numbers): then the pieces say what
the call *computes* and nothing about its gradient.

Refused (None): calls that write an operand, draw random numbers, read a tensor on the host, return no tensors or
sizes that depend on data; operands that are no plain fake tensors.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from packpass._compat import (
    asked_of_data,
    assumptions,
    aten_graph,
    decomposition_of,
    fake_mode_of,
    sizes_of_nobody,
)
from packpass.semantics.binding import example
from packpass.semantics.call import as_function
from packpass.semantics.effects import changes_mode
from packpass.semantics.names import is_in_place, op_name
from packpass.semantics.sizes import Renamed
from packpass.semantics.spelling import respell

log = logging.getLogger("packpass.semantics.expand")


Axes = Sequence[tuple[fx.Node, int]]


@dataclasses.dataclass(frozen=True)
class Pieces:
    """What a call is made of."""

    inputs: tuple[tuple[fx.Node, fx.Node], ...]
    """``(placeholder, operand of the call)``, tensors and symbolic numbers."""
    nodes: tuple[fx.Node, ...]
    """Calls, in the order in which they run."""
    results: tuple[fx.Node, ...]
    several: bool
    """Does the call return a tuple or a list?"""
    composite: bool
    """Is the gradient of the call that of its pieces?"""


def expand(node: fx.Node, grads: bool = True, equal: Axes = (), least: int = 0) -> Pieces | None:
    """One step of taking a call apart; None if torch cannot, or not for every size.

    Args:
        node: a call, whose operands have fake values.
        grads: whether the operands require the gradients that they do (the pieces then have them, too).
        equal: ``(operand, dimension)`` of dimensions that the caller knows to be of one size.
        least: how large that size is at least (0 or 1).
    """
    name = op_name(node)
    if node.op not in ("call_function", "call_method") or is_in_place(name) or name == "setitem":
        return None
    if changes_mode(node):
        return None  # to trace it is to do it: autocast would stay entered in the process of the user
    target: Any = node.target
    table = {}
    if isinstance(target, torch._ops.OpOverload):
        if _refused_tags(target) or target._schema.is_mutable:
            return None
        if not target.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd):
            definition = decomposition_of(target)
            if definition is None:
                return None
            table = {target: definition}
    try:
        return _traced(node, table, grads, equal, least)
    except Exception as error:  # whatever torch's definitions raise where they ask for sizes: no common class
        log.debug("%s is not taken apart: %s", name or node.target, str(error).split("\n")[0])
        return None


def _traced(node: fx.Node, table: dict[Any, Any], grads: bool, equal: Axes, least: int) -> Pieces | None:
    operands = list(dict.fromkeys(node.all_input_nodes))
    with sizes_of_nobody() as (mode, size):
        fresh = Renamed(size, grads)
        fresh.one([operand.meta["example_value"].shape[dim] for operand, dim in equal], least)
        inputs = [fresh.operand(operand.meta.get("example_value")) for operand in operands]
        module, recorded = aten_graph(as_function(node, operands), inputs, table)
        if assumptions(mode):
            log.debug("%s takes for granted that %s", node.target, ", ".join(assumptions(mode)))
            return None
    _write_constants(module, mode)
    graph = module.graph
    placeholders = [n for n in graph.nodes if n.op == "placeholder"]
    (output,) = (n for n in graph.nodes if n.op == "output")
    value = node.meta.get("example_value")
    for piece in graph.nodes:
        piece.meta["example_value"] = piece.meta.get("val")
    respell(graph)
    results = several(output.args[0])
    nodes = tuple(n for n in graph.nodes if n.op not in ("placeholder", "output"))
    wanted = several(value)
    if not _fits(results, wanted) or not all(_harmless(piece, node) for piece in nodes):
        return None
    if _writes_operand(placeholders, nodes):
        return None
    given = tuple(zip(placeholders, operands, strict=True))
    return Pieces(given, nodes, results, isinstance(value, (tuple, list)), recorded and not table)


def mark_gradients(pieces: Pieces) -> None:
    """Write down which operands and results need a gradient: torch's trace runs below autograd."""
    gradients = {p for p, given in pieces.inputs if requires_gradient(example(given))}
    for placeholder in gradients:
        _require(example(placeholder))
    for piece in pieces.nodes:
        value = example(piece)
        if any(i in gradients for i in piece.all_input_nodes) and differentiable(value):
            gradients.add(piece)
            _require(value)


def requires_gradient(value: Any) -> bool:
    """Does a value, or one of several, require a gradient?"""
    return any(isinstance(v, torch.Tensor) and v.requires_grad for v in several(value))


def differentiable(value: Any) -> bool:
    """May it, or one of several, require one?"""
    return any(isinstance(v, torch.Tensor) and (v.is_floating_point() or v.is_complex()) for v in several(value))


def _require(value: Any) -> None:
    for v in several(value):
        if differentiable(v) and v.grad_fn is None:
            v.requires_grad_()


def several(value: Any) -> tuple[Any, ...]:
    """The values that a call returns, as a tuple."""
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def fails_when_empty(node: fx.Node, equal: Axes) -> bool | None:
    """Does a call raise where these dimensions, which are of one size, have no slots? None if that cannot be tried.

    What torch's fakes say is tried on real tensors before it is believed.
    """
    operands = list(dict.fromkeys(node.all_input_nodes))
    if any("example_value" not in operand.meta for operand in operands):
        return None  # the function of a higher-order operator
    values = [operand.meta["example_value"] for operand in operands]
    sizes = [operand.meta["example_value"].shape[dim] for operand, dim in equal]
    with sizes_of_nobody() as (_, size):
        fresh = Renamed(size, grads=False)
        fresh.known = [(s.node.expr, 0) for s in sizes if isinstance(s, torch.SymInt)]
        try:
            given = [fresh.operand(value) for value in values]
        except Exception:  # a number of a kind that has no stand-in
            return None
        try:
            as_function(node, operands)(*given)
        except Exception as error:  # whatever torch raises
            if asked_of_data(error) is not None:
                return None
        else:
            return False
    if not all(_small(g) for g in given):
        return None
    try:
        as_function(node, operands)(
            *(torch.zeros(g.shape, dtype=g.dtype) if isinstance(g, torch.Tensor) else g for g in given)
        )
    except Exception:
        return True
    return False


def _small(value: Any) -> bool:
    """Can this be a real tensor, or number, for a moment?"""
    if not isinstance(value, torch.Tensor):
        return not isinstance(value, torch.SymInt)
    return all(isinstance(s, int) for s in value.shape) and value.numel() <= _REAL


_REAL = 1 << 16
"""Elements of tensors that calls are tried on."""


def _write_constants(module: fx.GraphModule, mode: Any) -> None:
    """Numbers that torch keeps as tensors of the module, as calls."""
    for node in list(module.graph.nodes):
        value = getattr(module, str(node.target), None) if node.op == "get_attr" else None
        if isinstance(value, torch.Tensor) and value.dim() == 0 and fake_mode_of(value) is None:
            with module.graph.inserting_before(node):
                made = module.graph.call_function(
                    torch.ops.aten.scalar_tensor.default, (value.item(),), {"dtype": value.dtype}
                )
            with mode:
                made.meta["val"] = torch.empty((), dtype=value.dtype)
            node.replace_all_uses_with(made)
            module.graph.erase_node(node)


def plain_overload(overload: Any) -> bool:
    """Does an operation only make tensors out of its arguments: no writes, no random numbers, no sizes from data?"""
    returns = [str(r.type) for r in overload._schema.returns]
    return not overload._schema.is_mutable and not _refused_tags(overload) and set(returns) == {"Tensor"}


def _refused_tags(overload: Any) -> bool:
    """Does an operation draw random numbers, or have sizes or results on the host that depend on data?"""
    refused = ("nondeterministic_seeded", "dynamic_output_shape", "data_dependent_output")
    return any(getattr(torch.Tag, name) in overload.tags for name in refused if hasattr(torch.Tag, name))


def _harmless(piece: fx.Node, whole: fx.Node) -> bool:
    """May a piece stand in a graph: no random numbers, no sizes from data, and not the whole call again?"""
    if piece.op == "get_attr":
        return False
    target = piece.target
    return not isinstance(target, torch._ops.OpOverload) or not (_refused_tags(target) or target is whole.target)


def _writes_operand(placeholders: Sequence[fx.Node], nodes: Sequence[fx.Node]) -> bool:
    """Does a piece write what the call was given, or a view of it?"""
    memory = {_memory(p) for p in placeholders} - {None}
    for piece in nodes:
        schema = getattr(piece.target, "_schema", None)
        if schema is None or not schema.is_mutable:
            continue
        written = [a for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]
        places = {a.name: i for i, a in enumerate(schema.arguments)}
        for argument in written:
            at = places[argument.name]
            value = piece.args[at] if len(piece.args) > at else piece.kwargs.get(argument.name)
            if not isinstance(value, fx.Node) or _memory(value) in memory:
                return True
    return False


def _memory(node: fx.Node) -> Any:
    value = node.meta["example_value"]
    return value.untyped_storage()._cdata if isinstance(value, torch.Tensor) else None


def _fits(results: tuple[Any, ...], wanted: tuple[Any, ...]) -> bool:
    """Are the results tensors of the dtypes and known sizes that the call was recorded with?"""
    if len(results) != len(wanted) or not all(isinstance(r, fx.Node) for r in results):
        return False
    for result, value in zip(results, wanted, strict=True):
        made = result.meta["example_value"]
        if not isinstance(made, torch.Tensor) or not isinstance(value, torch.Tensor):
            return False
        if made.dtype != value.dtype or made.dim() != value.dim() or made.device != value.device:
            return False
        pairs = zip(made.shape, value.shape, strict=True)
        if any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in pairs):
            return False
    return True
