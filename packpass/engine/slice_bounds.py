"""Slices up to a number that only the data says, ``x[: cu[-1]]``, for Inductor.

It asks whether such a number is counted from the end, and fails because nobody knows. Those of documents are not; so it
is checked in front of the slice. A call in which it is below 0 runs as it was written (`packpass.engine.unfit`).
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

from packpass._compat import free_unbacked_symbols, statically_known_true
from packpass.semantics import example, op_of


def check_bounds(graph: fx.Graph) -> None:
    """Every such number is checked once, in front of the first slice that it bounds. How long a slice is follows from
    its bounds then, which is no new size to who traces the graph again."""
    checked: set[fx.Node] = set()
    known: set[Any] = set()
    for node in list(graph.nodes):
        bounds = list(_bounds(node))
        for bound in bounds:
            if bound in checked or not _may_be_negative(example(bound)):
                continue
            checked.add(bound)
            known |= free_unbacked_symbols(example(bound))
            with graph.inserting_before(node):
                holds = graph.call_function(operator.ge, (bound, 0))
                holds.meta["example_value"] = example(bound) >= 0
                graph.call_function(torch._check, (holds,))
        if any(free_unbacked_symbols(example(bound)) & known for bound in bounds):
            node.meta.pop("unbacked_bindings", None)


def _bounds(node: fx.Node) -> Iterator[fx.Node]:
    if node.op != "call_function" or op_of(node) not in ("getitem", "setitem"):
        return
    key: Any = node.args[1]
    for entry in key if isinstance(key, tuple) else (key,):
        parts = (entry.start, entry.stop) if isinstance(entry, slice) else ()
        yield from (part for part in parts if isinstance(part, fx.Node))


def _may_be_negative(number: Any) -> bool:
    if not isinstance(number, torch.SymInt) or not free_unbacked_symbols(number):
        return False
    return not statically_known_true(number >= 0) and not statically_known_true(number < 0)
