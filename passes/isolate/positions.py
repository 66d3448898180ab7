"""Values that say something about positions, where they meet tokens: every document counts from 0.

``arange(T)``, a slice of learned positions, tables of sines: all that is made from the row's length alone. A token at
position p of its document gets what the value has at slot p, provided that this is the same for a row of any length.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor, fx

from packpass._compat import hint_of
from packpass.semantics import example, op_name
from packpass.semantics.call import invoke
from packpass.semantics.effects import effects_of
from passes.isolate.boundaries import Boundaries
from passes.isolate.kinds import PLAIN, SIZED, Aligned, Row
from passes.isolate.reading import Reading
from passes.refused import Refused


def plain_inputs(reading: Reading, tables: list[Aligned]) -> set[fx.Node]:
    """What has to be known to compute the tables again for another length."""
    return {n for t in tables for n in (t.table, *_closure(reading, t.table)[1])}


def varying(reading: Reading, tables: list[Aligned], values: dict[fx.Node, Any]) -> list[Aligned]:
    """The tables that differ from slot to slot. Raises `Refused` for one that depends on how long the row is."""
    found = []
    for t in tables:
        length = (hint_of(reading.length) or 1) if isinstance(reading.length, torch.SymInt) else reading.length
        here = values[t.table]
        if reading.written.writers(t.table):
            here = _value(reading, t.table, values, length)
        if here.shape[t.dim] and torch.equal(here, here.narrow(t.dim, 0, 1).expand_as(here)):
            continue
        for other in {max(length // 2, 1), max(length - 1, 1)}:
            if not _starts_with(reading, t.table, values, other, here.narrow(t.dim, 0, other)):
                raise Refused(
                    "mixes-documents",
                    f"{op_name(t.table)} gives positions that depend on how long the whole row is; "
                    "compute them per document (packpass.ops.position_ids)",
                    t.table,
                )
        found.append(t)
    return found


def _starts_with(reading: Reading, table: fx.Node, values: dict[fx.Node, Any], length: int, start: Tensor) -> bool:
    """Does a table of a shorter row have these values?"""
    try:
        return torch.equal(_value(reading, table, values, length), start)
    except (RuntimeError, IndexError, ValueError) as error:
        raise Refused(
            "mixes-documents", f"positions of a row of another length cannot be computed: {error}", table
        ) from error


def rewrite(graph: fx.Graph, tables: list[Aligned], boundaries: Boundaries) -> None:
    """Look every table up by the positions in documents."""
    made: dict[tuple[fx.Node, int], fx.Node] = {}
    for t in tables:
        key = (t.table, t.dim)
        if key not in made:
            positions = boundaries.positions()
            order = {n: i for i, n in enumerate(graph.nodes)}
            writers = boundaries.reading.written.writers(t.table)
            latest = max((t.table, positions, *writers), key=order.__getitem__)
            with graph.inserting_after(latest):
                made[key] = graph.call_function(torch.index_select, (t.table, t.dim, positions))
            made[key].meta = t.table.meta.copy()
        t.user.replace_input_with(t.table, made[key])


def _closure(reading: Reading, table: fx.Node, deep: bool = False) -> tuple[list[fx.Node], list[fx.Node]]:
    """``(nodes that depend on the row's length, what they are given)`` of a value; ``deep``: with all that is computed
    from constants, so that only inputs are given."""
    inner: dict[fx.Node, None] = {}
    given: dict[fx.Node, None] = {}
    stack = [table]
    while stack:
        node = stack.pop()
        if node in inner or node in given:
            continue
        kind = reading.kinds[node]
        writers = reading.written.writers(node) if kind in (SIZED, PLAIN) else []
        computed = kind is SIZED or (kind is PLAIN and (deep or bool(writers)))
        if computed and node.op in ("call_function", "call_method"):
            if not dataclasses.replace(effects_of(node), writes=()).repeatable:
                raise Refused("mixes-documents", "positions are drawn at random", node)
            inner[node] = None
            stack += [*node.all_input_nodes, *writers]
        else:
            given[node] = None
    order = {n: i for i, n in enumerate(reading.graph.nodes)}
    return sorted(inner, key=order.__getitem__), list(given)


def _value(reading: Reading, table: fx.Node, values: dict[fx.Node, Any], length: int, deep: bool = False) -> Tensor:
    """A table for a row of another length."""
    inner, given = _closure(reading, table, deep)
    known: dict[fx.Node, Any] = {}
    for n in given:
        size = example(n)
        known[n] = length if isinstance(size, torch.SymInt) and reading.of_length(size) else values.get(n)
        kind = reading.kinds[n]
        if isinstance(kind, Row) and known[n] is not None:  # of which only the form is asked: ``ones_like(ids)``
            known[n] = known[n].narrow(kind.dim, 0, length)
        if known[n] is None:
            raise Refused("mixes-documents", f"positions depend on {n.name}, which holds tokens", table)
    for n in inner:
        args, kwargs = _of_length(reading, fx.map_arg((n.args, dict(n.kwargs)), lambda x: known[x]), length)
        known[n] = invoke(n, args, kwargs)
    result = known[table]
    assert isinstance(result, Tensor)
    return result


def _of_length(reading: Reading, arguments: Any, length: int) -> Any:
    """Arguments of a call for a row of another length, where the row's length is a number in the code."""
    if isinstance(arguments, (tuple, list)):
        return type(arguments)(_of_length(reading, item, length) for item in arguments)
    if isinstance(arguments, dict):
        return {key: _of_length(reading, item, length) for key, item in arguments.items()}
    if isinstance(arguments, slice):
        parts = (arguments.start, arguments.stop, arguments.step)
        return slice(*(_of_length(reading, part, length) for part in parts))
    constant = isinstance(arguments, int) and not isinstance(arguments, bool) and not reading.symbols
    return length if constant and arguments == reading.length else arguments


LONGEST = 1024
"""Slots of the largest mask that is looked at."""


def order_of_mask(reading: Reading, mask: fx.Node) -> bool | None:
    """Does a mask that is made from the row's length alone show every key (False), or every key that is not later
    (True)? None for any other mask, and for one of which that is not certain.

    A mask changes its pattern only at the numbers that its code mentions (a window, a number of first tokens), so it is
    looked at for more slots than the largest of them.
    """
    if reading.kinds[mask] is not SIZED or not reading.symbols or mask.op == "placeholder":
        return None
    inner, given = _closure(reading, mask, deep=True)
    if any(isinstance(example(n), Tensor) for n in given):
        return None
    length = max([16, *(abs(n) for node in inner for n in _numbers((node.args, node.kwargs)))]) * 2 + 3
    if length > LONGEST:
        return None
    value = _value(reading, mask, {n: example(n) for n in given}, length, deep=True)
    if value.dim() < 2 or value.shape[-2:] != (length, length):
        return None
    shown = value if value.dtype is torch.bool else value == 0
    if value.dtype is not torch.bool and not bool((shown | (value <= torch.finfo(value.dtype).min / 2)).all()):
        return None
    causal = torch.ones(length, length, dtype=torch.bool, device=value.device).tril()
    if bool(shown.all()):
        return False
    return True if torch.equal(shown, causal.expand_as(shown)) else None


def _numbers(value: Any) -> list[int]:
    """The whole numbers in the arguments of a call."""
    if isinstance(value, (tuple, list)):
        return [n for item in value for n in _numbers(item)]
    if isinstance(value, dict):
        return _numbers(list(value.values()))
    if isinstance(value, slice):
        return _numbers([value.start, value.stop, value.step])
    if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 2**40:
        return [int(value)]
    return []
