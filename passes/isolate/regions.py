"""The parts of a graph in which tokens are mixed: each begins and ends with rows, and is run document by document."""

from __future__ import annotations

import dataclasses
import math

import torch
from torch import fx

from packpass.semantics import example, family_of, op_name, read_inputs, storage
from packpass.semantics.effects import (
    changes_mode,
    effects_of,
    grad_mode_changes,
    open_autocasts,
    written_inputs,
)
from passes.isolate.kinds import MIXED, SIZED, Row
from passes.isolate.reading import Reading
from passes.refused import Refused


@dataclasses.dataclass(frozen=True)
class Region:
    """``nodes`` in their order; ``entries``: rows from outside; ``others``: what has no tokens; ``exits``: rows that
    are used outside; ``states``: what is returned of the whole row, and stays as it is."""

    nodes: tuple[fx.Node, ...]
    entries: tuple[fx.Node, ...]
    others: tuple[fx.Node, ...]
    exits: tuple[fx.Node, ...]
    states: tuple[fx.Node, ...]

    @property
    def mixing(self) -> tuple[fx.Node, ...]:
        """Where the user's tokens meet: for messages."""
        return tuple(n for n in self.nodes if op_name(n))


def regions(reading: Reading) -> list[Region]:
    """The regions that hand rows to the rest of the graph. What is only put together (a loss, a mean of the whole row)
    is no part of any: no token sees it."""
    order = {node: i for i, node in enumerate(reading.graph.nodes)}
    groups = _groups(reading)
    found = []
    for nodes in _convex(reading, groups, order):
        members = set(nodes)
        seen = [n for n in nodes if any(user not in members for user in n.users)]
        reading.no_merged(reading.kinds[n] for n in seen)
        for n in seen:
            _finished(reading, n, members)
        exits = tuple(n for n in seen if isinstance(reading.kinds[n], Row))
        states = tuple(n for n in seen if n not in exits)
        if not exits:
            _only_put_together(reading, nodes, states)
            continue
        used = [n for n in states if any(user not in members and user.op != "output" for user in n.users)]
        if used:
            raise Refused(
                "mixes-documents",
                f"{_call(used[0])} is used for the whole row, as a state or weights of all documents, and "
                "cannot be one per document (is it returned, or cached? Ask the model not to: use_cache=False)",
                used[0],
            )
        found.append(_region(reading, nodes, exits, states, order))
    return found


def _finished(reading: Reading, node: fx.Node, members: set[fx.Node]) -> None:
    """Memory that was written slot by slot is a row when all is written: where it is returned."""
    dim = reading.row_dim(example(node))
    returned = all(user in members or user.op == "output" for user in node.users)
    if reading.kinds[node] is MIXED and dim is not None and storage(node) in reading.memory and returned:
        reading.kinds[node] = Row(dim)


def _only_put_together(reading: Reading, nodes: list[fx.Node], states: tuple[fx.Node, ...]) -> None:
    """What is returned of tokens that were mixed must not have slots of the row, which nobody could cut."""
    moves = all(family_of(n) in ("views", "indexing") for n in nodes)
    for n in () if moves else states:
        value = example(n)
        if isinstance(value, torch.Tensor) and any(reading.touches(size) for size in value.shape):
            raise Refused(
                "mixes-documents",
                f"{_call(n)} {tuple(value.shape)} is returned: mixed tokens whose slots are not those of the row",
                n,
            )


def _groups(reading: Reading) -> list[set[fx.Node]]:
    """Connected by mixed values."""
    parent: dict[fx.Node, fx.Node] = {}

    def find(n: fx.Node) -> fx.Node:
        while parent.setdefault(n, n) is not n:
            n = parent[n]
        return n

    tokens = set(reading.mixing) | set(reading.exits)
    for node, kind in reading.kinds.items():
        if node.op in ("placeholder", "get_attr"):
            continue
        own = kind is MIXED or node in tokens
        for n in node.all_input_nodes:
            if own and reading.kinds[n] is MIXED:
                if n.op == "placeholder":
                    raise Refused(
                        "mixes-documents",
                        f"input {n.name} holds values for pairs of tokens, which cannot be cut by documents; "
                        "leave it out, or give one that the model makes itself",
                        node,
                    )
                parent[find(node)] = find(n)
        if own:
            find(node)
    groups: dict[fx.Node, set[fx.Node]] = {}
    for n in parent:
        groups.setdefault(find(n), set()).add(n)
    return list(groups.values())


def _convex(reading: Reading, groups: list[set[fx.Node]], order: dict[fx.Node, int]) -> list[list[fx.Node]]:
    """Groups with everything that lies between what they return and what they are given."""
    groups = [set(group) for group in groups]
    changed = True
    while changed:
        changed = False
        for group in groups:
            between = _between(group, order) - group
            if between:
                others = [g for g in groups if g is not group and g & between]
                group |= between
                for other in others:
                    group |= other
                    groups.remove(other)
                changed = True
                break
    # The order in which they are made is the order in which the graph runs them.
    return sorted((sorted(group, key=order.__getitem__) for group in groups), key=lambda nodes: order[nodes[0]])


def _between(group: set[fx.Node], order: dict[fx.Node, int]) -> set[fx.Node]:
    """What depends on the group and leads back to it."""
    last = max(order[n] for n in group)
    after: set[fx.Node] = set()
    stack = list(group)
    while stack:
        for user in stack.pop().users:
            if user not in after and order[user] <= last and user.op != "output":
                after.add(user)
                stack.append(user)
    before: set[fx.Node] = set()
    stack = list(group)
    while stack:
        for n in stack.pop().all_input_nodes:
            if n in after and n not in before:
                before.add(n)
                stack.append(n)
    return before


def _region(
    reading: Reading,
    nodes: list[fx.Node],
    exits: tuple[fx.Node, ...],
    states: tuple[fx.Node, ...],
    order: dict[fx.Node, int],
) -> Region:
    """With what it needs of values that have no tokens: those of the row's length are computed again inside."""
    members, entries, others = set(nodes), dict[fx.Node, None](), dict[fx.Node, None]()
    stack = list(nodes)
    while stack or (stack := [n for entry in entries for n in _widened(reading, entry, members)]):
        for n in stack:
            entries.pop(n, None)
        members.update(stack)
        for n in stack.pop().all_input_nodes:
            if n in members:
                continue
            kind = reading.kinds[n]
            reading.no_merged((kind,))
            if kind is SIZED and n.op != "placeholder":
                writers = reading.written.writers(n)
                members.add(n)
                stack.append(n)
                stack += [w for w in writers if w not in members]
                members.update(writers)
            elif isinstance(kind, Row):
                entries[n] = None
            elif kind is MIXED or isinstance(kind, tuple):
                raise Refused("mixes-documents", f"{_call(n)} cannot be handed to a part that runs per document", n)
            else:
                others[n] = None
                if reading.written.between(n, nodes[0], nodes[-1]):
                    raise Refused("in-place", f"{_call(n)} is written while tokens are mixed; write to a copy", n)
    filled = {storage(target) for n in members for target in written_inputs(n)} - {None}
    if any(storage(n) in filled for n in others):
        raise Refused("in-place", "a part of memory is filled for the whole row; fill new memory", nodes[0])
    for n in members:
        if op_name(n).startswith("higher_order::"):
            raise Refused(
                "mixes-documents", "tokens are mixed inside a part that is checkpointed or has a gradient of its own", n
            )
    _one_mode(reading, nodes, members)
    sorted_nodes = sorted(members, key=order.__getitem__)
    return Region(tuple(sorted_nodes), tuple(entries), tuple(others), exits, states)


def _widened(reading: Reading, node: fx.Node, members: set[fx.Node]) -> list[fx.Node]:
    """The token-wise calls that make more of a row for the region alone, as ``repeat_interleave`` does of heads: they
    are the region's, which is given less."""
    chain: list[fx.Node] = []
    least, best = _bytes(reading, node), 0
    while least is not None and _for_alone(reading, node, {*members, *chain}):
        chain.append(node)
        (node,) = _tensors(node)
        before = _bytes(reading, node)
        if before is not None and before < least:
            least, best = before, len(chain)
    return chain[:best]


def _for_alone(reading: Reading, node: fx.Node, members: set[fx.Node]) -> bool:
    """Is a value made of one row, token by token, and used by the region alone?"""
    moves = family_of(node) in ("views", "pointwise", "indexing") or node in reading.no_pads
    given = _tensors(node)
    if not moves or any(user not in members for user in node.users):
        return False
    if len(given) != 1 or given[0] not in read_inputs(node) or not isinstance(reading.kinds[given[0]], Row):
        return False
    if changes_mode(node) or not effects_of(node).repeatable or any(t.user is node for t in reading.aligned):
        return False
    return not reading.written.written(given[0])


def _tensors(node: fx.Node) -> list[fx.Node]:
    return [n for n in node.all_input_nodes if isinstance(example(n), torch.Tensor)]


def _bytes(reading: Reading, node: fx.Node) -> int | None:
    """What a row has per token."""
    kind, value = reading.kinds[node], example(node)
    others = [size for d, size in enumerate(value.shape) if not isinstance(kind, Row) or d != kind.dim]
    known = all(isinstance(size, int) for size in others)
    return math.prod(others) * value.dtype.itemsize if known else None


def _one_mode(reading: Reading, nodes: list[fx.Node], members: set[fx.Node]) -> None:
    """What runs as one call must have been under one autocast and one grad mode."""
    if not any(changes_mode(n) for n in reading.graph.nodes):
        return
    first, last = nodes[0], nodes[-1]
    here = open_autocasts(reading.graph, first)
    if grad_mode_changes(first, last) or any(open_autocasts(reading.graph, n) != here for n in members):
        raise Refused("mixes-documents", "gradients or autocast are switched while tokens are mixed", first)


def _call(node: fx.Node) -> str:
    return op_name(node) or node.name
