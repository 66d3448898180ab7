"""The ordered collectives of a Dynamo graph, in words that are the same on every rank of their group.

``text`` names the op, what is sent (dtypes and numbers of dimensions), sections, shifts and fills. It leaves out what a
rank may have for itself (its rank, symbol names, the splits of an all-to-all that the user wrote) and every size:
whether it was traced as a number or as a symbol may differ between ranks. Sizes of a call are compared on their own,
see `Collective.operands`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import fx

from packpass.decisions.location import location_of_node, way_to_node
from packpass.decisions.records import Rewrite
from packpass.ops import _cp_exchange, _cp_roll_host
from packpass.ops._snapshot import snapshot_op
from packpass.semantics.collectives import ALONG_FIRST, ELEMENTWISE, NAMESPACES
from packpass.semantics.memory import copied
from packpass.semantics.names import targets_of

# What passes put something in place of: the last ones where a loop calls them for every document. A rank on which it is
# no loop says so as well, to those on which it is one.
REPLACED = {"all_to_all_single"} | ELEMENTWISE | ALONG_FIRST
# What all ranks of a group call alike; sends and receives differ by rank.
SYMMETRIC = REPLACED | {
    "all_gather_into_tensor_coalesced", "reduce_scatter_tensor_coalesced", "all_reduce_coalesced",
}  # fmt: skip
SPLITS = ("output_split_sizes", "input_split_sizes")
# What the first rank alone may know of a roll; that it is the one who knows is the same on every rank.
ENDS = ("end_fills", "end_wraps")
# What a rank does with its tails is its own business: messages hold them.
TAILS = ("documents", "total")
# Ops whose messages in host memory are others where there is no C++ compiler: can they be compiled on this rank?
IN_HOST_MEMORY: dict[str, Callable[[], bool]] = {
    "cp_to_hp": _cp_exchange.is_available,
    "hp_to_cp": _cp_exchange.is_available,
    "cp_packed_roll": _cp_roll_host.is_available,
}
LEFT_OUT = frozenset({"group", "group_name", "group_size", "rank", "src", "tag", *SPLITS, *ENDS, *TAILS})


@dataclasses.dataclass(frozen=True)
class Collective:
    """One collective, or one decision about some, of a graph.

    Attributes:
        group: the process group's name; None for a decision that concerns every group of the graph.
        ours: is it an op of packpass?
        operands: shapes of what is sent, each size a number or a sympy expression; empty where ranks may differ.
        boundaries: which of the graph's inputs holds the boundaries, None if they are computed in the graph.
        joinable: is it an all-to-all of equal parts, which a later pass may join with others?
        exchange: may a pass put something in its place, as far as its kind goes?
        way: the user's lines by which the code comes to it, outermost first.
    """

    group: str | None
    ours: bool
    text: str
    location: str
    operands: tuple[tuple[Any, ...], ...] = ()
    boundaries: int | None = None
    joinable: bool = False
    exchange: bool = False
    way: tuple[str, ...] = ()


def collectives(gm: fx.GraphModule) -> list[Collective]:
    """All collectives of a graph and its higher-order operators, in the order of the code."""
    if not any(overload is not None for overload in map(_exchanging, targets_of(gm))):
        return []
    inputs = {node: i for i, node in enumerate(placeholders(gm))}
    known = (collective(node, inputs) for node in calls_in(gm))
    return [found for found in known if found is not None]


def decisions(rewrites: Sequence[Rewrite], group: str) -> list[Collective]:
    """What passes took for granted about the program of every rank, so far as this group is concerned."""
    found = []
    for rewrite in rewrites:
        if rewrite.claims.group not in (None, group):
            continue
        for text in rewrite.claims.agreement:
            found.append(Collective(None, True, f"{rewrite.rule}: {text}", rewrite.location))
    return found


def calls_in(gm: fx.GraphModule) -> Iterator[fx.Node]:
    """Calls in the order of the code: a subgraph stands where the operator that runs it reads it."""
    for node in gm.graph.nodes:
        if node.op == "get_attr" and isinstance(child := getattr(gm, str(node.target), None), fx.GraphModule):
            yield from calls_in(child)
        elif node.op == "call_function":
            yield node


def collective(node: fx.Node, inputs: Mapping[fx.Node, int] = MappingProxyType({})) -> Collective | None:
    """The collective that a call is, if it is one."""
    target = _exchanging(node.target)
    if target is None:
        return None
    ours = target.namespace == "packpass"
    names = [argument.name for argument in target._schema.arguments]
    given = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    group = given.get("group", given.get("group_name"))
    if not isinstance(group, str) or not group:  # a declared row that is no shard names none
        return None

    boundaries = [value for name, value in given.items() if ours and name.startswith("cu_seqlens")]
    sent: list[fx.Node] = []
    words = []
    for name, value in given.items():
        if value in boundaries or name in LEFT_OUT:
            continue
        if _is_tensors(value):
            sent += value if isinstance(value, list | tuple) else [value]  # type: ignore[list-item]
        else:
            words.append(f", {name}={_words(value)}")
    if any(given.get(name) is not None for name in ENDS):
        words.append(", ends as rank 0 has them")
    available = IN_HOST_MEMORY.get(target._opname) if ours else None
    if available is not None and sent and _value(sent[0]).device.type == "cpu" and not available():
        words.append(", without a C++ compiler")
    exchanged = target._opname == "all_to_all_single"
    return Collective(
        group,
        ours,
        f"{target._opname} of {', '.join(map(_kind, sent))}{''.join(words)}",
        location_of_node(node) or "unknown",
        operands=() if exchanged else tuple(map(_sizes, sent)),
        boundaries=next((inputs.get(_origin(value)) for value in boundaries if isinstance(value, fx.Node)), None),
        joinable=exchanged and all(_even(given.get(name)) for name in SPLITS),
        exchange=ours or target._opname in REPLACED,
        way=way_to_node(node),
    )


def _exchanging(target: Any) -> torch._ops.OpOverload | None:
    """The overload that a call target is, if it may be a collective that every rank calls alike."""
    if isinstance(target, torch._ops.OpOverloadPacket):
        target = getattr(target, "default", None)
    if not isinstance(target, torch._ops.OpOverload):
        return None
    symmetric = target.namespace in NAMESPACES and target._opname in SYMMETRIC
    return target if symmetric or target.namespace == "packpass" else None


def _is_tensors(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return bool(value) and all(_is_tensors(v) for v in value)
    return isinstance(value, fx.Node) and isinstance(_value(value), torch.Tensor)


def _value(node: fx.Node) -> Any:
    return node.meta.get("example_value", node.meta.get("val"))


def _kind(node: fx.Node) -> str:
    """Dtype, dimensions, and whether a backward will run, which has collectives of its own."""
    value = _value(node)
    backward = " with gradient" if value.requires_grad and torch.is_grad_enabled() else ""
    return f"{str(value.dtype).removeprefix('torch.')} [{', '.join(['*'] * value.dim())}]{backward}"


def _words(value: Any) -> str:
    """A constant as written; "*" for a size of the graph that is not the same in every call."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_words, value))}]"
    if isinstance(value, fx.Node):
        value = _value(value)
    size = _size(value)
    if isinstance(size, int):
        return str(size)
    return "*" if isinstance(value, torch.SymInt) or value is None else repr(value)


def _size(value: Any) -> Any:
    """A number, or the expression of a symbolic size; None for a size of another kind (of nested tensors)."""
    if not isinstance(value, torch.SymInt):
        return value
    expression = getattr(value.node, "expr", None)
    return int(expression) if expression is not None and expression.is_number else expression


def _sizes(node: fx.Node) -> tuple[Any, ...]:
    return tuple(map(_size, _value(node).shape))


def _even(splits: Any) -> bool:
    return not splits or len(set(map(str, splits))) == 1


def _origin(node: fx.Node) -> fx.Node:
    """The node whose values these boundaries have, through the copies that are kept for the backward."""
    while (source := node.args[0] if node.target is snapshot_op else copied(node)) is not None:
        assert isinstance(source, fx.Node)
        node = source
    return node


# === Sizes of a call ============================================================================================


def placeholders(gm: fx.GraphModule) -> list[fx.Node]:
    """The inputs of a graph, in their order."""
    return [node for node in gm.graph.nodes if node.op == "placeholder"]


class Sizes:
    """Evaluates symbolic sizes of a graph for the inputs of one call."""

    def __init__(self, inputs: Sequence[fx.Node]) -> None:
        self._places: dict[Any, tuple[int, int | None]] = {}
        for i, node in enumerate(inputs):
            value = _value(node)
            if isinstance(value, torch.SymInt):
                self._place(value, i, None)
            elif isinstance(value, torch.Tensor):
                for dim, size in enumerate(value.shape):
                    self._place(size, i, dim)

    def _place(self, size: Any, i: int, dim: int | None) -> None:
        expression = _size(size)
        if getattr(expression, "is_symbol", False):
            self._places.setdefault(expression, (i, dim))

    def of(self, size: Any, inputs: Sequence[Any]) -> int | None:
        """None if the size depends on data."""
        if size is None or isinstance(size, int):
            return size
        known = {}
        for symbol in size.free_symbols & self._places.keys():
            i, dim = self._places[symbol]
            known[symbol] = int(inputs[i]) if dim is None else int(inputs[i].shape[dim])
        number = size.subs(known)
        return int(number) if number.is_number else None
