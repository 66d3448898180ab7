"""Find every equal-split all-to-all of a Dynamo graph, however it is written; structure only, nothing is changed.

* ``dist.all_to_all_single(out, x, group=g)``: a functional all-to-all, its wait, and a ``copy_`` into ``out``, which
  stays where it is.
* functional collectives: the same without the copy.
* an ``autograd.Function`` around one (`straight_function`).
* ``packpass.ops.cp_to_hp`` and ``hp_to_cp``, one all-to-all each.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from packpass._compat import free_unbacked_symbols, is_collective, statically_known_true
from packpass.decisions.location import location_of_node
from packpass.semantics import argument, blank, example
from packpass.semantics.collectives import WAIT, collective_name
from passes.exchange_cost import Exchange
from passes.fuse_all_to_all.straight_copies import exchange_of, is_row_major
from passes.refused import Refused

EXCHANGE = "all_to_all_single"
GATHER = "all_gather_into_tensor"
SUMS = ("all_reduce", "reduce_scatter_tensor")
TO_HEADS, TO_TOKENS = torch.ops.packpass.cp_to_hp.default, torch.ops.packpass.hp_to_cp.default


@dataclasses.dataclass(frozen=True)
class Member:
    """One collective that may share its exchange with others."""

    kind: str
    """"all_to_all_single", "cp_to_hp" or "hp_to_cp"."""
    nodes: tuple[fx.Node, ...]
    """What makes the collective: moved together, replaced together."""
    result: fx.Node
    inputs: tuple[fx.Node, ...]
    """The tensor that is sent, then what else the call reads."""
    group: str
    group_size: int
    like: tuple[Any, ...]
    """Members with another value never share an exchange."""
    exchange: Exchange
    buffer: fx.Node | None
    """Memory for nothing but the result, which the last of the nodes copies there: the result itself will do."""
    writes: tuple[Any, ...] | None
    """Other memory that the user's code copies the result to."""

    @property
    def dtype(self) -> torch.dtype:
        return example(self.source).dtype

    @property
    def device(self) -> torch.device:
        return example(self.source).device

    @property
    def source(self) -> fx.Node:
        return self.inputs[0]

    @property
    def location(self) -> str:
        return location_of_node(self.nodes[0]) or "<unknown>"


def is_wait(node: fx.Node) -> bool:
    return node.op == "call_function" and collective_name(node.target) == WAIT


def group_of(node: fx.Node) -> str | None:
    """Name of the process group of a collective; None if it is not a constant of the graph."""
    named = node.kwargs.get("group_name", node.kwargs.get("group"))
    texts = [a for a in (*node.args, named) if isinstance(a, str)]
    return texts[-1] if texts else None


def equal_parts(send: fx.Node, splits: Sequence[Any], received: Sequence[Any]) -> bool:
    """Do the splits cut the first dimension in equal parts, whatever its size?"""
    value = example(send)
    sizes = [example(s) for s in (*splits, *received)]
    if len(splits) != len(received) or not sizes or not isinstance(value, torch.Tensor) or value.dim() == 0:
        return False
    if any(not isinstance(s, (int, torch.SymInt)) or not statically_known_true(s == sizes[0]) for s in sizes):
        return False
    rows = value.shape[0]
    # A size that turns out not to divide is an error of the collective itself, before and after.
    return statically_known_true(sizes[0] * len(splits) == rows) or statically_known_true(
        sizes[0] == rows // len(splits)
    )


def find(node: fx.Node) -> Member | None:
    """The member that begins with this node; None if it is none. Raises Refused for one that must stay as it is."""
    if not is_collective(node.target):
        return None
    if collective_name(node.target) == EXCHANGE:
        return _functional(node)
    if node.target in (TO_HEADS, TO_TOKENS) and not free_unbacked_symbols(example(node.args[0])):
        return _layout_change(node)
    return None


def _functional(node: fx.Node) -> Member:
    send = argument(node, 0, "input")
    received, splits = argument(node, 1, "output_split_sizes"), argument(node, 2, "input_split_sizes")
    group = group_of(node)
    if group is None or not isinstance(send, fx.Node) or not isinstance(splits, (list, tuple)):
        raise Refused("unknown-group", "its process group or its splits are not constants of the graph", node)
    if not isinstance(received, (list, tuple)) or not equal_parts(send, splits, received):
        raise Refused("uneven-splits", "its splits are not known to be equal", node)
    waits = list(node.users)
    if len(waits) != 1 or not is_wait(waits[0]):
        raise Refused("several-waits", "the result of the collective is not waited for exactly once", node)
    if node.next is not waits[0]:
        raise Refused("overlapped", "work is done between the collective and its wait, on purpose", node)
    return member(EXCHANGE, (node, waits[0]), (send,), group, len(splits))


def member(
    kind: str, nodes: tuple[fx.Node, ...], inputs: tuple[fx.Node, ...], group: str, group_size: int, *like: Any
) -> Member:
    """``like``: what else members that share an exchange have in common. Raises Refused."""
    value = example(inputs[0])
    if free_unbacked_symbols(value):
        raise Refused("uneven-splits", "how much it sends depends on data", nodes[0])
    common = (kind, group, group_size, value.dtype, value.device, value.requires_grad, *like)
    exchange = exchange_of(inputs[0], nodes[-1])
    copy = _copy_of(nodes[-1])
    if copy is None:
        return Member(kind, nodes, nodes[-1], inputs, group, group_size, common, exchange, None, None)
    buffer = copy.args[0]
    assert isinstance(buffer, fx.Node)
    if _holds_only(buffer, copy, nodes[-1]):
        return Member(kind, (*nodes, copy), nodes[-1], inputs, group, group_size, common, exchange, buffer, None)
    value = example(buffer)
    place = value.untyped_storage()._cdata, str(value.storage_offset()), str(value.shape)
    return Member(kind, nodes, nodes[-1], inputs, group, group_size, common, exchange, None, place)


def _copy_of(result: fx.Node) -> fx.Node | None:
    """``buffer.copy_(result)``."""
    for user in result.users:
        if user.op == "call_method" and user.target == "copy_" and user.args[1:] == (result,) and not user.kwargs:
            if isinstance(example(user.args[0]), torch.Tensor):
                return user
    return None


def _holds_only(buffer: fx.Node, copy: fx.Node, result: fx.Node) -> bool:
    """Is the buffer made for the result: new, like it in everything, and not looked at before the copy?"""
    if not blank(buffer) or not is_row_major(example(buffer)) or copy.prev is not result:
        return False
    made = example(buffer)
    if made.requires_grad is not example(result).requires_grad and not example(result).requires_grad:
        return False
    return same_shape(made, example(result)) and min(buffer.users, key=_position(buffer, copy)) is copy


def _position(start: fx.Node, stop: fx.Node) -> Callable[[fx.Node], int]:
    """0 for nodes between the two, 1 for ``stop``, 2 for later ones."""
    between: set[fx.Node] = set()
    node = start
    while node is not stop:
        between.add(node)
        node = node.next
    return lambda n: 0 if n in between else 1 if n is stop else 2


def same_shape(a: Any, b: Any) -> bool:
    """Two tensors of equal sizes, dtypes and devices? Asked without a guard."""
    return (
        isinstance(a, torch.Tensor)
        and isinstance(b, torch.Tensor)
        and a.dim() == b.dim()
        and a.dtype == b.dtype
        and a.device == b.device
        and all(statically_known_true(m == n) for m, n in zip(a.shape, b.shape, strict=True))
    )


def _layout_change(node: fx.Node) -> Member:
    x, cu, _, dim, group, group_size, *shards = node.args
    assert isinstance(x, fx.Node) and isinstance(cu, fx.Node) and isinstance(dim, int)
    assert isinstance(group, str) and isinstance(group_size, int)
    kind = "cp_to_hp" if node.target is TO_HEADS else "hp_to_cp"
    shape = example(x).shape
    # Sizes of other dimensions by what they are called: equal names, equal sizes.
    others = tuple(str(size) for d, size in enumerate(shape) if d != dim)
    return member(kind, (node,), (x, cu), group, group_size, cu, dim, (*others, *map(str, shards)))
