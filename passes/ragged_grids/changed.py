"""What a document changes slot by slot in memory of its own: ``embeds = table(index); embeds *= weights``.

From there on the tensor holds what the same operation, not in place, makes of it. Nobody can tell the difference where
the body has made the tensor, and no view of it that was taken before is looked at behind the change.

Does not handle: parts of a tensor that are changed (those that are only set are in `passes.ragged_grids.written`),
tensors from outside of the body, operations whose result has another dtype, or more slots.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from packpass.markers import is_of_capture
from packpass.semantics import Call, example, is_tensor, storage
from packpass.semantics.effects import written_inputs
from packpass.semantics.memory import is_new
from packpass.semantics.names import base_name, is_in_place
from passes.ragged_grids.machine import Machine
from passes.ragged_grids.terms import Applied, Term


def change(machine: Machine, node: fx.Node, call: Call, apply: Callable[[Machine, fx.Node, Call], None]) -> bool:
    """Interpret such a call; False if it is another one."""
    held = _held(machine, node)
    target = plain_call(node)
    if not held or target is None or dtype_made(node, target) is not example(node).dtype:
        return False
    before = machine.values.get(held[0])
    apply(machine, node, call)
    made = machine.values.pop(node)
    if not isinstance(before, Term) or not isinstance(made, Applied) or made.target != node.target:
        return False
    if made.dims != before.dims or made.dtype != before.dtype:
        return False
    for name in (*held, node):
        machine.keep(name, dataclasses.replace(made, target=target))
    return True


def _held(machine: Machine, node: fx.Node) -> list[fx.Node]:
    """The names of the tensor that is changed, the first the call that makes it; none if there may be others."""
    written = written_inputs(node)
    if len(written) != 1 or not is_tensor(node) or storage(node) != storage(written[0]):
        return []
    memory, names, at = storage(node), list[fx.Node](), written[0]
    while at in machine.inside and not is_of_capture(at):
        names.append(at)
        if is_new(at):
            return names[::-1] if memory is not None and _are_unseen(names, node) else []
        if list(written_inputs(at)) != [at.args[0]] or not isinstance(at.args[0], fx.Node):
            return []
        at = at.args[0]
    return []


def _are_unseen(names: list[fx.Node], node: fx.Node) -> bool:
    """Does nobody look, behind the change, at a view that was taken before it?"""
    stack, seen = list(names), {*names, node}
    while stack:
        for user in stack.pop().users:
            if user in seen or node < user or not _may_share(user):
                continue
            if any(node <= last for last in user.users):
                return False
            seen.add(user)
            stack.append(user)
    return True


def _may_share(user: fx.Node) -> bool:
    """May what a call makes of a tensor be in the same memory? A reshape may be a copy for some sizes alone."""
    value = example(user)
    return (
        is_of_capture(user)
        or isinstance(value, (tuple, list))
        or (isinstance(value, torch.Tensor) and not is_new(user))
    )


def plain_call(node: fx.Node) -> Any:
    """The same call that leaves its operands as they are; None if it is not known."""
    if node.op == "call_method":
        name = str(node.target)
        plain = base_name(name) if is_in_place(name) else ""
        return plain if plain and hasattr(torch.Tensor, plain) else None
    name = getattr(node.target, "__name__", "")
    if getattr(node.target, "__module__", None) != "_operator" or not name.startswith("i"):
        return None
    return getattr(operator, f"__{name[1:]}__", None)


def dtype_made(node: fx.Node, target: Any) -> torch.dtype | None:
    """The dtype of what it makes."""

    def small(arg: fx.Node) -> Any:
        value = example(arg)
        if isinstance(value, torch.Tensor):
            return torch.empty((1,) * value.dim(), dtype=value.dtype, device="meta")
        return 1.0 if isinstance(value, torch.SymFloat) else 1

    args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), small)
    try:
        made = getattr(args[0], target)(*args[1:], **kwargs) if isinstance(target, str) else target(*args)
    except (RuntimeError, TypeError, NotImplementedError):
        return None
    return made.dtype if isinstance(made, torch.Tensor) else None
