"""Tensors that the body makes and writes: ``stats = torch.zeros(4); stats[0] = x[s:e].sum()``.

What all documents share is one tensor outside of them; of what each writes, each has one of its own.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx

from packpass.semantics import example, is_tensor, storage
from packpass.semantics.effects import written_inputs
from passes.document_loops.appended import Common
from passes.document_loops.documents import document
from passes.document_loops.machine import Machine
from passes.document_loops.op_names import name_of
from passes.document_loops.terms import Outside

_LARGEST = 1 << 16
"""So many elements may be filled for every document: those of all documents are in memory together."""


def own_memory(machine: Machine, node: fx.Node, value: Outside) -> Any:
    """A tensor that every document makes, as one of the document's own if it is written later on."""
    fake = example(node)
    if not isinstance(fake, torch.Tensor) or node not in machine.inside or not _is_new(node):
        return value
    sizes = [size for size in fake.shape if isinstance(size, int)]
    if len(sizes) < fake.dim() or math.prod(sizes) > _LARGEST or not _is_written(node):
        return value
    if any(_by_numbers(user, node) for user in node.users):  # slots of the document may be put there (`padded`)
        return value
    return document(machine, Common(value, 0))


def _is_new(node: fx.Node) -> bool:
    """Does a call give memory that none of its operands has?"""
    memory = storage(node)
    return memory is not None and all(storage(n) != memory for n in node.all_input_nodes if is_tensor(n))


def _is_written(node: fx.Node) -> bool:
    """Does anything write to this memory, through the tensor itself or a view of it?"""
    memory, stack, seen = storage(node), [node], {node}
    while stack:
        for user in stack.pop().users:
            if any(storage(target) == memory for target in written_inputs(user)):
                return True
            if user not in seen and is_tensor(user) and storage(user) == memory:
                seen.add(user)
                stack.append(user)
    return False


def _by_numbers(user: fx.Node, of: fx.Node) -> bool:
    """Does a call cut a part of a tensor by numbers that are no constants?"""
    index = user.args[1:2] if name_of(user) in ("getitem", "setitem") else user.args[1:]
    found: list[fx.Node] = []
    fx.map_arg(index, found.append)
    return user.args[:1] == (of,) and any(isinstance(example(n), torch.SymInt) for n in found)
