"""What adds to an entry of a tensor: ``sums[0] += x``, ``sums[0] = sums[0] - x``, ``sums[0].add_(x)``."""

from __future__ import annotations

import dataclasses
import operator
from typing import Any

import torch
from torch import fx

from packpass.semantics.binding import example
from packpass.semantics.call import call_of

_PLAIN = (int, type(None), type(Ellipsis))


@dataclasses.dataclass(frozen=True)
class AddedEntry:
    """``total[index] += share``, or ``-=`` if ``less``; ``nodes`` are the look at it, the sum and the store, if any."""

    total: fx.Node
    index: Any
    share: Any
    less: bool
    nodes: tuple[fx.Node, ...]


def added_entry(node: fx.Node) -> AddedEntry | None:
    """What begins with this look at an entry, if nobody else sees it or the sum."""
    look = _look(node)
    if look is None or len(node.users) != 1:
        return None
    total, index = look
    (add,) = node.users
    call = call_of(add)
    if call is None or call.op not in ("add", "sub") or call.get("input") is not node:
        return None
    share = call.get("other")
    if share is node or call.get("alpha", default=1) != 1:
        return None
    puts = list(add.users)
    stores = _stores(puts[0], total, index, add) if len(puts) == 1 else ()
    if not stores and (puts or not call.in_place):
        return None
    return AddedEntry(total, index, share, call.op == "sub", (node, add, *stores))


def _look(node: fx.Node) -> tuple[fx.Node, Any] | None:
    """``(total, index)`` of ``total[index]``."""
    if not isinstance(example(node), torch.Tensor) or node.kwargs:
        return None
    if node.target is operator.getitem:
        total, index = node.args
    elif node.target in (torch.select, "select") and len(node.args) == 3 and node.args[1] == 0:
        total, _, index = node.args
    else:
        return None
    return (total, index) if isinstance(total, fx.Node) else None


def _stores(put: fx.Node, total: fx.Node, index: Any, value: fx.Node) -> tuple[fx.Node, ...]:
    """The nodes of ``total[index] = value``, which may look at the entry before they write all of it."""
    if put.target is not operator.setitem or put.args[2] is not value:
        return ()
    if put.args[:2] == (total, index):
        return (put,)
    entry = put.args[0]
    if not isinstance(entry, fx.Node) or put.args[1] is not Ellipsis or list(entry.users) != [put]:
        return ()
    return (entry, put) if _look(entry) == (total, index) else ()


def is_plain(index: Any) -> bool:
    """Is it an index of numbers of the program alone?"""
    entries = index if isinstance(index, tuple) else (index,)
    bounds = [b for e in entries for b in ((e.start, e.stop, e.step) if isinstance(e, slice) else (e,))]
    return all(type(bound) in _PLAIN for bound in bounds)


def is_to_the_end(index: Any) -> bool:
    """Is it a slice of all entries from a number on?"""
    return isinstance(index, slice) and index.stop is None and index.step is None
