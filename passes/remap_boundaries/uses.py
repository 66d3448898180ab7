"""What a graph does with boundaries: which calls use them on the row before expansion, and which on the row after it.

Values that are made of boundaries alone (lengths, starts, a cast) are *derived*; the first call that brings them
together with anything else is a *use*. A use belongs to the row that its other operands, or its result, lie along. What
cannot be told is refused as soon as it matters: boundaries that are replaced in one place and not in another would be
worse than stale ones.
"""

from __future__ import annotations

import dataclasses
import enum
import re
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import fx

from packpass import markers
from packpass._compat import statically_known_true as known
from packpass.layout import rules
from packpass.layout.attention import AttentionCall, attention, named_arguments
from packpass.layout.axes import Axes, Axis, value_of
from packpass.layout.sources import last_name, root_of, source_name
from packpass.semantics import argument, example, op_name, read_inputs, ways
from packpass.semantics.effects import effects_of, written_inputs
from packpass.semantics.inner_graphs import subgraphs
from packpass.semantics.meaning import Looked, Sent
from packpass.semantics.names import base_name
from packpass.semantics.pointwise import slot_by_slot
from passes.refused import Refused
from passes.remap_boundaries.derived import (
    compared,
    is_derived,
    is_scaled,
    numbers_behind,
    repeated,
    stays_behind,
)

_BY_TOTAL = frozenset({"packpass::position_ids", "packpass::segment_ids", "packpass::window_mask"})
_LONGEST = re.compile(r"max_?(seq_?lens?|length|q|k|kv|s)(_\w+)?")


class Side(enum.Enum):
    """The row that a use cuts."""

    BEFORE = "before expansion"
    AFTER = "after expansion"
    NEITHER = "neither"


@dataclasses.dataclass(frozen=True)
class Use:
    """``cuts``: the call takes the boundaries for boundaries of the row (not just for numbers)."""

    node: fx.Node
    side: Side
    cuts: bool


@dataclasses.dataclass
class Uses:
    derived: list[fx.Node]
    """The boundaries and what is made of them, in the order of the graph."""
    uses: list[Use]
    attentions: list[tuple[fx.Node, AttentionCall]]
    """Calls of attention on the row after expansion, here or in a subgraph."""
    unclear: list[Refused] = dataclasses.field(default_factory=list)
    """Uses that are not understood: nothing may be replaced, should anything have to be."""

    def on(self, side: Side) -> list[Use]:
        return [use for use in self.uses if use.side is side]


@dataclasses.dataclass(frozen=True)
class Rows:
    """The rows before and after one expansion, as classes of axes, with their lengths. ``others``: rows that other
    expansions make. ``contested``: other expansions make this row, too."""

    axes: Axes
    before: frozenset[Axis]
    after: frozenset[Axis]
    others: frozenset[Axis]
    lengths: tuple[Any, Any]
    contested: bool

    def side(self, axis: Axis) -> Side | None:
        root = self.axes.find(axis)
        if root in self.after:
            return Side.AFTER
        if root in self.before:
            return Side.BEFORE
        return Side.NEITHER if root in self.others else None

    def by_length(self, size: Any) -> Side | None:
        """A row of a length that only one of the two has."""
        before, after = self.lengths
        if known(size == after) and not known(size == before) and not _one(size):
            return Side.AFTER
        return Side.BEFORE if known(size == before) and not known(size == after) and not _one(size) else None

    def sides(self, tensors: Iterable[tuple[fx.Node, int | None]]) -> set[Side]:
        return {s for axis in _axes(tensors) if (s := self.side(axis)) is not None}

    def sides_by_length(self, tensors: Iterable[tuple[fx.Node, int | None]]) -> set[Side]:
        sizes = [value_of(axis.node, axis.item).shape[axis.dim] for axis in _axes(tensors)]
        return {s for size in sizes if (s := self.by_length(size)) is not None}


def _axes(tensors: Iterable[tuple[fx.Node, int | None]]) -> Iterator[Axis]:
    for node, item in tensors:
        value = value_of(node, item)
        if isinstance(value, torch.Tensor):
            yield from (Axis(node, d, item) for d in range(value.dim()))


def _one(size: Any) -> bool:
    return isinstance(size, int) and size == 1


def collect(gm: Any, roots: Iterable[fx.Node], rows: Rows, skip: str) -> Uses:
    """Every use of boundaries in a graph and the graphs it calls.

    Args:
        roots: nodes of ``gm`` that hold boundaries.
        skip: calls that this rule made are not looked at.
    """
    derived = dict.fromkeys(roots)
    found = Uses([], [], [])
    behind, scaled = set[fx.Node](), set[fx.Node]()
    for node in gm.graph.nodes:
        own = [n for n in node.all_input_nodes if n in derived]
        if node in derived or not own or node.meta.get("packpass") == skip:
            continue
        if is_derived(node, derived):
            derived[node] = None
            if not behind.isdisjoint(own) or stays_behind(node, *rows.lengths):
                behind.add(node)
            if not scaled.isdisjoint(own) or is_scaled(node):
                scaled.add(node)
            continue
        try:
            use = _use(gm, node, derived, rows, found, skip)
        except Refused as unclear:
            found.unclear.append(unclear)
            continue
        if use is not None:
            found.uses.append(use)
        # A scaled length may be looked up for every slot; as places in the row, scaled boundaries are other boundaries.
        table = _table(node)
        old = next((n for n in own if n in behind or (n in scaled and n is not table)), None)
        if use is not None and use.side is Side.AFTER and old is not None:
            what = "the expanded row is cut by boundaries that are scaled, or mixed with the row's old length"
            found.unclear.append(Refused("expansion-use", what, old))
    found.unclear += _mixed_numbers(found.uses, derived, rows)
    found.derived = sorted(derived)
    return found


def _use(gm: Any, node: fx.Node, derived: dict[fx.Node, None], rows: Rows, found: Uses, skip: str) -> Use | None:
    """One use; None for what says nothing about rows."""
    name = op_name(node)
    checks = effects_of(node).checks
    if checks and Side.AFTER in {rows.by_length(n) for n in numbers_behind(node, derived)}:
        return Use(node, Side.AFTER, False)  # do documents fill the expanded row?
    if node.op == "output" or node.target is markers.BOUNDARIES or checks or name == "packpass::packed":
        return None
    if not any(n in derived for n in read_inputs(node)):
        return None  # their size is asked for
    if name in ("item", "tolist"):
        on_the_host(gm, node, rows)
        return None
    if name == "packpass::check_cu_seqlens":
        side = rows.by_length(example(node.args[1]))
        return Use(node, side, False) if side is not None else None
    if name.startswith("higher_order::"):
        return _inside(gm, node, derived, rows, found, skip)
    others = [(n, None) for n in node.all_input_nodes if n not in derived]
    results = [(node, item) for item in rules.outputs(node)]
    sides = rows.sides([*others, *results])
    call, copies = attention(node), repeated(node) is not None
    cuts = call is not None or copies or name.startswith("packpass::") or name in ("bucketize", "searchsorted")
    if not sides and (copies or name in _BY_TOTAL):
        total = argument(node, 3, "output_size") if copies else node.args[1]
        sides = {side for side in (rows.by_length(example(total)),) if side is not None}
    elif not sides and (not cuts or name in ("bucketize", "searchsorted")):
        sides = rows.sides_by_length(others)
    cuts = cuts or (compared(node) is not None and bool(sides))
    sides = sides or ({Side.NEITHER} if not cuts and _counts(node, name) else set())
    if len(sides) != 1:
        what = "rows before and after expansion at once" if sides else "a row that is not known"
        raise Refused("expansion-use", f"{name or node.name} uses boundaries with {what}", node)
    (side,) = sides
    if side is Side.AFTER and call is not None:
        found.attentions.append((node, call))
        found.unclear += _strangers(node, call, derived, rows)
    if side is Side.AFTER and not cuts and not _is_positional(node, name):
        raise Refused("expansion-use", f"what {name or node.name} makes of boundaries is not understood", node)
    looked_up = _looks_up(node) and side is Side.BEFORE
    return Use(node, side, cuts or looked_up)


def _strangers(node: fx.Node, call: AttentionCall, derived: dict[fx.Node, None], rows: Rows) -> Iterator[Refused]:
    """What a call of attention knows of documents, but not from these boundaries: it would not go with new ones."""
    for n in node.all_input_nodes:
        value = example(n)
        if n not in derived and isinstance(value, torch.Tensor) and value.dtype in (torch.int32, torch.int64):
            yield Refused("two-boundaries", "the call is also given other boundaries or lengths", node)
    other = call.other_boundaries
    if other is None or root_of(other) is root_of(call.boundaries):
        return
    if any(rows.side(Axis(k, call.dim)) is not Side.AFTER for k in call.keys):
        yield Refused("two-boundaries", "the keys are not known to lie along the row of the queries", node)


def _counts(node: fx.Node, name: str) -> bool:
    """A number of tokens that is used as a number: a mean over them, say."""
    return slot_by_slot(node) or name == "item"


def _is_positional(node: fx.Node, name: str) -> bool:
    """Does this call take boundaries for places in the row?"""
    value = example(node)
    whole = isinstance(value, torch.Tensor) and not value.is_floating_point()
    told = slot_by_slot(node) and whole and value.dtype is torch.bool
    return told or name == "where" or _looks_up(node) or (name in ("add", "sub") and whole)


def _looks_up(node: fx.Node) -> bool:
    """Does a call take numbers for places: an index, or where slots go?"""
    name = base_name(op_name(node))
    moves = any(isinstance(how, (Looked, Sent)) for _, how in ways(node))
    return moves or name == "getitem" or name in ("setitem", "index_put")


def _table(node: fx.Node) -> fx.Node | None:
    """What a call looks numbers up in."""
    if op_name(node) == "getitem" and isinstance(node.args[0], fx.Node):
        return node.args[0]
    return next((n for n, how in ways(node) if isinstance(how, Looked)), None)


def _mixed_numbers(uses: list[Use], derived: dict[fx.Node, None], rows: Rows) -> Iterator[Refused]:
    """Numbers of tokens that meet something of the expanded row other than a single number: a sum over documents that
    is divided by their lengths, say. The one would follow the new boundaries, the other would not."""
    ends = {use.node for use in uses if use.side is Side.AFTER}
    for use in uses:
        if use.side is not Side.NEITHER or use.cuts:
            continue
        others = [n for n in use.node.all_input_nodes if n not in derived]
        stack, seen = [n for n in others if getattr(example(n), "ndim", 0) > 0], set[fx.Node]()
        while stack:
            node = stack.pop()
            if node in ends or Side.AFTER in rows.sides([(node, item) for item in rules.outputs(node)]):
                yield Refused("expansion-use", "numbers of tokens meet what is made of the expanded row", use.node)
                break
            if node not in seen:
                seen.add(node)
                stack += node.all_input_nodes
                stack += [user for user in node.users if user < use.node and node in written_inputs(user)]


def number_users(gm: Any, number: fx.Node) -> Iterator[fx.Node]:
    """The calls that a number on the host gets to: those that take or make tensors, here and in subgraphs."""
    stack, seen = [(gm, user, number) for user in number.users], set[fx.Node]()
    while stack:
        at, user, operand = stack.pop()
        if user in seen or effects_of(user).checks or user.op == "output":
            continue
        inside = subgraphs(at, user) if op_name(user).startswith("higher_order::") else []
        for sub, inputs, _ in inside:
            places = [inner for outer, inner in inputs if outer is operand]
            stack += [(sub, inner_user, place) for place in places for inner_user in place.users]
        if inside:
            continue
        seen.add(user)
        if any(isinstance(example(n), torch.Tensor) for n in (user, *user.all_input_nodes)):
            yield user
        else:
            stack += [(at, next_user, user) for next_user in user.users]


def on_the_host(gm: Any, number: fx.Node, rows: Rows) -> None:
    """A number on the host may say how long the longest document is, be checked, and cut the row before expansion.

    Raises:
        Refused: it is used for anything else, where it would not go with the new boundaries.
    """
    for user in number_users(gm, number):
        if attention(user) is not None:
            continue
        tensors = [(n, None) for n in (user, *user.all_input_nodes) if isinstance(example(n), torch.Tensor)]
        sides = rows.sides(tensors) | rows.sides_by_length(tensors)
        if Side.AFTER in sides or not sides:
            reason = "a length or boundary that is known on the host is used for more than attention and checks"
            raise Refused("expansion-use", reason, user)


def _inside(gm: Any, node: fx.Node, derived: dict[fx.Node, None], rows: Rows, found: Uses, skip: str) -> Use | None:
    """A subgraph uses the boundaries it is handed on one row only, so that it can be handed others."""
    sides, cuts = set[Side](), False
    known_graphs = subgraphs(gm, node)
    if not known_graphs:
        raise Refused("expansion-use", f"{op_name(node)} is not understood", node)
    for sub, inputs, _ in known_graphs:
        inner = collect(sub, [place for outer, place in inputs if outer in derived], rows, skip)
        sides |= {use.side for use in inner.uses if use.side is not Side.NEITHER}
        cuts = cuts or any(use.cuts for use in inner.uses)
        found.attentions += inner.attentions
        found.unclear += inner.unclear
    if len(sides) > 1:
        reason = "a part of the model uses boundaries on both sides of the expansion"
        found.unclear.append(Refused("expansion-use", reason, node))
        return Use(node, Side.AFTER, cuts)
    return Use(node, sides.pop(), cuts) if sides else None


def longest_elsewhere(gm: Any, uses: Uses, rows: Rows) -> None:
    """The length of the longest document, as the caller gives it, is stale like the boundaries. Attention gets another
    one; a table of positions that is made with it would be too short.

    Raises:
        Refused: it is used for more than attention.
    """
    calls = {node for node, _ in uses.attentions}
    for node in gm.graph.nodes:
        if node.op == "placeholder" and _LONGEST.fullmatch(last_name(source_name(node) or "")):
            if not isinstance(example(node), torch.Tensor) and calls & set(number_users(gm, node)):
                on_the_host(gm, node, rows)
    given = {value for node in calls for value in longest(node).values() if isinstance(value, int)}
    given -= {size for size in rows.lengths if isinstance(size, int)}
    table = next((n for n in gm.graph.nodes if op_name(n) == "arange" and given & {*n.args, *n.kwargs.values()}), None)
    if table is not None:
        raise Refused("expansion-use", "a table has as many entries as the longest document before expansion", table)


def longest(node: fx.Node) -> dict[str, Any]:
    """The arguments of a call of attention that bound the length of documents, by name."""
    return {
        name: value
        for name, value in named_arguments(node).items()
        if _LONGEST.fullmatch(name) and (isinstance(value, (int, fx.Node)) and not isinstance(value, bool))
    }
