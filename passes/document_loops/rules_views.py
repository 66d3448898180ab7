"""Rules for sizes and for views that keep the packed dimension whole."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from packpass.semantics import argument, example
from packpass.semantics.meaning import axis_indices
from packpass.semantics.views import TRANSPOSING, permutation_of
from passes.document_loops.documents import length, shared_size
from passes.document_loops.elsewhere import own_documents
from passes.document_loops.integers import FULL, Affine, Bound
from passes.document_loops.machine import OPAQUE, Machine, Segment, frozen_args
from passes.document_loops.moved import count, ends_of
from passes.document_loops.op_names import label, name_of
from passes.document_loops.parts import Cut, sizes_of
from passes.document_loops.rules import bound_arguments, documents, outside_call, rule
from passes.document_loops.terms import LENGTH, Apply
from passes.refused import Refused


@documents("size", "sym_size")
@rule("size", "sym_size")
def _size(machine: Machine, node: fx.Node) -> Any:
    value, dim = machine.value(node.args[0]), argument(node, 1, "dim")
    if isinstance(value, Segment) and isinstance(dim, int) and dim % value.rank == value.rank + value.dim:
        if value.store.exact and machine.boundaries is not None:
            return count(ends_of(machine.boundaries, value.window))
        if value.window.between is not None:
            return length(machine, value.window)
    if isinstance(value, Cut) and isinstance(dim, int) and sizes_of(value, dim) is not None:
        return sizes_of(value, dim)
    fake = example(node)
    return Affine.of(fake) if isinstance(fake, int) and not isinstance(fake, bool) else OPAQUE


def first_bound(length: Affine) -> int:
    """``k`` of the boundary ``i + k`` at which a document of this length begins."""
    return min(atom.k for atom, _ in length.atoms if isinstance(atom, Bound))


def takes_length(machine: Machine, arg: Any) -> bool:
    """Is ``arg`` the length of the document? The first length that is met says which documents there are."""
    value = machine.affine(arg)
    length = value.length_of() if value is not None and not value.is_const else None
    if value is not None and length is None and machine.boundaries is not None:
        own = own_documents(value)  # of numbers of their own: where they begin, and where they end
        if own is None or own.made is None or machine.boundaries != (own, 0):
            return False
        machine.require(value, "ge", Affine(), "packpass: a size is negative, as a document ends before it begins")
        return True
    if value is None or length is None or length[1]:
        return False
    if machine.boundaries is None:
        machine.use((length[0], first_bound(value)), arg)
    return bool(length[0] == machine.boundaries[0])


def shape_with_length(machine: Machine, sizes: Any, node: fx.Node, *others: Any) -> tuple[tuple[Any, ...], int]:
    """``(sizes with LENGTH in place of the document's length, position of it)``; ``others`` stand for one as well."""
    out: list[Any] = []
    at = None
    for d, size in enumerate(sizes):
        if isinstance(size, int):
            out.append(size)
        elif size in others or takes_length(machine, size):
            if at is not None:
                raise Refused("no-rule", f"{label(node)} with two packed dimensions has no rule", node)
            out.append(LENGTH)
            at = d
        else:
            shared = shared_size(machine, size)
            if shared is None:
                raise Refused("no-rule", f"{label(node)} with a size that is not understood has no rule", node)
            out.append(shared)
    if at is None:
        raise Refused("no-rule", f"{label(node)} has no dimension of the document's length", node)
    return tuple(out), at - len(out)


@rule("reshape", "view")
def _reshape(machine: Machine, node: fx.Node) -> Any:
    """``view`` / ``reshape`` that keeps the packed dimension whole."""
    value = machine.value(node.args[0])
    if not isinstance(value, Segment):
        return outside_call(machine, node)
    sizes = node.args[1] if len(node.args) == 2 and isinstance(node.args[1], (tuple, list)) else node.args[1:]
    if node.kwargs or any(isinstance(s, torch.dtype) for s in sizes) or value.window != FULL:
        raise Refused("no-rule", f"this {label(node)} has no rule", node)
    before, after = example(node.args[0]), example(node)
    at = value.rank + value.dim
    length = before.shape[at]
    # The packed dimension stays whole if the dimensions on both of its sides keep their products.
    candidates = [
        d
        for d in range(after.dim())
        if _same(after.shape[d], length) and _same(_product(after.shape[:d]), _product(before.shape[:at]))
    ]
    candidates = candidates or _by_argument(machine, value, list(sizes), before, after)
    if not candidates or (any(isinstance(s, int) and s == -1 for s in sizes) and len(candidates) != 1):
        raise Refused("no-rule", f"{label(node)} merges or splits the packed dimension", node)
    to = candidates[0]
    new = tuple(LENGTH if d == to else _static(after.shape[d], node) for d in range(after.dim()))
    term = Apply("reshape", True, (machine.read(value, node), *new), (), to - after.dim())
    return machine.view(term, after.dim(), value)


def _by_argument(machine: Machine, value: Any, sizes: list[Any], before: Any, after: Any) -> list[int]:
    """The dimension that is given the document's length, where torch has another expression for that of a slice."""
    at = value.rank + value.dim
    own = [d for d, s in enumerate(sizes) if isinstance(s, fx.Node) and takes_length(machine, s)]
    if len(own) != 1 or len(sizes) != after.dim() or not value.store.exact:
        return []
    (to,) = own
    sides = ((before.shape[:at], after.shape[:to]), (before.shape[at + 1 :], after.shape[to + 1 :]))
    fixed = all(isinstance(n, int) for pair in sides for shape in pair for n in shape)
    return own if fixed and all(_product(a) == _product(b) for a, b in sides) else []


def _static(size: Any, node: fx.Node) -> int:
    if isinstance(size, int):
        return size
    raise Refused("no-rule", f"{label(node)} with a dynamic size beside the packed one has no rule", node)


def _same(a: Any, b: Any) -> bool:
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return bool(statically_known_true(a == b))


def _product(sizes: Any) -> Any:
    out: Any = 1
    for s in sizes:
        out = out * s
    return out


@rule(*TRANSPOSING, "unsqueeze", "squeeze")
def _permute(machine: Machine, node: fx.Node) -> Any:
    value = machine.value(node.args[0])
    if not isinstance(value, Segment):
        return outside_call(machine, node)
    order = permutation_of(node)
    at = value.rank + value.dim
    # Whether the row itself has one slot is not known here.
    dropped = axis_indices(bound_arguments(node).get("dim"), value.rank) if name_of(node) == "squeeze" else ()
    if order is None or dropped is None or at in dropped or at not in order:
        raise Refused("no-rule", f"this {label(node)} has no rule", node)
    dim = order.index(at) - len(order)
    kwargs = tuple(sorted(node.kwargs.items()))
    term = Apply(
        node.target, node.op == "call_method", (machine.read(value, node), *frozen_args(node.args[1:])), kwargs, dim
    )
    return machine.view(term, len(order), value)
