"""Replacements that let Dynamo trace a loop over documents once, and refuse every loop that is not generic.

Each function is ``replacement(original, *args)`` for one entry of the hook table in `packpass.capture`.
"""

from __future__ import annotations

import builtins
from typing import Any

import torch
from torch._dynamo import variables
from torch._dynamo.current_scope_id import current_scope_id
from torch._dynamo.variables import ConstantVariable, ListVariable, SliceVariable, SymNodeVariable, TensorVariable, TupleVariable
from torch._dynamo.variables.base import is_side_effect_safe
from torch._dynamo.variables.misc import AutogradFunctionContextVariable

from packpass._compat import free_unbacked_symbols, size_oblivious
from packpass._location import shorten
from packpass.capture import markers, sequences
from packpass.capture.region import CollectedItems, Poison
from packpass.capture.sequences import SymbolicIterator, SymbolicSequence
from packpass.capture.state import FrameState, Mode, active, refuse, restart

_INDEX_DTYPES = (torch.int32, torch.int64)
_CATS = (torch.cat, torch.concat, torch.concatenate)
_SPLITS = (torch.split, torch.functional.split)


def location_of(tx: Any) -> str:
    """``file.py:123`` of the line that ``tx`` is tracing."""
    return shorten(tx.f_code.co_filename, tx.lineno)


def _frame() -> FrameState:
    assert active.frame is not None
    return active.frame


# === Watching for a loop over documents ======================================================================


def wrap_tensor(original: Any, self: Any, value: torch.Tensor) -> Any:
    """``VariableBuilder.wrap_tensor``: remember every 1-D integer input, the only things that can be boundaries."""
    if value.dim() == 1 and value.dtype in _INDEX_DTYPES and value.shape[0] >= 1:
        inputs = self.tx.output.__dict__.setdefault("_packpass_vectors", {})
        inputs[_source_name(self.source)] = value.shape[0]
    with size_oblivious(False):  # the inputs themselves get the symbols and strides that stock torch gives them
        return original(self, value)


def _source_name(source: Any) -> str:
    return source.name if isinstance(source.name, str) else source.name()  # a method before torch 2.12


def is_dynamic_source(original: Any, name: str, *args: Any, **kwargs: Any) -> bool:
    """The length of boundaries is data, not shape: it is dynamic from the first compile on, without marking."""
    return name in _frame().dynamic_sources or original(name, *args, **kwargs)


def _enter_loop_mode(tx: Any, sizes: tuple[int, ...]) -> None:
    """A loop that may run over documents: trace the frame again, ready for it, unless it already is."""
    frame = _frame()
    vectors: dict[str, int] = tx.output.__dict__.get("_packpass_vectors", {})
    new = {name for name, size in vectors.items() if size in sizes} - frame.dynamic_sources
    symbolic = frame.options.symbolic_loops and symbolic_loops_installed()
    if not symbolic:
        if frame.mode is Mode.PROBE and any(size in sizes for size in vectors.values()):
            frame.mode = Mode.UNROLLED
            raise restart("capture scalars for an unrolled loop over documents")
        return
    if new:
        frame.dynamic_sources |= new
        frame.mode = Mode.SYMBOLIC
        raise restart(f"the length of {', '.join(sorted(new))} is dynamic")


def _loop_mode_for_symint(tx: Any, expr: Any) -> bool:
    """True if ``expr`` (a loop's length) comes from a 1-D integer input; enters symbolic mode if that is new."""
    frame = _frame()
    vectors = tx.output.__dict__.get("_packpass_vectors", {})
    env = tx.output.shape_env
    for symbol in getattr(expr, "free_symbols", ()):
        for source in env.var_to_sources.get(symbol, ()):
            base = getattr(source, "base", None)
            if base is not None and _source_name(base) in vectors:
                if frame.mode is Mode.PROBE:
                    symbolic = frame.options.symbolic_loops and symbolic_loops_installed()
                    frame.mode = Mode.SYMBOLIC if symbolic else Mode.UNROLLED
                    raise restart("a loop whose length is the number of documents")
                return frame.mode is Mode.SYMBOLIC
    return False


def symbolic_loops_installed() -> bool:
    from packpass.capture import group_is_on

    return group_is_on("symbolic-loops")


def _static_sizes(n: int) -> tuple[int, ...]:
    """Lengths of an input that a loop over ``n`` things may follow: boundaries (n + 1), lengths (n), parts of them."""
    return (n, n + 1, n + 2, n - 1)


def _vector_sequence(tx: Any, v: Any) -> SymbolicSequence | None:
    """``v`` as a symbolic sequence if it is one, or a 1-D integer tensor with one entry per document."""
    if isinstance(v, SymbolicSequence):
        return v
    if isinstance(v, ListVariable) and isinstance(v.items, CollectedItems):
        return sequences.of_collected(tx, v.items)
    if isinstance(v, TensorVariable) and _is_vector(v):
        size = _example(v).shape[0]
        if isinstance(size, torch.SymInt) and not size.node.expr.is_number:
            if _loop_mode_for_symint(tx, size.node.expr):
                return sequences.of_tensor(tx, v, location_of(tx))
        else:
            _enter_loop_mode(tx, _static_sizes(int(size)))
    return None


def _example(v: Any) -> Any:
    return v.as_proxy().node.meta.get("example_value")


def _is_scalar(v: Any) -> bool:
    value = _example(v)
    return isinstance(value, torch.Tensor) and value.dim() == 0 and value.dtype in _INDEX_DTYPES


def _is_vector(v: Any) -> bool:
    value = _example(v)
    return isinstance(value, torch.Tensor) and value.dim() == 1 and value.dtype in _INDEX_DTYPES


# === Calls ===================================================================================================


def call_builtin(original: Any, self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
    """``BuiltinVariable.call_function``: ``range`` and ``zip`` over documents."""
    out = None
    if self.fn is builtins.range and not kwargs and 1 <= len(args) <= 3:
        out = _call_range(tx, [a.realize() for a in args])
    elif self.fn is builtins.zip and args and not set(kwargs) - {"strict"}:
        out = _call_zip(tx, [a.realize() for a in args])
    elif self.fn is builtins.map and len(args) >= 2 and not kwargs:
        found = [_vector_sequence(tx, a.realize()) for a in args[1:]]
        if all(f is not None for f in found):
            out = sequences.of_map(tx, args[0].realize(), found, location_of(tx))  # type: ignore[arg-type]
    elif self.fn in (builtins.list, builtins.tuple) and len(args) == 1 and not kwargs:
        value = args[0].realize()
        if isinstance(value, SymbolicSequence):
            # A copy of a sequence that is never changed is the sequence, unless making it calls user code.
            return sequences.collect(tx, value) if value.calls else value
    return original(self, tx, args, kwargs) if out is None else out


def _call_range(tx: Any, args: list[Any]) -> Any:
    if len(args) == 3 and not (args[2].is_python_constant() and args[2].as_python_constant() == 1):
        return None
    start, stop = (ConstantVariable.create(0), args[0]) if len(args) == 1 else args[:2]
    if all(a.is_python_constant() for a in args):
        n = stop.as_python_constant()
        if isinstance(n, int) and n >= 1:
            _enter_loop_mode(tx, _static_sizes(n))
        return None
    if not all(isinstance(a, SymNodeVariable) or a.is_python_constant() for a in args):
        return None
    # Only the difference counts: range(1, n) runs as often as range(n - 1).
    length = sequences.expression(stop) - sequences.expression(start)
    if _loop_mode_for_symint(tx, length):
        return sequences.of_range(tx, start, stop, location_of(tx))
    return None


def _call_zip(tx: Any, args: list[Any]) -> Any:
    found = [_vector_sequence(tx, a) for a in args]
    known = [f for f in found if f is not None]
    if not known:
        return None
    if len(known) != len(found):
        raise refuse(
            "unequal-lengths", "zip of a sequence with one entry per document and one of constant length", location_of(tx)
        )
    return sequences.of_zip(tx, known, location_of(tx))


def call_polyfill(original: Any, self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
    """``PolyfilledFunctionVariable.call_function``: ``enumerate`` over documents."""
    if self.fn is builtins.enumerate and args and _frame().mode is not Mode.STOCK:
        sequence = _vector_sequence(tx, args[0].realize())
        if sequence is not None:
            start = args[1] if len(args) > 1 else kwargs.get("start", ConstantVariable.create(0))
            return sequences.of_enumerate(tx, sequence, start.realize(), location_of(tx))
    return original(self, tx, args, kwargs)


def call_torch(original: Any, self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
    """``TorchInGraphFunctionVariable.call_function``: split into documents, cat of a per-document list, roll."""
    frame = _frame()
    if frame.mode in (Mode.SYMBOLIC, Mode.UNROLLED):
        if self.value in _CATS:
            out = _call_cat(tx, *args, **kwargs)
            if out is not None:
                return out
        elif self.value in _SPLITS:
            out = _call_split(tx, *args, **kwargs)
            if out is not None:
                return out
        elif self.value is torch._check and args and active.regions:
            _note_check(tx, args[0].realize())
        elif self.value is torch.roll:
            return _call_roll(tx, lambda: original(self, tx, args, kwargs), *args, **kwargs)
    return original(self, tx, args, kwargs)


def _call_cat(tx: Any, tensors: Any = None, dim: Any = None, **kwargs: Any) -> Any:
    from torch._dynamo.variables.builder import wrap_fx_proxy

    if tensors is None:
        return None
    value = tensors.realize()
    dim = kwargs.get("axis", dim)
    at = 0 if dim is None else dim.realize().as_python_constant()
    if isinstance(value, SymbolicSequence):
        value = sequences.collect(tx, value)
    if isinstance(value, ListVariable) and isinstance(value.items, CollectedItems):
        if value.items.collected is None:
            value.items._refuse()
        args = (value.items.collected.as_proxy(), at)  # type: ignore[union-attr]
        return wrap_fx_proxy(tx, tx.output.create_proxy("call_function", markers.RAGGED_CAT, args, {}))
    return None


def _call_split(tx: Any, tensor: Any = None, split_size_or_sections: Any = None, dim: Any = None, **kwargs: Any) -> Any:
    sizes = split_size_or_sections if split_size_or_sections is not None else kwargs.get("split_size", kwargs.get("split_sizes"))
    if sizes is None or tensor is None:
        return None
    lengths = sizes.realize()
    if not isinstance(lengths, SymbolicSequence):
        return None
    at = 0 if dim is None else dim.realize().as_python_constant()
    return sequences.of_split(tx, tensor.realize(), lengths, at)


def _note_check(tx: Any, condition: Any) -> None:
    """``torch._check`` on data: Dynamo keeps it as one of its own assertions, which the passes drop; this one is the
    user's."""
    if isinstance(condition, SymNodeVariable) and _unknown(condition.sym_num):
        region = active.regions[-1]
        message = f"torch._check in the loop at {region.location} failed"
        args = (condition.as_proxy(), message, region.id, region.iteration)
        tx.output.create_proxy("call_function", markers.LOOP_CHECK, args, {})


def _call_roll(tx: Any, stock: Any, input: Any, shifts: Any = None, dims: Any = None) -> Any:
    """Inside a symbolic loop, and wherever a size is unknown, roll through an op whose fake does not guard."""
    from torch._dynamo.variables.builder import wrap_fx_proxy

    value = _example(input.realize()) if isinstance(input.realize(), TensorVariable) else None
    if value is None or shifts is None or not any(_unknown(s) for s in value.shape):
        return stock()
    try:
        k = shifts.realize().as_python_constant()
        d = dims.realize().as_python_constant() if dims is not None else ()
    except NotImplementedError:
        return stock()
    as_list = lambda a: [a] if isinstance(a, int) else list(a)  # noqa: E731
    args = (input.realize().as_proxy(), as_list(k), as_list(d))
    return wrap_fx_proxy(tx, tx.output.create_proxy("call_function", markers.ROLL, args, {}))


def _unknown(size: Any) -> bool:
    return isinstance(size, (torch.SymInt, torch.SymBool)) and bool(free_unbacked_symbols(size))


def call_tensor_method(original: Any, self: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
    """``TensorVariable.call_method``: ``tolist``, ``split`` and ``roll``."""
    frame = _frame()
    if frame.mode is not Mode.STOCK:
        if name == "tolist" and _is_vector(self):
            if _vector_sequence(tx, self) is not None:
                return sequences.of_tolist(tx, self, location_of(tx))
        elif frame.mode is not Mode.PROBE:
            if name in ("__getitem__", "__setitem__") and not kwargs:
                out = _index_by_symint(self, tx, name, args)
                if out is not None:
                    return out
            if name in ("split", "split_with_sizes"):
                out = _call_split(tx, self, *args, **kwargs)
                if out is not None:
                    return out
            elif name == "roll":
                return _call_roll(tx, lambda: original(self, tx, name, args, kwargs), self, *args, **kwargs)
    return original(self, tx, name, args, kwargs)


def _index_by_symint(self: Any, tx: Any, name: str, args: Any) -> Any:
    """``x[:, e - 1]`` and ``x[:, e - 1] = v`` with a data-dependent ``e``: torch's indexing takes such an integer only
    alone, so go through ``select``, which returns the same view."""
    key = args[0].realize()
    fake = _example(self)
    if not active.regions or not isinstance(fake, torch.Tensor):
        return None
    entries = [entry.realize() for entry in key.items] if isinstance(key, TupleVariable) else [key]
    # An integer tensor of no dimensions indexes like the integer it holds.
    scalars = [i for i, entry in enumerate(entries) if isinstance(entry, TensorVariable) and _is_scalar(entry)]
    unknown = [i for i, entry in enumerate(entries) if isinstance(entry, SymNodeVariable) and _unknown(entry.sym_num)] + scalars
    if len(unknown) != 1 or (name == "__getitem__" and not isinstance(key, TupleVariable) and not scalars):
        return None
    if scalars:
        entries[scalars[0]] = entries[scalars[0]].call_method(tx, "item", [], {})
    rest = [entry for i, entry in enumerate(entries) if i != unknown[0]]
    ellipsis = [i for i, entry in enumerate(entries) if entry.is_python_constant() and entry.as_python_constant() is Ellipsis]
    integers = [i for i, e in enumerate(entries) if e.is_python_constant() and type(e.as_python_constant()) is int]
    if not all(isinstance(entry, SliceVariable) or i in ellipsis or i in integers for i, entry in enumerate(entries) if i != unknown[0]):
        return None
    dim = unknown[0] - sum(i < unknown[0] for i in integers)
    if ellipsis and ellipsis[0] < unknown[0]:
        dim += fake.dim() - (len(entries) - 1) - 1
    full = SliceVariable([ConstantVariable.create(None)] * 3, tx)
    index = TupleVariable([full if i == unknown[0] else entry for i, entry in enumerate(entries)])
    view = self if not integers and all(_is_full_slice(r) for r in rest) else self.call_method(tx, "__getitem__", [index], {})
    slot = view.call_method(tx, "select", [ConstantVariable.create(dim), entries[unknown[0]]], {})
    if name == "__getitem__":
        return slot
    return slot.call_method(tx, "__setitem__", [ConstantVariable.create(Ellipsis), args[1]], {})


def _is_full_slice(entry: Any) -> bool:
    if isinstance(entry, SliceVariable):
        return all(v.is_python_constant() and v.as_python_constant() is None for v in entry.items)
    return entry.is_python_constant() and entry.as_python_constant() is Ellipsis


def tensor_iter(original: Any, self: Any, tx: Any) -> Any:
    """``TensorVariable.tp_iter_impl``: ``for boundary in cu_seqlens``."""
    if _frame().mode is not Mode.STOCK:
        sequence = _vector_sequence(tx, self)
        if sequence is not None:
            return sequence.tp_iter_impl(tx)
    return original(self, tx)


def list_iter(original: Any, self: Any, tx: Any) -> Any:
    """``ListVariable.tp_iter_impl``: looping again over a list with one entry per document."""
    if isinstance(self.items, CollectedItems):
        return sequences.of_collected(tx, self.items).tp_iter_impl(tx)
    return original(self, tx)


# === Channels between iterations =============================================================================


def _refuse_mutation(item: Any) -> None:
    region = active.regions[-1]
    what = type(item).__name__.removesuffix("Variable")
    raise refuse("outer-mutation", f"the loop body changes a Python object from outside the loop ({what})", region.location)


def _new_cell(item: Any) -> bool:
    return isinstance(item, variables.CellVariable) and item.source is None and item.pre_existing_contents is None


def check_allowed_side_effect(original: Any, self: Any, item: Any) -> Any:
    """``SideEffects.check_allowed_side_effect``: only objects born in this iteration may change."""
    if active.regions and not isinstance(item, AutogradFunctionContextVariable):
        region = active.regions[-1]
        if item.mutation_type is not None and not is_side_effect_safe(item.mutation_type):
            if not (_new_cell(item) or region.adopt_list(item)):
                _refuse_mutation(item)
            return False
    return original(self, item)


def store_attr(original: Any, self: Any, item: Any, name: str, *args: Any, **kwargs: Any) -> Any:
    """``SideEffects.store_attr``: stock Dynamo defers this check for constants; a loop may not."""
    if active.regions and item.mutation_type is not None and not is_side_effect_safe(item.mutation_type):
        if _new_cell(item) and name == "cell_contents":
            for region in active.regions:
                region.cells.write(item)
        elif not isinstance(item, AutogradFunctionContextVariable):
            _refuse_mutation(item)
    return original(self, item, name, *args, **kwargs)


def load_cell(original: Any, self: Any, cell: Any) -> Any:
    """``SideEffects.load_cell``: closures are locals too."""
    value = original(self, cell)
    if isinstance(value, Poison):
        raise value.refuse()
    for region in active.regions:
        if cell.mutation_type is not None and cell.mutation_type.scope != current_scope_id():
            region.cells.read(cell)
    return value


def iterator_born(original: Any, self: Any, *args: Any, **kwargs: Any) -> None:
    """``__init__`` of iterators and generators: remember the region they were created in."""
    original(self, *args, **kwargs)
    self.__dict__["_packpass_region"] = active.regions[-1] if active.regions else None


def iterator_next(original: Any, self: Any, tx: Any) -> Any:
    """``tp_iternext_impl``: an iterator from outside the loop carries its position from document to document."""
    if active.regions and not isinstance(self, SymbolicIterator):
        region = active.regions[-1]
        born = self.__dict__.get("_packpass_region")
        if born is not region:
            raise refuse("outer-iterator", "the loop body advances an iterator from outside the loop", region.location)
    return original(self, tx)


def compute_unbacked_bindings(original: Any, shape_env: Any, *args: Any, **kwargs: Any) -> Any:
    """``symbolic_shapes.compute_unbacked_bindings``: writing in place to a segment makes autograd compute its view
    again, with sizes that belong to no result; nobody refers to them."""
    if active.regions and shape_env is not None and not kwargs.get("peek"):
        shape_env.ignorable_fresh_unbacked_symbols.extend(shape_env.pending_fresh_unbacked_symbols)
    return original(shape_env, *args, **kwargs)


# === Leaving a region in other ways than its end =============================================================


def fail_and_restart(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    """``SpeculationEntry.fail_and_restart_analysis``: a graph break inside a loop body."""
    if active.regions:
        reason = self.reason.reason if self.reason is not None else "unknown"
        raise refuse("graph-break", f"the loop body cannot be captured: {first_line(reason)}", active.regions[-1].location)
    return original(self, *args, **kwargs)


def compile_subgraph(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    """``OutputGraph.compile_subgraph``: the graph ends while a loop is still open."""
    if active.regions:
        raise refuse("early-exit", "the loop over documents is left by break, return, an exception or a graph break", active.regions[-1].location)
    return original(self, *args, **kwargs)


def first_line(text: object) -> str:
    lines = str(text).strip().splitlines()
    return lines[0][:200] if lines else ""
