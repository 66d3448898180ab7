"""Numbers of a document that are counted in its row: ``int(mask[i].sum())``, ``(ids[i] == pad).int().argmax().item()``.

They are counted for all rows in front of the loop, and the number of a document is an entry of that vector: lengths
like any others. What a row goes through before treats every slot by itself, and what is counted are integers and truth
values, so that it gives the same numbers.

Where a document's number is carried on (``start += n``), the frame is traced again, and the vector is wanted before the
loop has counted anything. So how it is made is written down under a name (`FrameState.row_numbers`).
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import fx

from packpass.capture.dynamo import TensorVariable, constant, emit, example, wrap_fx_proxy
from packpass.capture.state import active, current_frame
from packpass.semantics.effects import effects_of, mutated_after
from packpass.semantics.pointwise import slot_by_slot

_size = torch.ops.aten.sym_size.int


Step = tuple[str, Any, tuple[Any, ...]]
"""Kind of node, target, and what stands behind the row among the arguments."""


@dataclasses.dataclass(frozen=True)
class RowNumbers:
    """``source``: name of the node that has all rows. ``steps``: what a row goes through; the last of them counts."""

    source: str
    steps: tuple[Step, ...]


def counted(name: str) -> Any:
    """The replacement of a call that makes a number of a row."""

    def replacement(tx: Any, tensor: Any = None, *args: Any, **kwargs: Any) -> Any:
        """An entry of the numbers of all rows, made before the loop; None if it is another number."""
        tensor = None if tensor is None else tensor.realize()
        fake = example(tensor) if isinstance(tensor, TensorVariable) else None
        if not active.regions or not isinstance(fake, torch.Tensor) or fake.dim() != 1 or not _of_row(args, kwargs):
            return None
        if fake.dtype.is_floating_point or fake.dtype.is_complex:
            return None
        if name == "any" and fake.dtype is not torch.bool:
            return None
        number = entry(tx, tensor, (("call_method", "sum" if name == "any" else name, (1,)),))
        return number if number is None or name != "any" else number.call_method(tx, "__gt__", [constant(0)], {})

    return replacement


def entry(tx: Any, row: Any, counts: tuple[Step, ...]) -> Any:
    """What these operations count in the row of a document, as an entry of the numbers of all rows; None if ``row`` is
    none of a batch in front of the loop."""
    region = active.regions[-1]
    steps = _steps(row.as_proxy().node, region.indices[0], region.indices[-1])
    if steps is None:
        return None
    how = RowNumbers(steps.source, (*steps.steps, *counts))
    vector = region.in_front(how, lambda: vector_of(tx, how))
    if vector is None:
        return None
    # A tensor of its own, which a list may hold and others write.
    return vector.call_method(tx, "__getitem__", [region.index], {}).call_method(tx, "clone", [], {})


def _of_row(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Does a call ask for one number, of the only dimension that there is?"""
    given = [*args, *(kwargs[name] for name in kwargs if name == "dim")]
    if len(given) > 1 or set(kwargs) - {"dim"}:
        return False
    return all(value.realize().is_python_constant() and value.as_python_constant() in (0, -1, None) for value in given)


def _steps(row: fx.Node, begin: fx.Node, index: fx.Node) -> RowNumbers | None:
    """How the rows of all documents are made, of which ``row`` is the one at the index; None if that is not known."""
    if row.target in (torch.select, "select") and row.args[1:] == (0, index):
        source: Any = row.args[0]
        known = source < begin and not mutated_after(source.graph, source, begin)
        return RowNumbers(source.name, ()) if known and source.meta["example_value"].dim() == 2 else None
    if row < begin or len(row.all_input_nodes) != 1 or row.args[:1] != (row.all_input_nodes[0],) or row.kwargs:
        return None
    value = row.all_input_nodes[0].meta.get("example_value")
    if not isinstance(value, torch.Tensor) or value.dim() != 1:
        return None
    if not slot_by_slot(row) or not effects_of(row).repeatable:
        return None
    if mutated_after(row.graph, row, row.next):
        return None  # what it holds now is not what it was made as
    before = _steps(row.all_input_nodes[0], begin, index)
    return None if before is None else RowNumbers(before.source, (*before.steps, (row.op, row.target, row.args[1:])))


def vector_of(tx: Any, how: RowNumbers) -> Any:
    """The numbers of all rows, counted here unless they have been before; None if there are no such rows."""
    graph, before = tx.output.current_tracer.graph, f"numbers of {how}"
    every = active.trace.counted.items()
    known = [(node, vector) for node, (name, vector) in every if name.startswith(before) and node.graph is graph]
    for node, vector in known:
        source = next(n for n in graph.nodes if n.name == how.source)
        if not mutated_after(graph, source, node):
            return vector
    return _count(tx, how, f"{before}, {len(known)}")  # again, where the rows have been written since


def _count(tx: Any, how: RowNumbers, name: str) -> Any:
    graph = tx.output.current_tracer.graph
    source = next((node for node in graph.nodes if node.name == how.source), None)
    if source is None:
        return None
    made = None
    for op, target, rest in how.steps:
        rows = tx.output.current_tracer.proxy(source) if made is None else made.as_proxy()
        made = emit(tx, target, rows, *rest, method=op == "call_method")
    if made is not None:
        current_frame().row_numbers[name] = how
        active.trace.counted[made.as_proxy().node] = (name, made)
    return made


def name_of(vector: fx.Node) -> str:
    """The name under which a vector is found when the frame is traced again."""
    return active.trace.counted[vector][0] if vector in active.trace.counted else vector.name


def places(tx: Any, row: Any) -> Any:
    """The numbers of the slots of a row, as a row of which every document has one; None if ``row`` is none."""
    region, node = active.regions[-1], row.as_proxy().node
    how = _steps(node, region.indices[0], region.indices[-1])
    source = None if how is None else next(n for n in node.graph.nodes if n.name == how.source)

    def all_rows() -> Any:
        rows = tx.output.current_tracer.proxy(source)
        sizes = [size_along(tx, rows, dim) for dim in range(rows.node.meta["example_value"].dim())]
        numbers = numbers_up_to(tx, sizes[1], example(row).device)
        return emit(tx, "expand", numbers.as_proxy(), *sizes, method=True)

    made = None if source is None else region.in_front(("places", source), all_rows)
    return None if made is None else made.call_method(tx, "__getitem__", [region.index], {})


def size_along(tx: Any, tensor: fx.Proxy, dim: int) -> Any:
    """How long a value of the graph is, as an operand: a number where that is a constant."""
    size = tensor.node.meta["example_value"].shape[dim]
    return size if isinstance(size, int) else emit(tx, _size, tensor, dim).as_proxy()


def numbers_up_to(tx: Any, size: Any, device: torch.device) -> Any:
    """The numbers of so many slots."""
    return wrap_fx_proxy(tx, tx.output.create_proxy("call_function", torch.arange, (size,), {"device": device}))


def called(tx: Any, name: str) -> Any:
    """The proxy of the vector that was written down under this name; None if there is none."""
    how = current_frame().row_numbers.get(name)
    known = (vector for known, vector in active.trace.counted.values() if known == name)
    vector = next(known, None) or (None if how is None else _count(tx, how, name))
    return None if vector is None else vector.as_proxy()
