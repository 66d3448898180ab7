"""Lists of numbers that a program is given: ``lengths: list[int]``, or rows of sizes, ``list[tuple[int, int]]``.

To Dynamo they are constants, so that every batch is a graph of its own. Where a loop goes over such a list, and its
numbers fit a tensor beside it as lengths of documents do, it is what ``tolist()`` of a tensor would be: torch makes a
tensor of it at every call, as it does of a float, and that is the input of the graph.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import types
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from packpass.capture import code_loops, plain
from packpass.capture.dynamo import (
    AttrSource,
    FloatTensorSource,
    GuardBuilder,
    ListVariable,
    TupleVariable,
    VariableTracker,
    call,
    constant,
    install_guard,
    variable,
)
from packpass.capture.state import FrameState, Mode, active, current_frame, restart
from packpass.capture.watch import enter_loop_mode, loops_are_sought, source_name
from packpass.semantics.binding import example as example_of


def values_of(arguments: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """What a function is given: a name for people, that of the source, and the value; entries of dicts by theirs."""
    for name, value in arguments.items():
        yield name, f"L[{name!r}]", value
        if type(value) is dict:
            for key, entry in value.items():
                yield f"{name}[{key!r}]", f"L[{name!r}][{key!r}]", entry


def numbers_of(value: Any) -> tuple[int, ...] | None:
    """A list of integers; of rows of sizes, their products."""
    if type(value) not in (list, tuple) or not value:
        return None
    if all(type(entry) is int for entry in value):
        return tuple(value)
    rows = all(type(row) in (list, tuple) and row and all(type(n) is int for n in row) for row in value)
    return tuple(math.prod(row) for row in value) if rows else None


def is_even(value: Any) -> bool:
    """Are rows of sizes as long as each other?"""
    return type(value[0]) is int or len({len(row) for row in value}) == 1


def fits(numbers: tuple[int, ...], sizes: set[int]) -> bool:
    """May they be lengths of documents in a row of such a size, or boundaries?"""
    if min(numbers) < 0:
        return False
    ends = len(numbers) > 1 and numbers[0] == 0 and all(a <= b for a, b in itertools.pairwise(numbers))
    return sum(numbers) in sizes or (ends and numbers[-1] in sizes)


def are_rows(numbers: tuple[int, ...], tensors: list[torch.Tensor]) -> bool:
    """May they be lengths of the documents in a padded batch?"""
    batches = [value.shape for value in tensors if value.dim() > 1 and len(numbers) == value.shape[0]]
    return min(numbers) >= 0 and any(max(numbers) <= shape[1] for shape in batches)


def name_of(source: str) -> str:
    """The name of the tensor that torch makes of a list."""
    return f"___as_tensor({source})"


# === Which lists =============================================================================================


def seen(tx: Any, value: Any) -> None:
    """The program uses a list. Is it one of lengths? Then the frame is traced again, with that in mind."""
    frame = current_frame()
    if frame.mode is not Mode.PROBE or type(value) not in (ListVariable, TupleVariable) or value.source is None:
        return
    if not loops_are_sought(frame) or code_loops.unpacks(tx):
        return
    place, arguments = source_name(value.source), tx.output.root_tx.f_locals
    held = _held(value.source, arguments)
    numbers = numbers_of(held)
    modules = (name for name, argument in arguments.items() if isinstance(argument, torch.nn.Module))
    if numbers is None or not is_even(held) or any(place.startswith(f"L[{name!r}]") for name in modules):
        return  # another list, or a setting
    before = _before.setdefault(tx.output.root_tx.f_code, {})
    other = before.setdefault(place, numbers)
    tensors = _tensors(tx)
    leading = {int(next((size for size in held.shape if size != 1), 1)) for held in tensors}
    if fits(numbers, leading) or are_rows(numbers, tensors) or len(other) != len(numbers):
        frame.given.setdefault(_rank(held), {})[name_of(place)] = len(held)
        enter_loop_mode(tx, (len(held),), rank=_rank(held))


def _tensors(tx: Any) -> list[Any]:
    """What the program is given, and what it has looked at of it so far."""
    looked_at = [example_of(node) for node in tx.output.root_tracer.graph.find_nodes(op="placeholder")]
    values = [*(held for _, _, held in values_of(tx.output.root_tx.f_locals)), *looked_at]
    found = [v for v in values if isinstance(v, torch.Tensor) and not isinstance(v, torch.nn.Parameter)]
    return [v for v in found if not v.is_nested and all(isinstance(size, int) for size in v.shape)]


def watch(tx: Any, value: Any) -> None:
    """A list of another length stands beside a sequence over documents: one that the program is given is traced as
    such a sequence, too."""
    source: Any = getattr(value, "source", None)
    frame = current_frame()
    held = _held(source, tx.output.root_tx.f_locals)
    if frame.mode is not Mode.SYMBOLIC or numbers_of(held) is None or not is_even(held):
        return
    name = source_name(FloatTensorSource(source))
    if name not in frame.dynamic_sources:
        frame.given.setdefault(_rank(held), {})[name] = len(held)
        frame.dynamic_sources.add(name)
        raise restart(f"{name} has one entry for each document")


_before: weakref.WeakKeyDictionary[types.CodeType, dict[str, Any]] = weakref.WeakKeyDictionary()
"""Code -> source of a list of numbers -> what it held where it was first used."""


def _rank(held: Any) -> int:
    return 1 if type(held[0]) is int else 2


def _held(source: Any, arguments: Mapping[str, Any]) -> Any:
    """What a source that begins with an argument was when the frame began; None for any other."""
    if not hasattr(source, "base"):
        return arguments.get(getattr(source, "local_name", ""))
    within = _held(source.base, arguments)
    if type(source) is AttrSource:
        return getattr(within, source.member, None)
    return within[source.index] if type(within) is dict and source.index in within else None


# === What they are traced as =================================================================================


class Lists(dict[Any, Any]):
    """The values of a frame by their source, as Dynamo keeps them: such lists are sequences over documents."""

    def __init__(self, tx: Any, frame: FrameState) -> None:
        super().__init__(tx.output.variable_tracker_cache)
        self.tx, self.names = tx, {name for names in frame.given.values() for name in names} & frame.dynamic_sources

    def get(self, source: Any, default: Any = None) -> Any:
        of_tensor = FloatTensorSource(source)
        name = source_name(of_tensor)
        if name not in self.names:
            return dict.get(self, source, default)
        if name not in active.trace.given:
            active.trace.given[name] = None  # while it is being made
            active.trace.given[name] = _sequence(self.tx, source, of_tensor)
        return active.trace.given[name]


def frame_starts(tx: Any, frame: FrameState) -> None:
    """A frame is about to be traced."""
    if frame.mode is Mode.SYMBOLIC and frame.given:
        tx.output.variable_tracker_cache = Lists(tx, frame)


class _Tensor(FloatTensorSource):
    """The tensor of a list, made at every call; torch itself says how for those of floats only."""

    def reconstruct(self, codegen: Any) -> None:
        codegen.append_output(codegen.create_load_python_module(torch))
        codegen.load_method("as_tensor")
        codegen(self.base)
        codegen.call_method(1)


def _sequence(tx: Any, source: Any, of_tensor: Any) -> Any:
    """The list as a sequence over documents, whose numbers a tensor holds."""
    value = _held(source, tx.output.root_tx.f_locals)
    row = torch.as_tensor(value)
    tensor = VariableTracker.build(tx, row, of_tensor).realize()
    made = tensor.as_proxy().node
    made.meta["grapharg"].example_strong_ref = row
    for node in made.graph.find_nodes(op="placeholder"):
        argument = node.meta.get("grapharg")
        if argument is not None and of_tensor in (argument.source, getattr(argument.source, "base", None)):
            own: Any = _Tensor(source)
            argument.source = own if node is made else dataclasses.replace(argument.source, base=own)
    for guard in [guard for guard in tx.output.guards if guard.originating_source == of_tensor]:
        tx.output.guards.inner.remove(guard)
        guard.create_fn = functools.partial(_matches, **guard.create_fn.keywords)
        tx.output.guards.inner.add(guard)
    install_guard(source.make_guard(GuardBuilder.TYPE_MATCH))
    if row.dim() == 2:
        made = call(tx, plain.of_rows, tensor, constant(row.shape[1]))
    else:
        made = call(tx, plain.of_tolist, tensor)
    return made if type(value) is list else call(tx, plain.listed, made, variable(tx, tuple))


def _matches(self: Any, guard: Any, value: Any) -> None:
    """``TENSOR_MATCH`` of tensors that are made for a guard, and gone after it: the next one may lie where the last one
    was, which is not to say that they are the same."""
    GuardBuilder.TENSOR_MATCH(self, guard, value)
    self.no_tensor_aliasing_names.pop()
    self.no_tensor_aliasing_guard_managers.pop()
