"""Put one exchange in the place of a group of collectives that stand side by side."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from packpass.semantics import example
from passes.fuse_all_to_all.straight_effects import body_of
from passes.fuse_all_to_all.straight_find import EXCHANGE, Member
from passes.fuse_all_to_all.straight_schedule import Schedule
from passes.nodes import call

NAME = "fuse_all_to_all"
GROUP = torch.ops.packpass.all_to_all_group.default
Call = Callable[..., fx.Node]


def reorder(graph: fx.Graph, schedule: Schedule) -> None:
    """Make the schedule's order the graph's."""
    end = next(iter(graph.find_nodes(op="output")))
    for node in schedule.order:
        if node is not end:
            end.prepend(node)


def fuse(gm: fx.GraphModule, bucket: list[Member], replaced: dict[fx.Node, fx.Node]) -> None:
    """One call for all members, where the first one is.

    Args:
        replaced: what stands for nodes that earlier calls erased; this one adds its own.
    """
    anchor = bucket[0].nodes[0]

    def make(target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        node = call(gm.graph, NAME, target, *args, **kwargs)
        node.meta.update({k: anchor.meta[k] for k in ("stack_trace", "nn_module_stack") if k in anchor.meta})
        return node

    with gm.graph.inserting_before(anchor):
        sources = [replaced.get(member.source, member.source) for member in bucket]
        results = (_group if bucket[0].kind == EXCHANGE else _sections)(make, bucket, sources)
    for member, result in zip(bucket, results, strict=True):
        for node in _stand_for_result(member):
            node.replace_all_uses_with(result)
            replaced[node] = result
        _erase(gm, member)


def _group(make: Call, bucket: list[Member], sources: list[fx.Node]) -> list[fx.Node]:
    first = bucket[0]
    fused = make(GROUP, sources, first.group, first.group_size)
    return [make(operator.getitem, fused, i) for i in range(len(bucket))]


def _sections(make: Call, bucket: list[Member], sources: list[fx.Node]) -> list[fx.Node]:
    """One change of layout of all sections side by side."""
    first = bucket[0].nodes[0]
    _, cu, _, dim, group, group_size, *shards = first.args
    widths = [m.nodes[0].args[2] for m in bucket]
    sections = [w for part in widths for w in part]  # type: ignore[union-attr]
    row = make(torch.cat, sources, dim)
    fused = make(first.target, row, cu, sections, dim, group, group_size, *shards)
    sizes = [example(m.result).shape[dim] for m in bucket]
    parts = make(torch.split, fused, sizes, dim)
    # Each result has its own memory, as before: generated code makes the copy where it is read.
    memory = torch.contiguous_format
    pieces = [make(operator.getitem, parts, i) for i in range(len(bucket))]
    return [make("clone", piece, method=True, memory_format=memory) for piece in pieces]


def _stand_for_result(member: Member) -> list[fx.Node]:
    if member.buffer is None:
        return [member.result]
    return [member.nodes[-1], member.buffer, member.result]  # what the copy returns is the buffer


def _erase(gm: fx.GraphModule, member: Member) -> None:
    bodies = [n for n in member.nodes[0].all_input_nodes if body_of(n) is not None]
    for node in (*reversed(member.nodes), *([member.buffer] if member.buffer else [])):
        gm.graph.erase_node(node)
    for node in bodies:
        if not node.users:
            gm.graph.erase_node(node)
            if not any(n.op == "get_attr" and n.target == node.target for n in gm.graph.nodes):
                gm.delete_submodule(str(node.target))
