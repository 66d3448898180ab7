"""What a call does besides its result: writes into an argument, random numbers, much work."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from packpass.semantics import call_of, example, family_of, meaning_of, op_of, storage
from packpass.semantics.binding import parameters_of
from packpass.semantics.effects import effects_of
from packpass.semantics.memory import writes_of
from packpass.semantics.names import base_name, is_in_place, op_name


def heavy(node: fx.Node) -> bool:
    """Does padding cost time in a call? Then its result is not kept for padding as well."""
    return family_of(node) == "products" or op_of(node) == "multi_head_attention_forward"


def written(node: fx.Node) -> bool:
    """Does a call write into its first argument?"""
    call = call_of(node)
    if call is not None:
        return 0 in writes_of(call)
    name = op_name(node)
    return name == "setitem" or (is_in_place(name) and base_name(name) != "requires_grad")


def not_asked(node: fx.Node) -> None:
    """Let a function that is told to write into its argument return a new value instead."""
    at = parameters_of(None, node.target).index("inplace")
    if len(node.args) > at:
        node.args = (*node.args[:at], False, *node.args[at + 1 :])
    else:
        node.kwargs = {**node.kwargs, "inplace": False}


def elsewhere(node: fx.Node) -> bool:
    """Does a call write into other arguments than its first?"""
    if node.kwargs.get("out") is not None or op_name(node) == "higher_order::triton_kernel_wrapper_mutation":
        return True
    schema = getattr(node.target, "_schema", None)  # of an OpOverload
    return schema is not None and schema.is_mutable and not written(node)


def lent_by(node: fx.Node) -> set[fx.Node]:
    """Operands of a call that give a dtype and a device only: ``x.type_as(y)``."""
    call = call_of(node)
    meaning = meaning_of(call)
    if call is None or meaning is None:
        return set()
    several = list(zip(call.operands, meaning.relations[0].operands, strict=True))
    read = {o.node for o, axes in several if axes is not None or o.argument not in call.unread}
    return {o.node for o in call.operands} - read


def removable(node: fx.Node) -> bool:
    """May a call go if nothing uses its result?"""
    call = call_of(node)
    return call is not None and meaning_of(call) is not None and not writes_of(call) and not effects_of(node).random


def unseen(node: fx.Node) -> bool:
    """Is what an op writes a new tensor that nothing looks at afterwards, other than as the result of that op?"""
    target = node.args[0] if node.args else None
    memory = storage(target)
    if memory is None or storage(node) != memory:
        return False
    for other in node.graph.nodes:
        if other is node:
            return True
        if _shares(other, memory) and (
            other.op in ("placeholder", "get_attr") or any(node < user for user in other.users)
        ):
            return False
    return False


def _shares(node: fx.Node, memory: Any) -> bool:
    """Does a value, or one of a tuple, lie in this memory?"""
    value = example(node)
    items = value if isinstance(value, (tuple, list)) else (value,)
    return any(isinstance(x, torch.Tensor) and x.untyped_storage()._cdata == memory for x in items)
