"""Indices as one entry for each dimension, and what an index means in the tensor that another index has cut."""

from __future__ import annotations

import operator
from typing import Any

from torch import fx

from packpass.semantics import example
from passes.document_loops.machine import Machine
from passes.document_loops.terms import Outside, Slice
from passes.refused import Refused


def expand_index(index: Any, rank: int, node: fx.Node) -> list[Any]:
    """An index as one entry per dimension of the tensor (no None, no Ellipsis)."""
    entries = list(index) if isinstance(index, tuple) else [index]
    if any(entry is None for entry in entries):
        raise Refused("no-rule", "indexing a segment with None has no rule; use unsqueeze", node)
    dots = [i for i, entry in enumerate(entries) if entry is Ellipsis]
    if dots:
        at = dots[0]
        entries[at : at + 1] = [slice(None)] * (rank - len(entries) + 1)
    entries += [slice(None)] * (rank - len(entries))
    return entries


def constant_entry(machine: Machine, entry: Any) -> bool:
    """An index entry for an unpacked dimension: integers and slices that are the same for every document."""
    if isinstance(entry, slice):
        return all(p is None or isinstance(p, int) for p in (entry.start, entry.stop, entry.step))
    return isinstance(entry, int) and not isinstance(entry, bool)


def through_constants(machine: Machine, base: fx.Node, entries: list[Any]) -> tuple[fx.Node, list[Any]] | None:
    """``(x, entries of x)`` where ``base`` is ``x`` itself, or ``x[constant index]``, indexed by ``entries``."""
    value = machine.value(base)
    if not isinstance(value, Outside):
        return None
    if value.node is not None:
        return value.node, entries
    target, _, args, kwargs = value.call  # type: ignore[misc]
    source = args[0] if args else None
    if target is not operator.getitem or kwargs or not isinstance(source, Outside) or source.node is None:
        return None
    index = args[1] if isinstance(args[1], tuple) else (args[1],)
    if any(e is None or isinstance(e, (Outside, tuple)) for e in index):
        return None
    outer, inner = expand_index(index, example(source.node).dim(), base), iter(entries)
    both = [e if isinstance(e, int) else _within(e, next(inner)) for e in outer]
    return None if None in [e for e in both if not isinstance(e, fx.Node)] else (source.node, both)


def _within(cut: Any, entry: Any) -> Any:
    """An entry of an index into what a constant index has cut, as one into the whole; None if it is none."""
    if cut in (Slice(None, None, None), slice(None)):
        return entry
    constant = all(p is None or type(p) is int for p in (cut.start, cut.stop, cut.step))
    return slice(cut.start, cut.stop, cut.step) if entry == slice(None) and constant else None
