"""Rules for views that change other dimensions than the packed one, and for values that stay what they are."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx

from packpass.semantics import argument, example
from passes.document_loops import uneven
from passes.document_loops.documents import as_term, document
from passes.document_loops.integers import Affine, Invariant
from passes.document_loops.machine import Machine, Number, Segment, frozen_args
from passes.document_loops.op_names import label, name_of
from passes.document_loops.rules import documents, outside_call, tokenwise
from passes.document_loops.rules_splits import first_input, otherwise
from passes.document_loops.rules_tokenwise import known_keywords, made, unwritable, whole_row
from passes.document_loops.rules_views import takes_length
from passes.document_loops.terms import LENGTH, Apply, DocVector, Outside
from passes.refused import Refused


def _sizes(machine: Machine, node: fx.Node) -> list[Any] | None:
    """Sizes of an expand or repeat: numbers, outside sizes, and LENGTH for the document's length."""
    given: Any = node.args[1] if len(node.args) == 2 and isinstance(node.args[1], (tuple, list)) else node.args[1:]
    given = given or node.kwargs.get("size", ())
    if set(node.kwargs) - {"size"} or not given:
        return None
    sizes: list[Any] = []
    for size in given:
        value = machine.affine(size)
        single = value.single() if value is not None else None
        if value is not None and value.is_const:
            sizes.append(value.const)
        elif takes_length(machine, size):
            sizes.append(LENGTH)
        elif single is not None and isinstance(single[0], Invariant) and not single[1]:
            sizes.append(machine.intern(Outside(single[0].node)))
        else:
            return None
    return sizes


@tokenwise("expand", "broadcast_to")
def _expand(machine: Machine, node: fx.Node) -> Any:
    value, sizes = first_input(machine, node), _sizes(machine, node)
    if sizes is None:
        return NotImplemented
    if isinstance(value, Segment):
        at = len(sizes) + value.dim
        whole = sizes[at] == -1 or (sizes[at] is LENGTH and value.window.full and value.store.exact)
        if not whole or any(s is LENGTH for d, s in enumerate(sizes) if d != at):
            return NotImplemented
        sizes[at] = -1
        term = Apply("expand", True, (machine.read(value, node), *sizes), (), value.dim)
        return machine.view(term, len(sizes), value)
    return _spread(machine, node, value, sizes, "expand")


def _spread(machine: Machine, node: fx.Node, value: Any, sizes: list[Any], method: str) -> Any:
    """An outside tensor repeated for every slot."""
    if not isinstance(value, Outside) or sum(s is LENGTH for s in sizes) != 1:
        return otherwise(machine, node) if not any(s is LENGTH for s in sizes) else NotImplemented
    dim = next(d for d, s in enumerate(sizes) if s is LENGTH) - len(sizes)
    machine.broadcasts(value, dim, node)
    return unwritable(machine, Apply(method, True, (value, *sizes), (), dim), len(sizes))


@tokenwise("expand_as")
def _expand_as(machine: Machine, node: fx.Node) -> Any:
    value, like = first_input(machine, node), machine.value(argument(node, 1, "other"))
    if not isinstance(like, Segment) or not isinstance(value, (Segment, Outside)) or node.kwargs:
        return otherwise(machine, node)
    other = machine.aligned(like, like.window, node)
    if isinstance(value, Outside):
        machine.broadcasts(value, like.dim, node)
        base = unwritable(machine, Apply("expand_as", True, (value, other), (), like.dim), like.rank)
        return Segment(base.store, like.window, like.rank)
    if value.dim != like.dim or value.window != like.window:
        raise Refused("dim-mismatch", f"{label(node)} of segments with different slots", node)
    term = Apply("expand_as", True, (machine.read(value, node), other), (), like.dim)
    return machine.view(term, like.rank, value)


@tokenwise("repeat", "tile")
def _repeat(machine: Machine, node: fx.Node) -> Any:
    value, sizes = first_input(machine, node), _sizes(machine, node)
    if sizes is None:
        return NotImplemented
    if not isinstance(value, Segment):
        return _spread(machine, node, value, sizes, "repeat") if name_of(node) == "repeat" else otherwise(machine, node)
    at = len(sizes) + value.dim
    if at >= 0 and type(sizes[at]) is int and sizes[at] > 1 and all(s == 1 for d, s in enumerate(sizes) if d != at):
        if len(sizes) == value.rank:
            again = uneven.sequence(machine, node, [value] * sizes[at], value.rank, value.dim)
            return NotImplemented if again is None else again
    if LENGTH in sizes or (at >= 0 and sizes[at] != 1):
        return NotImplemented
    return whole_row(machine, node, value, value.dim, linear=True)


@tokenwise("repeat_interleave")
def _repeat_interleave(machine: Machine, node: fx.Node) -> Any:
    value, repeats, dim = first_input(machine, node), argument(node, 1, "repeats"), argument(node, 2, "dim")
    if not isinstance(value, Segment) or type(repeats) is not int or type(dim) is not int:
        return otherwise(machine, node)
    known_keywords(node, "dim", "repeats")
    if dim % value.rank == value.rank + value.dim:
        return NotImplemented
    return whole_row(machine, node, value, value.dim, linear=True)


@tokenwise("flatten", "unflatten")
def _flatten(machine: Machine, node: fx.Node) -> Any:
    """Dimensions merged, or one split, on one side of the packed one."""
    value, name = first_input(machine, node), name_of(node)
    if not isinstance(value, Segment):
        return otherwise(machine, node)
    at, rank = value.rank + value.dim, example(node).dim()
    if name == "flatten":
        first, last = argument(node, 1, "start_dim", 0), argument(node, 2, "end_dim", -1)
    else:
        first = last = argument(node, 1, "dim")
    if type(first) is not int or type(last) is not int or node.all_input_nodes != [argument(node, 0, "input")]:
        return NotImplemented
    low, high = first % value.rank, last % value.rank
    if low <= at <= high:
        return NotImplemented
    dim = at - rank if low > at else value.dim
    return whole_row(machine, node, value, dim, linear=True, alias=True)


@tokenwise("reshape", "view")
def _reshape(machine: Machine, node: fx.Node) -> Any:
    """``reshape(L, -1)``: torch has no static size for the -1 beside an unknown length; here it is known."""
    value = first_input(machine, node)
    if not isinstance(value, Segment) or not (value.window.full and value.store.exact):
        return NotImplemented
    sizes = _sizes(machine, node)
    if sizes is None or sizes.count(-1) != 1 or sum(s is LENGTH for s in sizes) != 1:
        return NotImplemented
    at, packed = sizes.index(LENGTH), value.rank + value.dim
    before = list(example(node.args[0]).shape)
    others, given = before[:packed] + before[packed + 1 :], [s for s in sizes if s is not LENGTH and s != -1]
    if not all(type(s) is int and s > 0 for s in (*others, *given)) or math.prod(others) % math.prod(given):
        return NotImplemented
    sizes[sizes.index(-1)] = math.prod(others) // math.prod(given)
    if math.prod(sizes[:at]) != math.prod(before[:packed]):
        return NotImplemented
    term = Apply("reshape", True, (machine.read(value, node), *sizes), (), at - len(sizes))
    return machine.view(term, len(sizes), value)


@tokenwise("view_as_complex", "view_as_real")
def _complex_view(machine: Machine, node: fx.Node) -> Any:
    value = first_input(machine, node)
    if not isinstance(value, Segment):
        return otherwise(machine, node)
    if name_of(node) == "view_as_real":
        return whole_row(machine, node, value, value.dim - 1, linear=True, alias=True)
    if value.dim == -1:
        return NotImplemented
    term = machine.intern(Apply("contiguous", True, (machine.read(value, node),), (), value.dim))
    return made(machine, node, Apply(torch.view_as_complex, False, (term,), (), value.dim + 1), value, alias=True)


@tokenwise("getattr")
def _getattr(machine: Machine, node: fx.Node) -> Any:
    """``x.T``, ``x.mT``, ``x.real``, ``x.imag``."""
    value, name = first_input(machine, node), node.args[1]
    if not isinstance(value, Segment):
        return otherwise(machine, node) if name in ("T", "mT", "real", "imag") else NotImplemented
    if name in ("real", "imag"):
        return whole_row(machine, node, value, value.dim, linear=True, alias=True)
    if (name == "T" and value.rank == 2) or (name == "mT" and value.rank >= 2):
        term = Apply(
            "transpose", True, (machine.read(value, node), -2, -1), (), {-1: -2, -2: -1}.get(value.dim, value.dim)
        )
        return machine.view(term, value.rank, value)
    return NotImplemented


@tokenwise("arange")
def _arange(machine: Machine, node: fx.Node) -> Any:
    """A range of constants with a step or of floats: the same for every document."""
    constant = all(
        isinstance(a, (int, float))
        for a in (*node.args, *map(node.kwargs.get, ("start", "end", "step")))
        if a is not None
    )
    return outside_call(machine, node) if constant and not node.all_input_nodes else NotImplemented


@documents("tensor")
@tokenwise("tensor", "scalar_tensor")
def _tensor(machine: Machine, node: fx.Node) -> Any:
    """Written-down numbers, or those of the document: ``torch.tensor([start, n])``."""
    if node.all_input_nodes:
        return _of_numbers(machine, node)
    kwargs = tuple(sorted(node.kwargs.items()))
    return machine.computed((node.target, node.op == "call_method", frozen_args(node.args), kwargs), example(node))


def _of_numbers(machine: Machine, node: fx.Node) -> Any:
    given, fake = argument(node, 0, "data"), example(node)
    listed = list(given) if isinstance(given, (tuple, list)) else [given]
    values = [machine.value(item) for item in listed]
    numbers = [isinstance(v, (Affine, Number)) or type(v) in (int, float) for v in values]
    shared = [not isinstance(v, Number) and not (isinstance(v, Affine) and not v.is_shared) for v in values]
    if not all(numbers) or all(shared) or set(node.kwargs) - {"data", "dtype", "device"}:
        return NotImplemented
    terms = [as_term(machine, i, node) if isinstance(i, fx.Node) else _constant(machine, i) for i in listed]
    rows = tuple(machine.intern(Apply("to", True, (term, fake.device, fake.dtype), (), 0)) for term in terms)
    if not isinstance(given, (tuple, list)):
        return document(machine, rows[0])
    return document(machine, Apply(torch.stack, False, (rows, 1), (), 0))


def _constant(machine: Machine, value: float) -> Any:
    """A number of the program, once per document."""
    like = machine.intern(DocVector(Affine(), torch.float64 if isinstance(value, float) else torch.int64))
    return machine.intern(Apply(torch.full_like, False, (like, value), (), 0))


# === Values that stay the same ===============================================================================


@tokenwise("dropout")
def _dropout(machine: Machine, node: fx.Node) -> Any:
    value = first_input(machine, node)
    p, training = argument(node, 1, "p", 0.5), argument(node, 2, "training", argument(node, 2, "train", True))
    if isinstance(p, fx.Node) or not (p == 0 or training is False):
        raise Refused("no-rule", "dropout draws random numbers for every document in turn", node)
    if not isinstance(value, Segment) or argument(node, 3, "inplace", False):
        return NotImplemented
    return machine.view(machine.read(value, node), value.rank, value)
