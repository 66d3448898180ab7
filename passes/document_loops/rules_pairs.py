"""Rules for values of every two slots of a document (`passes.document_loops.pairs`): how masks and scores are made, and
what may be done to them before attention takes them up.

Does not handle: scores that leave the loop or are reduced otherwise than by a softmax over the keys, dropout, masks
that depend on data, biases by distance.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import fx

from packpass.semantics import argument, call_of, example, op_of
from packpass.semantics.call import invoke
from packpass.semantics.creation import LIKE, SIZED, uniform
from packpass.semantics.names import base_name, is_in_place
from packpass.semantics.pointwise import COMPARISONS, COPIES, MIRRORED
from packpass.semantics.products import MATMULS
from packpass.semantics.reductions import SOFTMAXES
from packpass.semantics.views import EXPANDING, PERMUTING, REGROUPING, permutation_of
from passes.document_loops.documents import length
from passes.document_loops.integers import FULL, Affine
from passes.document_loops.machine import OPAQUE, Document, Machine, Segment
from passes.document_loops.op_names import label, name_of
from passes.document_loops.pairs import (
    Band,
    Distance,
    Pairs,
    Scores,
    Sum,
    banded,
    constant,
    place,
)
from passes.document_loops.rules import PAIRS, is_elementwise, pairs
from passes.document_loops.rules_attention import attended, product
from passes.document_loops.rules_views import takes_length
from passes.document_loops.scores import negative, number_of, on_scores
from passes.document_loops.terms import Slice
from passes.refused import Refused


@pairs("*")
def between(machine: Machine, node: fx.Node) -> Any:
    """Every op comes here before other rules see it; NotImplemented where no pairs are made or used."""
    values = [machine.value(a) for a in node.all_input_nodes]
    if any(isinstance(v, Pairs) for v in values):
        written = name_of(node) == "setitem" and not isinstance(machine.value(node.args[0]), Pairs)
        return NotImplemented if written else _on_pairs(machine, node)
    rows = [v for v in values if isinstance(v, Segment)]
    if not isinstance(example(node), torch.Tensor):
        return NotImplemented
    if len(rows) == 2 and rows[0].dim != rows[1].dim and is_elementwise(node) and not is_in_place(name_of(node)):
        return _of_two_rows(machine, node, rows)
    if rows and (len(rows) > 1 or any(isinstance(v, Document) for v in values)):
        return product(machine, node)
    if name_of(node) in SIZED:
        return _sized(machine, node)
    return NotImplemented


def _on_pairs(machine: Machine, node: fx.Node) -> Any:
    name = name_of(node)
    rule = PAIRS.get(base_name(name) if is_in_place(name) else name) or PAIRS.get(op_of(node))
    made = rule(machine, node) if rule is not None else NotImplemented
    if made is NotImplemented and isinstance(example(node), torch.Tensor) and is_elementwise(node):
        made = _pointwise(machine, node)
    if made is NotImplemented:
        raise Refused(
            "no-rule", f"there is no rule for {label(node)} of a value of every two slots of a document", node
        )
    if not is_in_place(name):
        return made
    target = machine.value(node.args[0])
    if not isinstance(target, Pairs) or target.dims != made.dims or target.rank != made.rank:
        raise Refused("no-rule", f"this {label(node)} has no rule", node)
    what = made.what
    if isinstance(what, Band):
        what = Band(what.values.to(example(node.args[0]).dtype))
    target.write(what, node)
    return target


def _first(machine: Machine, node: fx.Node) -> Pairs:
    value = machine.value(node.args[0]) if node.args else None
    if not isinstance(value, Pairs):
        raise Refused("no-rule", f"this {label(node)} has no rule", node)
    return value


# === Made of sizes and of rows ===============================================================================


def _sized(machine: Machine, node: fx.Node) -> Any:
    """``ones(n, n)`` and its like, for a document of n slots."""
    args = node.args[1:] if name_of(node).startswith("new_") else node.args
    sizes: Any = args[0] if args and isinstance(args[0], (tuple, list)) else args
    if sum(isinstance(s, fx.Node) for s in sizes) < 2:
        return NotImplemented
    own = [d for d, s in enumerate(sizes) if isinstance(s, fx.Node) and takes_length(machine, s)]
    number = uniform(name_of(node), node.args, node.kwargs)
    plain = isinstance(number, (bool, int, float)) and not node.kwargs.get("requires_grad")
    if len(own) != 2 or not plain or any(s != 1 for d, s in enumerate(sizes) if d not in own):
        return NotImplemented
    rank = len(sizes)
    return Pairs(constant(number, example(node).dtype), rank, (own[0] - rank, own[1] - rank))


def _of_two_rows(machine: Machine, node: fx.Node, rows: list[Segment]) -> Any:
    """``a[:, None] < b[None, :]``: of places a mask, of other numbers what is added to scores."""
    call = call_of(node)
    if call is None or len(node.args) != 2 or node.kwargs or any(r.window != FULL or not r.store.exact for r in rows):
        return NotImplemented
    given = [machine.value(a) for a in node.args]
    if not all(isinstance(v, Segment) for v in given):
        return NotImplemented
    a, b = (machine.read(v, node) for v in given)
    turned = given[0].dim > given[1].dim  # the first operand has the second dimension
    rank = example(node).dim()
    dims = (min(a.dim, b.dim), max(a.dim, b.dim))
    places = [place(t) for t in (a, b)]
    if None not in places and places[0][0] == places[1][0]:  # type: ignore[index]
        shift = places[0][1] - places[1][1]  # type: ignore[index]
        distance = Distance(-1 if turned else 1, shift)
        if call.op == "sub":
            return Pairs(distance, rank, dims)
        if call.op in COMPARISONS:
            return Pairs(_compared(distance, call.op, 0, node), rank, dims)
    if call.op in ("add", "sub") and example(node).is_floating_point():
        other = machine.intern(negative(b)) if call.op == "sub" else b
        ranked = [(a, given[0].rank), (other, given[1].rank)]
        return Pairs(Sum(*(ranked[::-1] if turned else ranked)), rank, dims)
    return NotImplemented


def _compared(distance: Distance, op: str, number: int, node: fx.Node) -> Band:
    """A comparison of a distance with a number; beyond that number it does not change."""
    values = distance.values(abs(number) + abs(distance.shift) + 2)
    return banded(getattr(torch, op)(values, number), node)


# === What keeps or moves pairs ===============================================================================


def _moved(value: Pairs, order: list[int], node: fx.Node) -> Pairs:
    """A view whose dimension d is the value's ``order[d]``, or new."""
    what, places = value.read(node), [order.index(value.rank + d) - len(order) for d in value.dims]
    dims = (min(places), max(places))
    if places[0] > places[1]:
        if isinstance(what, Band):
            what = what.turned()
        elif isinstance(what, Distance):
            what = dataclasses.replace(what, sign=-what.sign)
        elif isinstance(what, Sum):
            raise Refused("no-rule", f"{label(node)} of sums of two slots has no rule", node)
    if isinstance(what, Scores):
        fresh = (f"{len(what.letters)}.{d}" for d in range(len(order)))
        letters = tuple(what.letters[d] if d >= 0 else next(fresh) for d in order)
        sizes = {**what.sizes, **{a: 1 for a, d in zip(letters, order, strict=True) if d < 0}}
        if what.rows and order != list(range(value.rank)):
            raise Refused("no-rule", f"{label(node)} of scores with a bias has no rule", node)
        what = dataclasses.replace(what, letters=letters, sizes=sizes)
    return Pairs(what, len(order), dims, parent=(value, value.version))


@pairs(*PERMUTING)
def _permuted(machine: Machine, node: fx.Node) -> Any:
    value, order = _first(machine, node), permutation_of(node)
    own = {value.rank + d for d in value.dims}
    return NotImplemented if order is None or not own <= set(order) else _moved(value, order, node)


@pairs("getitem")
def _indexed(machine: Machine, node: fx.Node) -> Any:
    """``mask[None, :, :]``"""
    value, index = _first(machine, node), node.args[1]
    entries: list[Any] = list(index) if isinstance(index, tuple) else [index]
    if any(e is not None and e is not Ellipsis and e != slice(None) and e != Slice(None, None, None) for e in entries):
        return NotImplemented
    named = sum(isinstance(e, slice) for e in entries)
    at = entries.index(Ellipsis) if Ellipsis in entries else len(entries)
    entries[at : at + 1] = [slice(None)] * (value.rank - named)
    rest = iter(range(value.rank))
    return _moved(value, [-1 if e is None else next(rest) for e in entries], node)


@pairs(*REGROUPING)
def _regrouped(machine: Machine, node: fx.Node) -> Any:
    """Dimensions of one slot come or go."""
    value, after = _first(machine, node), example(node)
    sizes = example(node.args[0]).shape
    if not isinstance(after, torch.Tensor) or after.dtype != example(node.args[0]).dtype:
        return NotImplemented
    ones = [d for d, s in enumerate(sizes) if type(s) is int and s == 1]
    kept = [d for d in range(value.rank) if d not in ones]
    new = [d for d, s in enumerate(after.shape) if not (type(s) is int and s == 1)]
    if len(new) != len(kept) or any(
        type(sizes[a]) is int and sizes[a] != after.shape[b] for a, b in zip(kept, new, strict=True)
    ):
        return NotImplemented
    # Two dimensions of unknown size in this order are the same two: nothing else of the value is of unknown size.
    unknown = [d for d, s in enumerate(after.shape) if type(s) is not int]
    if len(unknown) != 2 or [d for d, s in enumerate(sizes) if type(s) is not int] != sorted(
        value.rank + d for d in value.dims
    ):
        return NotImplemented
    order = [-1] * after.dim()
    for a, b in zip(kept, new, strict=True):
        order[b] = a
    return _moved(value, order, node)


@pairs(*EXPANDING)
def _expanded(machine: Machine, node: fx.Node) -> Any:
    """The same mask for every head."""
    value, after = _first(machine, node), example(node)
    what = value.read(node)
    if isinstance(what, Scores) or name_of(node) != "expand" or not isinstance(after, torch.Tensor):
        return NotImplemented
    added = after.dim() - value.rank
    moved = _moved(value, [*([-1] * added), *range(value.rank)], node)
    return moved if all(type(after.shape[d]) is not int for d in moved.dims) else NotImplemented


@pairs(*COPIES)
def _copied(machine: Machine, node: fx.Node) -> Any:
    """Casts and copies."""
    value, fake = machine.value(node.args[0]), example(node)
    if not isinstance(value, Pairs):
        return NotImplemented
    what = value.read(node)
    same, call = fake.dtype == example(node.args[0]).dtype, call_of(node)
    if call is None or (isinstance(what, (Scores, Sum)) and call.op == "detach"):
        return NotImplemented  # attention has a gradient for its scores
    if same and call.op != "clone" and not call.get("copy", default=False):
        return value  # perhaps the tensor itself
    if isinstance(what, Scores):
        if not fake.is_floating_point():
            return NotImplemented
        what = dataclasses.replace(what, dtype=torch.promote_types(what.dtype, fake.dtype))
    elif isinstance(what, Band):
        what = Band(what.values.to(fake.dtype))
    elif not same and fake.dtype != torch.int64:
        return NotImplemented
    return Pairs(what, value.rank, value.dims)


@pairs("dropout")
def _dropped(machine: Machine, node: fx.Node) -> Any:
    """Dropout that drops nothing."""
    p, training = argument(node, 1, "p", 0.5), argument(node, 2, "training", True)
    value = _first(machine, node)
    if training is False:
        return value  # the tensor itself
    if type(p) in (int, float) and p == 0:
        return Pairs(value.read(node), value.rank, value.dims)
    raise Refused("no-rule", "dropout of attention weights has no rule", node)


# === Masks ===================================================================================================


@pairs("tril", "triu")
def _triangle(machine: Machine, node: fx.Node) -> Any:
    value, diagonal = _first(machine, node), argument(node, 1, "diagonal", 0)
    what = value.read(node)
    if not isinstance(what, Band) or value.dims != (-2, -1) or type(diagonal) is not int:
        return NotImplemented
    reach = max(what.reach, abs(diagonal) + 1)
    columns_ahead = -torch.arange(-reach, reach + 1)
    kept = columns_ahead <= diagonal if base_name(name_of(node)) == "tril" else columns_ahead >= diagonal
    values = what.widened(reach)
    return Pairs(banded(torch.where(kept, values, torch.zeros_like(values)), node), value.rank, value.dims)


@pairs(*LIKE)
def _like(machine: Machine, node: fx.Node) -> Any:
    value, number = _first(machine, node), uniform(name_of(node), node.args, node.kwargs)
    if name_of(node) == "full_like":
        number = argument(node, 1, "fill_value")
    if not isinstance(number, (bool, int, float)):
        return NotImplemented
    return Pairs(constant(number, example(node).dtype), value.rank, value.dims)


def _aligned(machine: Machine, node: fx.Node) -> tuple[list[Any], tuple[int, int]]:
    """What the operands of a pointwise op are, all of the same two dimensions."""
    found, dims = [], None
    for arg in node.args:
        value = machine.value(arg)
        if not isinstance(value, Pairs):
            found.append(value)
            continue
        if dims is not None and value.dims != dims:
            raise Refused("dim-mismatch", f"{label(node)} combines pairs of slots along different dimensions", node)
        dims = value.dims
        found.append(value.read(node))
    assert dims is not None
    return found, dims


def _pointwise(machine: Machine, node: fx.Node) -> Any:
    """An op that treats every two slots alike."""
    found, dims = _aligned(machine, node)
    name = op_of(node)
    rank = example(node).dim()
    if any(isinstance(f, Scores) for f in found):
        what = on_scores(machine, node, name, found, dims)
        return NotImplemented if what is None else Pairs(what, rank, dims)
    if any(isinstance(f, Sum) for f in found):
        return NotImplemented
    distances = [f for f in found if isinstance(f, Distance)]
    if distances:
        made = _on_distance(node, name, found, distances[0])
        return NotImplemented if made is None else Pairs(made, rank, dims)
    numbers = [f if isinstance(f, Band) else number_of(machine, a) for f, a in zip(found, node.args, strict=True)]
    plain = all(isinstance(v, (bool, int, float, str, torch.dtype, torch.device)) for v in node.kwargs.values())
    if any(n is None for n in numbers) or not plain:
        return NotImplemented
    reach = max(f.reach for f in found if isinstance(f, Band))
    args = [n.widened(reach) if isinstance(n, Band) else n for n in numbers]
    values = _computed(node, args)
    if values is None:
        return NotImplemented
    return Pairs(banded(values.to(example(node).dtype), node), rank, dims)


def _computed(node: fx.Node, args: list[Any]) -> torch.Tensor | None:
    """The op itself, on the numbers of a mask (in place, on a copy of them); None if it does not take these."""
    copies = [a.clone() if isinstance(a, torch.Tensor) else a for a in args]
    try:
        made = invoke(node, copies, node.kwargs)
    except Exception:  # whatever torch raises for such numbers: there is no common class
        return None
    sizes = next(a.shape for a in copies if isinstance(a, torch.Tensor))
    return made if isinstance(made, torch.Tensor) and made.shape == sizes else None


def _on_distance(node: fx.Node, name: str, found: list[Any], distance: Distance) -> Distance | Band | None:
    """Shifted by a number, made absolute, or compared with one."""
    if len(found) == 1:
        if name == "abs":
            return dataclasses.replace(distance, absolute=True)
        return dataclasses.replace(distance, sign=-distance.sign, shift=-distance.shift) if name == "neg" else None
    first, other = found[0] is distance, found[1] if found[0] is distance else found[0]
    if type(other) is not int or len(found) != 2 or node.kwargs:
        return None
    if name in COMPARISONS:
        return _compared(distance, name if first else MIRRORED[name], other, node)
    if name in ("add", "sub") and not distance.absolute and first:
        return dataclasses.replace(distance, shift=distance.shift + (other if name == "add" else -other))
    return None


# === Scores ==================================================================================================


@pairs(*SOFTMAXES)
def _softmax(machine: Machine, node: fx.Node) -> Any:
    value = _first(machine, node)
    what, dim = value.read(node), argument(node, 1, "dim", node.kwargs.get("axis"))
    if not isinstance(what, Scores) or what.weights or type(dim) is not int or name_of(node) != "softmax":
        return NotImplemented
    letter = what.letters[dim % value.rank]
    if letter not in (what.first.slots, what.second.slots):
        raise Refused("no-rule", "attention scores are normalised along another dimension than that of the keys", node)
    dtype = torch.promote_types(what.dtype, example(node).dtype)
    return Pairs(dataclasses.replace(what, weights=letter, dtype=dtype), value.rank, value.dims)


@pairs(*MATMULS, "einsum", "scaled_dot_product_attention")
def _attended(machine: Machine, node: fx.Node) -> Any:
    return attended(machine, node)


@pairs("size", "sym_size")
def _size(machine: Machine, node: fx.Node) -> Any:
    value, dim, fake = _first(machine, node), argument(node, 1, "dim"), example(node)
    if type(dim) is int and dim % value.rank - value.rank in value.dims:
        return length(machine, FULL)
    return Affine.of(fake) if type(fake) is int else OPAQUE
