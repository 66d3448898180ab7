"""Which all-to-all of a graph after autograd may be joined. Reads the graph, changes nothing, adds no guard."""

from __future__ import annotations

import dataclasses
import operator
from collections import defaultdict
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils.flop_counter import flop_registry

from packpass._compat import hint_of, statically_known_true
from packpass._compat import is_collective as exchanges
from packpass.decisions.location import location_of_node
from packpass.decisions.records import Refusal
from passes.exchange_cost import Exchange
from passes.nodes import KNOWN, namespace_of

NAME = "bucket_all_to_all"

A2A = torch.ops._c10d_functional.all_to_all_single.default
WAIT = torch.ops._c10d_functional.wait_tensor.default

COLLECTIVES = frozenset({"_c10d_functional", "c10d", "_c10d_functional_autograd"})
DTYPES = frozenset(
    {
        *(torch.float64, torch.float32, torch.bfloat16, torch.float16),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
    }
)


@dataclasses.dataclass(frozen=True)
class Member:
    """An equal-split all-to-all with exactly one wait. ``key``: what all members of a bucket have in common."""

    node: fx.Node
    wait: fx.Node
    group: str
    group_size: int
    key: tuple[Any, ...]
    exchange: Exchange

    @property
    def send(self) -> fx.Node:
        return self.node.args[0]  # type: ignore[return-value]


@dataclasses.dataclass(frozen=True)
class Left:
    """An all-to-all that stays as it is, and why."""

    code: str
    reason: str
    node: fx.Node

    def refusal(self) -> Refusal:
        """At the place where the user wrote the collective."""
        return Refusal(NAME, self.code, self.reason, location_of_node(self.node) or "<unknown>")


@dataclasses.dataclass
class Found:
    """Members by what they have in common, each list in the graph's order, and what was left alone."""

    buckets: list[list[Member]]
    refusals: list[Refusal]


def is_collective(node: fx.Node) -> bool:
    """Does the node start a collective?"""
    return (
        node.op == "call_function"
        and namespace_of(node.target) in COLLECTIVES
        and "wait_tensor" not in str(node.target)
    )


def group_of(node: fx.Node) -> Any:
    """The name of the group of a collective, or None where the op has no such argument."""
    schema = node.target._schema.arguments  # type: ignore[union-attr]
    position = next((i for i, argument in enumerate(schema) if argument.name == "group_name"), None)
    if position is None:
        return None
    return node.args[position] if position < len(node.args) else node.kwargs.get("group_name")


def is_barrier(node: fx.Node) -> bool:
    """May the node write memory, advance a random generator, or run collectives that we cannot see? Then nothing is
    moved across it."""
    if node.op in ("call_module", "call_method"):
        return True
    if node.op != "call_function":
        return False
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        if target._schema.is_mutable or torch.Tag.nondeterministic_seeded in target.tags:
            return True
        if target.namespace == "packpass" and exchanges(target):  # what host memory exchanges stays an op of ours
            return True
        return target.namespace not in (KNOWN if not is_collective(node) and target is not WAIT else COLLECTIVES)
    # What is left: arithmetic on sizes, higher-order ops with graphs or kernels inside.
    return getattr(target, "__module__", None) not in ("_operator", "math", "torch", "builtins")


def is_heavy(node: fx.Node) -> bool:
    """Work that somebody may want to run while a collective is on its way."""
    return getattr(node.target, "overloadpacket", node.target) in flop_registry


def equal_splits(node: fx.Node) -> int | None:
    """The group's size if every rank sends and gets the same number of rows, else None."""
    if len(node.args) != 4 or node.kwargs:
        return None
    (receive, send), rows = (node.args[1], node.args[2]), _value(node.args[0]).shape[0]
    if not isinstance(send, (list, tuple)) or not isinstance(receive, (list, tuple)) or len(send) != len(receive):
        return None
    sizes = [_value(size) for size in (*send, *receive)]
    if not sizes or not all(statically_known_true(size == sizes[0]) for size in sizes[1:]):
        return None
    count = len(send)
    if statically_known_true(sizes[0] * count == rows):
        return count
    # The same in other words, of which a ShapeEnv may know one and not the other.
    divides = statically_known_true(rows % count == 0) and statically_known_true(sizes[0] == rows // count)
    return count if divides else None


def _value(argument: Any) -> Any:
    return argument.meta["val"] if isinstance(argument, fx.Node) else argument


# === Cost ========================================================================================================


def exchange_of(node: fx.Node, wait: fx.Node) -> Exchange:
    """Bytes of an all-to-all, and the copies that only joining makes necessary."""
    value = node.args[0].meta["val"]  # type: ignore[union-attr]
    numel, exact = 1, True
    for size in value.shape:
        hint = hint_of(size)
        exact &= not isinstance(size, torch.SymInt)
        numel *= 1 if hint is None else hint
    return Exchange(numel * value.element_size(), _owned(node.args[0]) + _wanted(wait), exact)  # type: ignore[arg-type]


def _is_view(node: fx.Node) -> bool:
    """Does the node read the same memory as its first argument?"""
    if node.op != "call_function" or node.target in (operator.getitem, torch.ops.aten.reshape.default):
        return node.op == "call_function"
    if not isinstance(node.target, torch._ops.OpOverload) or not node.target._schema.returns:
        return False
    alias = node.target._schema.returns[0].alias_info
    return alias is not None and not alias.is_write


def _is_dense(value: Any) -> bool:
    """Contiguous, asked without a guard. Of several results nothing is known, nor needs to be."""
    if not isinstance(value, Tensor):
        return True
    expected: Any = 1
    for size, stride in zip(reversed(value.shape), reversed(value.stride()), strict=True):
        if not statically_known_true(size == 1) and not statically_known_true(stride == expected):
            return False
        expected = expected * size
    return True


def _owned(node: fx.Node) -> bool:
    """Is the tensor in memory already, so that all-to-all could send from there?"""
    while _is_dense(node.meta["val"]) and _is_view(node):
        node = node.args[0]  # type: ignore[assignment]
    if not _is_dense(node.meta["val"]):
        return False
    return node.op in ("placeholder", "get_attr") or node.target is WAIT or _is_extern(node)


def _wanted(node: fx.Node) -> bool:
    """Does anything need the tensor in memory of its own?"""
    for user in node.users:
        if user.op == "output" or is_collective(user) or _is_extern(user) or (_is_view(user) and _wanted(user)):
            return True
    return False


def _is_extern(node: fx.Node) -> bool:
    return node.op == "call_function" and (is_heavy(node) or namespace_of(node.target) not in (*KNOWN, None))


# === Search ======================================================================================================


def find(graph: fx.Graph) -> Found:
    """Members that may share one collective.

    Levels make any choice among them safe: the level of an all-to-all is the most all-to-all on a path to it. Members
    of one level depend on each other neither directly nor through other buckets, whatever these join.
    """
    position = {node: i for i, node in enumerate(graph.nodes)}
    level: dict[fx.Node, int] = {}
    heavy: list[int] = []  # heavy and barriers: how many up to and with, or before, each node
    barriers: list[int] = [0]
    launches, launched = 0, defaultdict[Any, int](int)
    found: dict[tuple[Any, ...], list[Member]] = defaultdict(list)
    left: dict[tuple[Any, ...], list[Left]] = defaultdict(list)
    for node in position:
        level[node] = max((level[source] for source in node.all_input_nodes), default=0)
        heavy.append((heavy[-1] if heavy else 0) + is_heavy(node))
        barriers.append(barriers[-1] + is_barrier(node))
        if not is_collective(node):
            continue
        group = group_of(node)
        if node.target is A2A:
            value = _value(node.args[0])
            kind = (group, value.dtype, value.device, level[node])
            level[node] += 1
            member = member_of(node, kind)
            if isinstance(member, Left):
                left[kind].append(member)
            elif member.group_size > 1:
                # Collectives of other groups keep their places before and after every member.
                key = (*member.key, barriers[-1], launches - launched[group])
                found[key].append(dataclasses.replace(member, key=key))
        launches += 1
        launched[group] += 1
    for key, members in found.items():
        for member in list(members):
            start, end = position[member.node], position[member.wait]
            if heavy[start] != heavy[end] or barriers[start] != barriers[end]:
                members.remove(member)
                left[key[:4]].append(
                    Left("overlapped", "work is done between the collective and its wait, on purpose", member.node)
                )
    return Found([members for members in found.values() if members], _refusals(found, left))


def member_of(node: fx.Node, kind: tuple[Any, ...]) -> Member | Left:
    """Parse one all-to-all; every condition that does not depend on others."""
    waits, size = list(node.users), equal_splits(node)
    if size is None:
        return Left("uneven-splits", "the ranks exchange unequal numbers of rows, as far as is known", node)
    if len(waits) != 1 or waits[0].target is not WAIT:
        return Left("several-waits", "the result of the collective is not waited for exactly once", node)
    if kind[1] not in DTYPES:
        return Left("no-rule", f"no copy of {kind[1]} is known to keep every bit", node)
    return Member(node, waits[0], kind[0], size, (*kind, size), exchange_of(node, waits[0]))


def _refusals(found: dict[tuple[Any, ...], list[Member]], left: dict[tuple[Any, ...], list[Left]]) -> list[Refusal]:
    """Only where there was something to join: a single all-to-all, or one after the other, is no pattern."""
    apart: dict[tuple[Any, ...], list[Member]] = defaultdict(list)
    counts: dict[tuple[Any, ...], int] = defaultdict(int, {kind: len(alone) for kind, alone in left.items()})
    for key, members in found.items():
        counts[key[:4]] += len(members)
        apart[key[:4]] += members[:1]
    refused = [one for kind, alone in left.items() if counts[kind] > 1 for one in alone]
    between = "joining would move it across a collective of another group, a write to memory or a random number"
    refused += [Left("collective-order", between, member.node) for run in apart.values() for member in run[1:]]
    return [one.refusal() for one in refused]
