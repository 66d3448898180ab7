"""Sequences whose length is the number of documents, as Dynamo variables.

One class stands for all of them: ``range(n)``, a boundary tensor that is looped over, ``cu.tolist()``,
``torch.split(x, lengths.tolist())``, and ``zip`` / ``enumerate`` of those. An element is computed from its index, so
a ``for`` over the sequence needs only an unbacked index (`markers.LOOP_BEGIN`). Every other use refuses the loop.
"""

from __future__ import annotations

import inspect
import itertools
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

import sympy
from torch._dynamo.exc import raise_observed_exception
from torch._dynamo.variables import ConstantVariable, ListVariable, SymNodeVariable, TensorVariable, TupleVariable
from torch._dynamo.variables.base import ValueMutationNew, VariableTracker
from torch._dynamo.variables.iter import IteratorVariable
from torch._dynamo.variables.lists import SliceVariable

from packpass.capture import markers
from packpass.capture.region import ITERATIONS, CollectedItems, Region
from packpass.capture.state import active, refuse

if TYPE_CHECKING:
    from torch._dynamo.symbolic_convert import InstructionTranslatorBase

Element = Callable[["InstructionTranslatorBase", VariableTracker], VariableTracker]


def binary(tx: InstructionTranslatorBase, op: Any, a: VariableTracker, b: VariableTracker | int) -> VariableTracker:
    """``op(a, b)`` traced as Python integers (constants stay constants)."""
    from torch._dynamo.variables.builder import SourcelessBuilder

    other = b if isinstance(b, VariableTracker) else ConstantVariable.create(b)
    return SourcelessBuilder.create(tx, op).call_function(tx, [a, other], {})


def expression(v: VariableTracker) -> Any:
    """The sympy expression (or int) behind an integer variable."""
    return v.sym_num.node.expr if isinstance(v, SymNodeVariable) else v.as_python_constant()


def _in_range(key: Any, length: Any) -> bool:
    """Is ``0 <= key < length`` in every iteration of the open loop, where its index is below the loop's length?"""
    if not active.regions:
        return False
    region = active.regions[-1]
    ahead = key - expression(region.index)
    spare = length - expression(region.length) - ahead
    return all(getattr(n, "is_number", True) and bool(n >= 0) for n in (ahead, spare))


class SymbolicSequence(VariableTracker):
    """``length`` elements, element ``i`` being ``element(tx, i)``; ``kind`` is the Python type it stands for."""

    def __init__(self, length: VariableTracker, element: Element, kind: type, location: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.length, self.element, self.kind, self.location = length, element, kind, location
        self.origin: VariableTracker | None = None
        """The 1-D tensor whose ``tolist()`` this is."""
        self.calls = False
        """Does making an element call user code?"""
        self.once = self.spent = False
        """Is it an iterator (zip, enumerate, map), which a first loop exhausts?"""

    def _refuse(self, what: str) -> NoReturn:
        raise refuse("sequence-use", f"{what} needs the number of documents to be a constant", self.location)

    def python_type(self) -> type:
        return self.kind

    def as_python_constant(self) -> Any:
        raise NotImplementedError

    def is_python_constant(self) -> bool:
        return False

    def take(self) -> SymbolicSequence:
        """The sequence, for somebody who will go through it."""
        if self.once:
            if self.spent:
                raise refuse("iterator-use", "an iterator over documents is used a second time", self.location)
            self.spent = True
        return self

    def listed(self) -> SymbolicSequence:
        """``list(sequence)``: the same elements, to be gone through as often as one likes."""
        if not self.once:
            return self
        self.take()
        return SymbolicSequence(self.length, self.element, list, self.location, mutation_type=ValueMutationNew())

    def tp_iter_impl(self, tx: InstructionTranslatorBase) -> VariableTracker:
        return SymbolicIterator(self.take(), mutation_type=ValueMutationNew())

    def sq_length(self, tx: Any) -> VariableTracker:
        if self.once:
            self._refuse("the length of an iterator")
        return self.length

    mp_length = sq_length

    def mp_subscript_impl(self, tx: InstructionTranslatorBase, key: VariableTracker) -> VariableTracker:
        key = key.realize()
        if self.once:
            self._refuse("a subscript of an iterator")
        if isinstance(key, SliceVariable):
            return self._slice(tx, key)
        if isinstance(key, ConstantVariable) and isinstance(key.as_python_constant(), int):
            # In range for at least one document; beyond that eager's IndexError would become a wrong read.
            value = key.as_python_constant()
            if value in (0, -1):
                return self.element(tx, key if value == 0 else binary(tx, operator.sub, self.length, 1))
            self._refuse(f"element [{value}] of a sequence with one entry per document")
        if isinstance(key, SymNodeVariable):
            # A negative number counts from the end, one too large raises: neither is what the element of it would be.
            if _in_range(expression(key), expression(self.length)):
                return self.element(tx, key)
            self._refuse(f"element [{key.sym_num}] of a sequence with one entry per document")
        self._refuse("this subscript")

    def _slice(self, tx: InstructionTranslatorBase, key: SliceVariable) -> VariableTracker:
        start, stop, step = (None if v.is_constant_none() else v for v in key.items)
        if step is not None and not (step.is_python_constant() and step.as_python_constant() == 1):
            self._refuse("a slice with a step")
        first = (
            start.as_python_constant()
            if start is not None and start.is_python_constant()
            else (0 if start is None else None)
        )
        drop = (
            stop.as_python_constant()
            if stop is not None and stop.is_python_constant()
            else (0 if stop is None else None)
        )
        if first is None or drop is None or (first, drop) not in ((0, 0), (1, 0), (0, -1)):
            self._refuse("a slice other than [1:] or [:-1]")
        origin = self
        cut = SymbolicSequence(
            binary(tx, operator.sub, self.length, first - drop),
            lambda tx, i: origin.element(tx, binary(tx, operator.add, i, first) if first else i),
            self.kind,
            self.location,
            mutation_type=ValueMutationNew(),
        )
        return cut

    def call_method(
        self, tx: InstructionTranslatorBase, name: str, args: list[VariableTracker], kwargs: dict[str, VariableTracker]
    ) -> VariableTracker:
        if name == "__iter__":
            return self.tp_iter_impl(tx)
        if name == "__len__":
            return self.length
        if name == "__getitem__":
            return self.mp_subscript_impl(tx, args[0])
        self._refuse(f"{self.kind.__name__}.{name}")

    def var_getattr(self, tx: InstructionTranslatorBase, name: str) -> VariableTracker:
        if name.startswith("__"):
            from torch._dynamo.variables.misc import GetAttrVariable

            return GetAttrVariable(self, name)
        self._refuse(f"attribute {name}")

    def has_unpack_var_sequence(self, tx: Any) -> bool:
        return True

    def has_force_unpack_var_sequence(self, tx: Any) -> bool:
        return True

    def unpack_var_sequence(self, tx: Any) -> list[VariableTracker]:
        self._refuse("materialising the sequence as a list")

    force_unpack_var_sequence = unpack_var_sequence

    def force_apply_to_var_sequence(self, tx: Any, fn: Any) -> None:
        self._refuse("applying a function to every element at once")

    def reconstruct(self, codegen: Any) -> None:
        self._refuse("a graph break or a return that keeps the sequence")

    def as_proxy(self) -> Any:
        self._refuse("passing the whole sequence to an operator")


class SymbolicIterator(IteratorVariable):
    """Iterator over a `SymbolicSequence`: yields `ITERATIONS` symbolic elements, then stops."""

    def __init__(self, sequence: SymbolicSequence, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.sequence = sequence
        self.region: Region | None = None

    def python_type(self) -> type:
        return type(iter([]))

    def tp_iter_impl(self, tx: InstructionTranslatorBase) -> VariableTracker:
        return self

    def has_unpack_var_sequence(self, tx: Any) -> bool:
        return False

    def has_force_unpack_var_sequence(self, tx: Any) -> bool:
        return False

    def reconstruct(self, codegen: Any) -> None:
        self.sequence._refuse("a graph break that keeps the iterator")

    def tp_iternext_impl(self, tx: Any) -> VariableTracker:
        location = self.sequence.location
        driven = tx.current_instruction.opname == "FOR_ITER" and tx.stack and tx.stack[-1].realize() is self
        if not driven or tx.f_code.co_flags & inspect.CO_GENERATOR:
            raise refuse("iterator-use", "the sequence of documents is advanced outside a plain for loop", location)
        if self.region is None:
            if active.regions:
                raise refuse("nested-loops", "a loop over documents inside a loop over documents", location)
            self.region = Region(tx, self, self.sequence.length, location)
            active.regions.append(self.region)
        else:
            if not active.regions or active.regions[-1] is not self.region or tx is not self.region.tx:
                raise refuse("early-exit", "an inner loop was left by break or return", location)
            self.region.end_iteration()
            if self.region.iteration == ITERATIONS:
                active.regions.pop()
                self.region.close()
                raise_observed_exception(StopIteration, tx)
        self.region.begin_iteration()
        return self.sequence.element(tx, self.region.index)

    next_variable = tp_iternext_impl


# === Constructors ============================================================================================


def of_range(
    tx: InstructionTranslatorBase, start: VariableTracker, stop: VariableTracker, location: str
) -> SymbolicSequence:
    """``range(start, stop)``."""
    zero = start.is_python_constant() and start.as_python_constant() == 0
    length = stop if zero else binary(tx, operator.sub, stop, start)
    return SymbolicSequence(
        length,
        lambda tx, i: i if zero else binary(tx, operator.add, i, start),
        range,
        location,
        mutation_type=ValueMutationNew(),
    )


def of_tensor(tx: InstructionTranslatorBase, tensor: TensorVariable, location: str) -> SymbolicSequence:
    """The 0-d elements of a 1-D tensor, as ``for t in tensor`` yields them."""
    length = tensor.call_method(tx, "size", [ConstantVariable.create(0)], {})
    return SymbolicSequence(
        length,
        lambda tx, i: tensor.call_method(tx, "__getitem__", [i], {}),
        list,
        location,
        mutation_type=ValueMutationNew(),
    )


def of_tolist(tx: InstructionTranslatorBase, tensor: TensorVariable, location: str) -> SymbolicSequence:
    """``tensor.tolist()`` of a 1-D integer tensor."""
    length = tensor.call_method(tx, "size", [ConstantVariable.create(0)], {})
    # The list keeps its numbers when the tensor changes; the passes see through a copy of a tensor that does not.
    numbers = tensor.call_method(tx, "clone", [], {})

    def element(tx: Any, i: VariableTracker) -> VariableTracker:
        return numbers.call_method(tx, "__getitem__", [i], {}).call_method(tx, "item", [], {})

    out = SymbolicSequence(length, element, list, location, mutation_type=ValueMutationNew())
    out.origin = numbers
    return out


def of_split(tx: InstructionTranslatorBase, x: TensorVariable, lengths: SymbolicSequence, dim: int) -> SymbolicSequence:
    """``torch.split(x, lengths, dim)`` where ``lengths`` is the ``tolist()`` of a tensor."""
    from torch._dynamo.variables.builder import wrap_fx_proxy

    origin = lengths.origin
    if origin is None:
        lengths._refuse("splitting by a list that is not the tolist() of one tensor")

    def element(tx: Any, i: VariableTracker) -> VariableTracker:
        args = (x.as_proxy(), origin.as_proxy(), i.as_proxy(), dim)
        return wrap_fx_proxy(tx, tx.output.create_proxy("call_function", markers.SPLIT_GET, args, {}))

    return SymbolicSequence(lengths.length, element, tuple, lengths.location, mutation_type=ValueMutationNew())


def of_collected(tx: InstructionTranslatorBase, items: CollectedItems) -> SymbolicSequence:
    """A list that an earlier loop over documents filled, looped over again."""
    from torch._dynamo.variables.builder import wrap_fx_proxy

    collected = items.collected
    if items.numbers is not None:
        return items.numbers
    if collected is None:
        items._refuse()
        raise AssertionError

    if items.region.skips and active.frame is not None:
        active.frame.not_replayable = "a list that lacks the skipped documents is looped over again"

    def element(tx: Any, i: VariableTracker) -> VariableTracker:
        args = (collected.as_proxy(), i.as_proxy())
        return wrap_fx_proxy(tx, tx.output.create_proxy("call_function", markers.LIST_GET, args, {}))

    return SymbolicSequence(items.region.length, element, list, items.region.location, mutation_type=ValueMutationNew())


def _shortest(sequences: list[SymbolicSequence], what: str, strict: bool) -> VariableTracker:
    """The length of a zip: that of the shortest, if the lengths differ by constants."""
    shortest, length = sequences[0].length, expression(sequences[0].length)
    for other in sequences[1:]:
        difference = sympy.sympify(expression(other.length) - length)
        if not difference.is_Integer or (strict and difference != 0):
            raise refuse(
                "unequal-lengths",
                f"{what} of sequences whose lengths are not provably equal ({length} and {expression(other.length)})",
                other.location,
            )
        if difference < 0:
            shortest, length = other.length, expression(other.length)
    return shortest


def _iterator(
    tx: InstructionTranslatorBase,
    items: list[SymbolicSequence],
    element: Element,
    kind: type,
    location: str,
    strict: bool = False,
) -> SymbolicSequence:
    """An iterator over the elements of other sequences, which it uses up."""
    length = _shortest(items, kind.__name__, strict)
    out = SymbolicSequence(length, element, kind, location, mutation_type=ValueMutationNew())
    for item in items:
        item.take()
    out.once = True
    out.calls = any(item.calls for item in items)
    return out


def of_zip(
    tx: InstructionTranslatorBase, items: list[SymbolicSequence], location: str, strict: bool = False
) -> SymbolicSequence:
    """``zip(*items, strict=strict)``."""

    def element(tx: Any, i: VariableTracker) -> VariableTracker:
        return TupleVariable([s.element(tx, i) for s in items], mutation_type=ValueMutationNew())

    return _iterator(tx, items, element, zip, location, strict)


def of_pairwise(tx: InstructionTranslatorBase, items: SymbolicSequence, location: str) -> SymbolicSequence:
    """``itertools.pairwise(items)``."""

    def element(tx: Any, i: VariableTracker) -> VariableTracker:
        pair = [items.element(tx, i), items.element(tx, binary(tx, operator.add, i, 1))]
        return TupleVariable(pair, mutation_type=ValueMutationNew())

    out = _iterator(tx, [items], element, itertools.pairwise, location)
    out.length = binary(tx, operator.sub, items.length, 1)
    return out


def of_map(
    tx: InstructionTranslatorBase, fn: VariableTracker, items: list[SymbolicSequence], location: str
) -> SymbolicSequence:
    """``map(fn, *items)``."""
    out = _iterator(tx, items, lambda tx, i: fn.call_function(tx, [s.element(tx, i) for s in items], {}), map, location)
    out.calls = True
    return out


def collect(tx: InstructionTranslatorBase, sequence: SymbolicSequence) -> VariableTracker:
    """``list(sequence)`` of tensors: trace its two iterations here, as a loop that appends would."""
    if active.regions:
        raise refuse("nested-loops", "a loop over documents inside a loop over documents", sequence.location)
    sequence.take()
    region = Region(tx, sequence, sequence.length, sequence.location)
    active.regions.append(region)
    items = CollectedItems(region)
    region.lists.append(items)
    for _ in range(ITERATIONS):
        region.begin_iteration()
        items.append(sequence.element(tx, region.index))
        region.end_iteration()
    active.regions.pop()
    region.close()
    out = ListVariable([], mutation_type=ValueMutationNew())
    out.items = items
    return out


def of_enumerate(
    tx: InstructionTranslatorBase, items: SymbolicSequence, start: VariableTracker, location: str
) -> SymbolicSequence:
    """``enumerate(items, start)``."""
    zero = start.is_python_constant() and start.as_python_constant() == 0

    def element(tx: Any, i: VariableTracker) -> VariableTracker:
        pair = [i if zero else binary(tx, operator.add, i, start), items.element(tx, i)]
        return TupleVariable(pair, mutation_type=ValueMutationNew())

    return _iterator(tx, [items], element, enumerate, location)
