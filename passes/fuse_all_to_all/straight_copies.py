"""What the cost model asks about one collective of a Dynamo graph: its bytes, and the copies that only joining makes.

Joined, tensors are copied next to each other and out again. Generated code makes these copies where it writes or reads
a tensor anyway; where the tensor comes from (goes to) memory of the caller, a matrix product or another collective,
they are extra. Guesses are harmless here: they decide what is worth while, not what is right.
"""

from __future__ import annotations

import torch
from torch import fx

from packpass._compat import hint_of, is_collective, statically_known_true
from packpass.semantics import example, family_of, keeps_order, op_name, storage
from passes.exchange_cost import Exchange


def is_row_major(value: object) -> bool:
    """Is a tensor known to be contiguous? Asked without a guard."""
    if not isinstance(value, torch.Tensor):
        return False
    expected: int | torch.SymInt = 1
    for size, stride in reversed(list(zip(value.shape, value.stride(), strict=True))):
        if not statically_known_true(stride == expected) and not statically_known_true(size == 1):
            return False
        expected = expected * size
    return True


def exchange_of(source: fx.Node, result: fx.Node) -> Exchange:
    """The cost model's view of a collective that sends ``source``."""
    value = example(source)
    elements, exact = 1, True
    for size in value.shape:
        known = hint_of(size)
        exact &= not isinstance(size, torch.SymInt)
        elements *= 1 if known is None else known
    return Exchange(elements * value.dtype.itemsize, _owned(source) + _wanted(result, set()), exact)


def _owned(node: fx.Node) -> bool:
    """Is the tensor in memory already, so that the collective could send from there?"""
    while is_row_major(example(node)) and _is_view(node):
        node = node.args[0]  # type: ignore[assignment]
    if not is_row_major(example(node)):
        return False
    return node.op in ("placeholder", "get_attr") or _is_extern(node)


def _wanted(node: fx.Node, seen: set[fx.Node]) -> bool:
    """Does anything need the tensor in memory of its own?"""
    seen.add(node)
    for user in node.users:
        if user in seen:
            continue
        if user.op == "output" or _is_extern(user):
            return True
        copies = op_name(user) == "copy_"
        target = user.args[0] if copies else user
        if copies or _is_view(user):
            if isinstance(target, fx.Node) and target not in seen and _wanted(target, seen):
                return True
    return False


def _is_view(node: fx.Node) -> bool:
    """Does a call hand on the memory of its first operand in another shape?"""
    return keeps_order(node) and storage(node) == storage(node.args[0])


def _is_extern(node: fx.Node) -> bool:
    return family_of(node) == "products" or is_collective(node.target)
