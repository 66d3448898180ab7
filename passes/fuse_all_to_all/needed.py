"""What tensors of a loop body are computed from, and what of a body is still needed when some come from elsewhere."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import fx

from packpass.semantics import AUTOGRAD_FUNCTION, example, op_name
from packpass.semantics.collectives import collective_name
from packpass.semantics.effects import written_inputs
from passes.document_loops.op_names import is_size_check, name_of
from passes.fuse_all_to_all.body import Body
from passes.fuse_all_to_all.held import Buffer, fills
from passes.fuse_all_to_all.placed import Placed
from passes.fuse_all_to_all.scalars import Lin
from passes.fuse_all_to_all.straight_find import EXCHANGE, GATHER
from passes.refused import Refused


def needed(body: Body, nodes: tuple[fx.Node, ...], wanted: Iterable[fx.Node]) -> list[fx.Node]:
    """The nodes of one iteration that ``wanted`` are computed from, themselves included, with the copies that fill
    their buffers; in order."""
    inside, found, stack = set(nodes), set[fx.Node](), list(wanted)
    while stack:
        node = stack.pop()
        if node in found or node not in inside:
            continue
        found.add(node)
        stack += node.all_input_nodes
        value = body.values.get(node)
        if isinstance(value, Placed):
            stack += value.writes
        elif isinstance(value, Buffer):
            stack += [user for user in node.users if fills(user, node) and user in body.values]
    return [n for n in nodes if n in found]


def live(
    body: Body, nodes: tuple[fx.Node, ...], chosen: set[fx.Node]
) -> tuple[frozenset[fx.Node], dict[fx.Node, bool]]:
    """Nodes of the body that are needed when ``chosen`` come from elsewhere (no exchange may be among them), and
    lengths to be counted on something else."""
    inside = set(nodes)
    roots = [n for n in nodes if any(u not in inside for u in n.users)]
    roots += [n for n in nodes if n not in body.values and not n.users and not is_size_check(n)]
    roots += [n for n in nodes if n not in body.values and written_inputs(n)]
    kept: set[fx.Node] = set()
    lengths: dict[fx.Node, bool] = {}
    stack = list(roots)
    while stack:
        node = stack.pop()
        if node in kept or node not in inside or is_proven_check(node, body):
            continue
        kept.add(node)
        sharded = _length(body, node)
        if sharded is not None:
            lengths[node] = sharded
        elif node not in chosen:
            if collective_name(node.target) or collectives(body.gm, [node]):
                raise Refused("not-zigzag", "a part of the exchange is used in another way", node)
            stack.extend(node.all_input_nodes)
            stack.extend(user for user in node.users if fills(user, node) and user in body.values)
    return frozenset(kept), lengths


def is_proven_check(node: fx.Node, body: Body) -> bool:
    """A user's check that documents divide, which the exchange makes itself."""
    return name_of(node) == "loop_check" and body.values.get(node.args[0]) is True


def _length(body: Body, node: fx.Node) -> bool | None:
    """Is this integer, counted on a tensor, the length of the document's shard (True) or of the document (False)?"""
    value = body.values.get(node)
    if not isinstance(value, Lin) or value.start or value.const or isinstance(example(node), torch.Tensor):
        return None
    shard = body.scale.shard
    return {shard: True, shard * body.cp: False}.get(int(value.unit)) if value.unit.denominator == 1 else None


def collectives(gm: fx.GraphModule, nodes: Any) -> list[fx.Node]:
    """All-to-all and all-gather calls among the nodes and in the functions they call (forwards only)."""
    out = []
    for node in nodes:
        if collective_name(node.target) in (EXCHANGE, GATHER):
            out.append(node)
        elif op_name(node) == AUTOGRAD_FUNCTION:
            forward = node.args[0]
            module = getattr(gm, str(forward.target), None) if isinstance(forward, fx.Node) else None
            if isinstance(module, fx.GraphModule):
                out += collectives(module, module.graph.nodes)
    return out
