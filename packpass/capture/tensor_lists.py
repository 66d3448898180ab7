"""Lists of tensors that a program is given, one for each document: ``parts: list[Tensor]``.

Dynamo makes an input of each, so that every number of documents is a graph of its own. Where they differ in their
first dimension, or there are more or fewer of them than before, the list is what a row is split into: ``torch.cat`` of
it, and the lengths, are made at every call (`packpass.capture.made_inputs`). Where they differ in other dimensions as
well, the row holds all their slots, and a document is a view of its own. Where they never differ, the row has one slot
for each: losses, pooled values.

Does not handle: tensors of different dtypes, ranks or devices, of which only some have gradients, or that the program
writes to.
"""

from __future__ import annotations

import itertools
import types
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.compiler import disable as untraced

from packpass import markers
from packpass.capture import plain, plain_parts
from packpass.capture.dynamo import call, constant, variable
from packpass.capture.made_inputs import Made, guard, guard_equal_lengths, lengths_of, made
from packpass.capture.state import active, refuse
from packpass.capture.watch import source_name
from packpass.decisions.location import shorten
from packpass.semantics.binding import example as example_of
from packpass.semantics.effects import written_inputs
from packpass.semantics.memory import is_new

MOST_DIMENSIONS = 4
"""Of a tensor whose documents differ in several."""


@untraced
def lengths(tensors: Any) -> torch.Tensor:
    """``[N]``, the first size of each."""
    return torch.tensor([tensor.shape[0] for tensor in tensors])


@untraced
def sizes(tensors: Any) -> torch.Tensor:
    """``[N, rank]``, all sizes of each."""
    return torch.tensor([tuple(tensor.shape) for tensor in tensors])


@untraced
def slots(tensors: Any) -> torch.Tensor:
    """All numbers of all of them, in one dimension."""
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


class Lengths(Made):
    """`lengths` of a list."""

    module, function = __name__, "lengths"
    shape = "(len({0}),)"


class Row(Made):
    """The tensors of a list, one behind the other."""

    module, function = "torch", "cat"
    shape = "(sum(map(len, {0})), *{0}[0].shape[1:])"


class Sizes(Made):
    """`sizes` of a list."""

    module, function = __name__, "sizes"
    shape = "(len({0}), {0}[0].dim())"


class Slots(Made):
    """`slots` of a list."""

    module, function = __name__, "slots"
    shape = "(sum(map(torch.numel, {0})),)"


class Stack(Made):
    """The tensors of a list, a slot for each."""

    module, function = "torch", "stack"
    shape = "(len({0}), *{0}[0].shape)"


class Kind:
    """What all tensors of a list have in common."""

    def __init__(self, tensors: Any) -> None:
        first = tensors[0]
        self.kind, self.dtype, self.device, self.grad = type(tensors), first.dtype, first.device, first.requires_grad
        self.rank, self.sizes = first.dim(), tuple(first.shape)
        own = [{tensor.shape[d] for tensor in tensors if tensor.dim() == self.rank} for d in range(self.rank)]
        self.rows = all(len(sizes) == 1 for sizes in own[1:])
        """Do they differ in their first dimension only?"""
        shared = [len(sizes) == 1 and (d > 0 or not self.rows) for d, sizes in enumerate(own)]
        self.shape = tuple(first.shape[d] if same else None for d, same in enumerate(shared))
        """Their sizes; None for those of which each document has its own."""
        if len(tensors) > 1 and all(len(sizes) == 1 for sizes in own):
            self.shape = self.sizes

    @property
    def alike(self) -> bool:
        """Are they all of one shape? So it seems; of another batch they may not be."""
        return None not in self.shape

    @property
    def recipes(self) -> tuple[type[Made], ...]:
        """How their sizes, and the row of them, are made."""
        if self.alike:
            return (Stack,)
        return (Lengths, Row) if self.rows else (Sizes, Slots)

    def seen_before(self, shape: tuple[int | None, ...]) -> None:
        """Tensors of another batch had that shape, and may have had others."""
        if self.alike and shape != self.shape:
            self.shape = (None, *self.shape[1:])
        elif self.rows and shape == self.sizes:  # of one tensor nobody knows
            self.shape = shape

    def holds(self, tensors: Any) -> bool:
        """Is that so of another list?"""
        return type(tensors) is self.kind and bool(tensors) and all(map(self._holds_of, tensors))

    def _holds_of(self, tensor: Any) -> bool:
        return (
            type(tensor) is torch.Tensor
            and tensor.layout is torch.strided
            and tensor.dim() == self.rank
            and (tensor.dtype, tensor.device, tensor.requires_grad) == (self.dtype, self.device, self.grad)
            and all(size in (None, own) for size, own in zip(self.shape, tensor.shape, strict=True))
        )


def kind_of(value: Any) -> Kind | None:
    """What the tensors of a list have in common; None if it is no list of documents."""
    if type(value) not in (list, tuple) or not value or not all(type(entry) is torch.Tensor for entry in value):
        return None
    kind = Kind(value)
    fits = (kind.rows or kind.rank <= MOST_DIMENSIONS) if kind.rank else len(value) > 1
    return kind if fits and kind.holds(value) else None


def kind_here(code: types.CodeType, value: Any, place: str) -> Kind | None:
    """`kind_of` a list at ``place``, which other batches may have shown to be of another."""
    kind = kind_of(value)
    known = _shapes.get(code, {}).get(place)
    if kind is not None and known is not None:
        kind.seen_before(known)
    return kind


def differ(value: Any, kind: Kind) -> bool:
    """Are they rows of several lengths?"""
    return kind.rows and kind.rank > 0 and any(a.shape[0] != b.shape[0] for a, b in itertools.pairwise(value))


def sequence(tx: Any, source: Any, value: Any, kind: Kind) -> Any:
    """The list as a sequence over documents, which a row is split into."""
    of_sizes, of_row = kind.recipes[0], kind.recipes[-1]
    _widen(tx, source, kind)
    guard(source, kind.holds)
    row = made(tx, of_row(source), value)
    if kind.alike:
        return call(tx, plain_parts.of_given, row, variable(tx, kind.kind))
    if kind.rows:
        lengths = lengths_of_documents(tx, source, value, of_sizes)
        return call(tx, plain_parts.of_row, row, lengths, variable(tx, kind.kind))
    numbers = made(tx, of_sizes(source), value)
    return call(tx, plain_parts.of_shapes, row, numbers, constant(kind.shape), variable(tx, kind.kind))


def lengths_of_documents(tx: Any, source: Any, value: Any, recipe: type[Made]) -> Any:
    """The lengths of the documents in a list: those of another one where they are the same, which is a guard."""
    here, of_tensors = lengths_of(value), type(value[0]) is not int
    for other, known, numbers in active.trace.lengths:
        if lengths_of(known) == here and (of_tensors or type(known[0]) is not int):
            guard_equal_lengths(source, other)
            return numbers
    numbers = call(tx, plain.of_tolist, made(tx, recipe(source), value))
    active.trace.lengths.append((source, value, numbers))
    return numbers


_shapes: weakref.WeakKeyDictionary[types.CodeType, dict[str, Any]] = weakref.WeakKeyDictionary()
"""Code -> source of a list of tensors -> the sizes that all of them had when it was traced last."""


def _widen(tx: Any, source: Any, kind: Kind) -> None:
    """Sizes that all documents of a batch share, and those of another batch, too, but others: they have their own."""
    before = _shapes.setdefault(tx.output.root_tx.f_code, {})
    known = before.get(source_name(source), kind.shape)
    if not kind.rows and len(known) == kind.rank:
        kind.shape = tuple(a if a == b else None for a, b in zip(kind.shape, known, strict=True))
    before[source_name(source)] = kind.shape


_NEW = frozenset({*markers.LIST_USES, markers.ROLL, markers.LOGSUMEXP, markers.ATTENTION, markers.PAD}) - {
    markers.LIST_GET
}
"""Calls of capture's own whose result is in memory of its own."""


def check_memory(output: Any, results: Any) -> None:
    """A row is a copy: what is written to it would not be in the tensors of the list, nor what is written to a tensor
    that they are parts of in the row; and what is handed back of it would not be the caller's. Refuses the loop."""
    nodes = output.graph.nodes
    if not any(_is_row(node) for node in nodes):
        return
    tensors = [node for node in (result.as_proxy().node for result in results) if _is_tensor(node)]
    written = any(_reaches(target, _is_callers) for node in nodes for target in written_inputs(node))
    if written or any(_reaches(node, _is_row) for node in tensors):
        what = "may be written to" if written else "is returned, or looked at behind the graph, as it is"
        reason = f"a tensor of a list that the function is given {what}"
        code = output.root_tx.f_code
        raise refuse("outer-tensor-write", reason, shorten(code.co_filename, code.co_firstlineno))


def _is_tensor(node: Any) -> bool:
    return isinstance(example_of(node), torch.Tensor)


def _is_row(node: Any) -> bool:
    argument = node.meta.get("grapharg")
    return argument is not None and isinstance(argument.source, (Row, Slots, Stack))


def _is_callers(node: Any) -> bool:
    """Is it an input that is not a module's own?"""
    argument = node.meta.get("grapharg")
    name = "" if argument is None or argument.source is None else source_name(argument.source)
    return node.op == "placeholder" and not any(f"._{kind}[" in name for kind in ("buffers", "parameters"))


def _reaches(node: Any, wanted: Callable[[Any], bool]) -> bool:
    """May a tensor share memory with such an input?"""
    seen, stack = set[Any](), [node]
    while stack:
        here = stack.pop()
        if wanted(here):
            return True
        ours = markers.is_of_capture(here) and here.target not in _NEW
        if here not in seen and (ours or not is_new(here)):
            seen.add(here)
            stack += filter(_is_tensor, here.all_input_nodes)
    return False
