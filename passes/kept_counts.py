"""What is asked of masks by which slots of a document are kept (`passes.kept`): how many these are.

Also what is left without a use where kept slots, and their numbers, are taken from elsewhere.
"""

from __future__ import annotations

import torch
from torch import fx

from packpass import markers
from packpass.semantics import example, is_tensor, op_name
from packpass.semantics.memory import copied
from packpass.semantics.reductions import TRUTHS
from passes.kept_put import puts
from passes.nodes import computed_from


def counts_of(mask: fx.Node) -> list[fx.Node]:
    """``mask.sum()``, ``mask.float().sum()``, ``mask.any()``, ``mask.all()``: what says how many slots are kept."""
    numbers = [made for made in mask.users if copied(made) is mask]
    sums = [user for made in numbers for user in made.users if op_name(user) == "sum"]
    found = [user for user in mask.users if op_name(user) == "sum" or op_name(user) in TRUTHS]
    return [count for count in (*found, *sums) if is_tensor(count) and not example(count).dim()]


def without(nodes: dict[fx.Node, None], inside: set[fx.Node]) -> set[fx.Node] | None:
    """What is of no use once others stand in the place of ``nodes``; None if anybody else looks at their operands."""
    gone = set(nodes)
    values = {node.args[2] for node in puts(nodes)}
    waiting = [n for node in nodes for n in node.all_input_nodes if n in inside and n not in values]
    while waiting:
        node = max(waiting)
        waiting = [n for n in waiting if n is not node]
        checks = [user for user in node.users if user not in gone]
        if not all(_only_checks(user) for user in checks):
            if isinstance(example(node), torch.Tensor) and example(node).dim():
                return None
            continue  # the number of a document, or one of its bounds
        gone |= computed_from(checks)
        if node.target is not markers.LOOP_BEGIN:
            gone.add(node)
            waiting += [n for n in node.all_input_nodes if n in inside]
    return gone - set(nodes)


def _only_checks(node: fx.Node) -> bool:
    """Is a node a number of which nothing but torch's own checks are made?"""
    if node.target is torch.ops.aten._assert_scalar.default:
        return True
    return not isinstance(example(node), torch.Tensor) and bool(node.users) and all(map(_only_checks, node.users))
