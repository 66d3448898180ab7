"""Documents of two rows, cut by two sets of boundaries, that one loop joins: a caption and the tokens of its image.

::

    torch.cat((text[cu[i] : cu[i + 1]], image[cu2[i] : cu2[i + 1]]))
    for t, x in zip(text.split(lengths), image.split(sizes)): out.append(torch.cat((t, x)))

The loop goes by the boundaries that it uses first, or by those of documents on which it computes. What is cut by others
may be joined to these documents, as it is or with its dimensions in another order, and the tokens of the one may attend
to those of the other; whatever else is done to it is refused as before.
"""

from __future__ import annotations

import dataclasses
import math
import operator
from typing import Any

import torch
from torch import fx

from packpass._compat import free_unbacked_symbols
from packpass.semantics import call_of, example
from packpass.semantics.effects import written_inputs
from packpass.semantics.views import PERMUTING, REGROUPING
from passes.document_loops.elsewhere import own_documents, size_of
from passes.document_loops.indices import constant_entry, expand_index
from passes.document_loops.integers import Affine, Boundaries, Derived
from passes.document_loops.lengths import same_length
from passes.document_loops.machine import Machine, frozen_args
from passes.document_loops.parts import OtherDocuments, counted
from passes.document_loops.rules import is_elementwise
from passes.document_loops.terms import Outside
from passes.document_loops.uneven import Foreign
from passes.document_loops.uneven_row import Each, Part
from passes.refused import Refused


def foreign(machine: Machine, node: fx.Node, base: fx.Node, index: Any, refused: Refused) -> Foreign | None:
    """``base[index]``, where one slice goes from one number of the document to another."""
    value, rank = machine.value(base), example(base).dim()
    if not isinstance(value, Outside) or example(node).dim() != rank:
        return None
    entries = expand_index(index, rank, node)
    cuts = [d for d, entry in enumerate(entries) if isinstance(entry, slice) and not constant_entry(machine, entry)]
    entry = entries[cuts[0]] if len(cuts) == 1 else None
    others = [slice(None) if d in cuts else other for d, other in enumerate(entries)]
    if entry is None or entry.step not in (None, 1) or not all(isinstance(other, slice) for other in others):
        return None
    if any(other != slice(None) for other in others):
        value = _of_whole(machine, operator.getitem, value, (tuple(others),), {})
    ends = [machine.affine(end) if isinstance(end, fx.Node) else None for end in (entry.start, entry.stop)]
    bounds = [end.bound() if end is not None else None for end in ends]
    if any(bound is None or bound[1] for bound in bounds) or None in ends:
        return _between(machine, value, entry, cuts[0], rank, refused)
    first, second = (bound[0] for bound in bounds if bound is not None)
    if first.of != second.of or first.of.lengths or first.of.made is not None or (first.k, second.k) != (0, 1):
        return _between(machine, value, entry, cuts[0], rank, refused)
    part = Part(Affine.of(first), Affine.of(second), each=Each.ROW)
    return Foreign(value, part, rank, cuts[0] - rank, first.of, refused)


def _between(machine: Machine, value: Outside, cut: slice, at: int, rank: int, refused: Refused) -> Foreign | None:
    """Slots of a row from one number on up to another, as Python counts."""
    extent = size_of(machine.fake(value).shape[at], refused.node) if value.node and refused.node else None
    ends = None if extent is None else counted(machine, cut, extent)
    documents = None if ends is None else own_documents(ends[1].plus(ends[0], -1))
    if isinstance(refused, OtherDocuments):
        documents = refused.documents
    if ends is None or documents is None:
        return None
    stop = ends[1] if cut.start is None or cut.stop is None else Affine.of(Derived(max, ends))
    return Foreign(value, Part(ends[0], stop, each=Each.ROW), rank, at - rank, documents, refused)


def foreign_split(
    value: Outside, lengths: fx.Node, rank: int, dim: int, documents: Boundaries, refused: Refused
) -> Foreign:
    """A part of ``x.split(lengths, dim)``."""
    part = Part(Affine(), Affine(), each=Each.ROW, lengths=lengths)
    return Foreign(value, part, rank, dim % rank - rank, documents, refused)


def foreign_view(machine: Machine, node: fx.Node) -> Any:
    """Such a part with other dimensions in another order or number, as another kind of numbers, times a number, or
    times a matrix that all documents share: the whole row so, cut by the same numbers. NotImplemented for others."""
    call, first = call_of(node), node.args[0] if node.args else None
    value = machine.values.get(first) if isinstance(first, fx.Node) else None
    others = [machine.value(arg) for arg in node.all_input_nodes if arg is not first]
    fake = example(node)
    if not isinstance(value, Foreign) or call is None or written_inputs(node) or not isinstance(fake, torch.Tensor):
        return NotImplemented
    slots = [d for d, size in enumerate(fake.shape) if isinstance(size, torch.SymInt) and free_unbacked_symbols(size)]
    if len(slots) != 1:
        return NotImplemented
    target, args, kwargs = node.target, node.args[1:], dict(node.kwargs)
    if call.op in REGROUPING and _keeps_slots(example(node.args[0]), value.dim, fake, slots[0]):
        target, args, kwargs = "reshape", tuple(-1 if d == slots[0] else size for d, size in enumerate(fake.shape)), {}
    elif call.op == "linear" and value.dim != -1 and all(isinstance(other, Outside) for other in others):
        args = tuple(machine.value(arg) for arg in args)
        kwargs = {name: machine.value(arg) for name, arg in kwargs.items()}
    elif others or not _is_alike_on_slots(node, call.op):
        return NotImplemented
    made = _of_whole(machine, target, value.of, args, kwargs)
    return dataclasses.replace(value, of=made, rank=fake.dim(), dim=slots[0] - fake.dim())


def _is_alike_on_slots(node: fx.Node, op: str) -> bool:
    """Does a call of one tensor do the same for every slot, or move dimensions alone?"""
    return op in PERMUTING or is_elementwise(node) or (op == "getitem" and _is_whole(node.args[1]))


def _is_whole(index: Any) -> bool:
    """Does an index take all there is, perhaps with new dimensions?"""
    entries = index if isinstance(index, tuple) else (index,)
    return all(entry is None or entry is Ellipsis or entry == slice(None) for entry in entries)


def _keeps_slots(before: torch.Tensor, dim: int, after: torch.Tensor, at: int) -> bool:
    """Do the dimensions in front of the slots, and those behind, hold as much as before?"""
    was = before.dim() + dim
    parts = before.shape[:was], after.shape[:at], before.shape[was + 1 :], after.shape[at + 1 :]
    if any(type(size) is not int for part in parts for size in part):
        return False
    front, new_front, back, new_back = map(math.prod, parts)
    return (front, back) == (new_front, new_back)


def _of_whole(machine: Machine, target: Any, whole: Outside, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Outside:
    """The call on the row that the part is cut from."""
    method = isinstance(target, str)

    def fake(value: Any) -> Any:
        return machine.fake(value) if isinstance(value, Outside) else value

    given, named = [fake(arg) for arg in (whole, *args)], {name: fake(arg) for name, arg in kwargs.items()}
    result = getattr(given[0], target)(*given[1:], **named) if method else target(*given, **named)
    call = (target, method, (whole, *frozen_args(args)), tuple(sorted(kwargs.items())))
    return machine.computed(call, result)


def attended(machine: Machine, node: fx.Node, values: list[Any]) -> Part:
    """Where the keys of a document lie that its queries attend to, in a row of others; raises `Refused`."""
    query, key, value = values
    if isinstance(query, Foreign):
        raise OtherDocuments(query.refused, query.documents, parts=False)
    fits = isinstance(key, Foreign) and isinstance(value, Foreign) and key.part == value.part
    start, stop = (key.part.start.bound(), key.part.stop.bound()) if fits else (None, None)
    follow = start is not None and stop is not None and (start[0].k, stop[0].k, start[1], stop[1]) == (0, 1, 0, 0)
    if not fits or not (key.part.lengths is not None or follow):
        raise Refused("no-rule", "attention between a document and something else has no rule", node)
    rows = [machine.fake(side.of).shape[side.dim] for side in (key, value)]
    if not same_length(*rows):
        raise Refused("no-rule", "attention to keys and values of rows of different lengths has no rule", node)
    part: Part = key.part
    return part


JOINING = frozenset({"cat", "scaled_dot_product_attention"})
"""Calls that take such parts beside the loop's own documents."""


def refuse_foreign(machine: Machine, node: fx.Node, joins: bool) -> None:
    """Such a part is joined to others, attended to, and asked for its size; nothing else."""
    for arg in node.all_input_nodes:
        value = machine.values.get(arg)
        if isinstance(value, Foreign) and not joins and isinstance(example(node), torch.Tensor):
            raise OtherDocuments(value.refused, value.documents, parts=False)
