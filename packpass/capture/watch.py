"""Watching for a loop over documents: which inputs may be boundaries, and which sequences have one entry per document.

A frame starts as stock torch traces it. The first loop whose length could be the number of documents restarts its
analysis in a loop mode, with the length of the boundaries dynamic; from then on such sequences are symbolic.

Functions named after what they wrap are ``replacement(original, *args)`` for the hook table in `packpass.capture`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._dynamo.variables import ListVariable, TensorVariable

from packpass._compat import free_unbacked_symbols, size_oblivious
from packpass._location import shorten
from packpass.capture import sequences
from packpass.capture.region import CollectedItems
from packpass.capture.sequences import SymbolicSequence
from packpass.capture.state import FrameState, Mode, active, restart

_INDEX_DTYPES = (torch.int32, torch.int64)
UNROLL_LIMIT = 65
"""Entries of a boundary vector up to which a loop with a constant number of documents is unrolled and looked at."""


def location_of(tx: Any) -> str:
    """``file.py:123`` of the line that ``tx`` is tracing."""
    return shorten(tx.f_code.co_filename, tx.lineno)


def current_frame() -> FrameState:
    assert active.frame is not None
    return active.frame


def wrap_tensor(original: Any, self: Any, value: torch.Tensor) -> Any:
    """``VariableBuilder.wrap_tensor``: remember every 1-D integer input, the only things that can be boundaries."""
    if value.dim() == 1 and value.dtype in _INDEX_DTYPES and value.shape[0] >= 1:
        inputs = self.tx.output.__dict__.setdefault("_packpass_vectors", {})
        inputs[_source_name(self.source)] = value.shape[0]
    if active.stock_settings is None:
        return original(self, value)
    with size_oblivious(active.stock_settings[1]):  # the inputs get the symbols and strides that stock torch gives them
        return original(self, value)


def _source_name(source: Any) -> str:
    return source.name if isinstance(source.name, str) else source.name()  # a method before torch 2.12


def is_dynamic_source(original: Any, name: str, *args: Any, **kwargs: Any) -> bool:
    """The length of boundaries is data, not shape: it is dynamic from the first compile on, without marking."""
    return name in current_frame().dynamic_sources or original(name, *args, **kwargs)


def enter_loop_mode(tx: Any, sizes: tuple[int, ...]) -> None:
    """A loop that may run over documents: trace the frame again, ready for it, unless it already is."""
    frame = current_frame()
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


def loop_mode_for_symint(tx: Any, expr: Any) -> bool:
    """True if ``expr`` (a loop's length) comes from a 1-D integer input; enters symbolic mode if that is new."""
    frame = current_frame()
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


def static_sizes(n: int) -> tuple[int, ...]:
    """Lengths of an input that a loop over ``n`` things may follow: boundaries (n + 1), lengths (n), parts of them."""
    return (n, n + 1, n + 2, n - 1)


def vector_sequence(tx: Any, v: Any) -> SymbolicSequence | None:
    """``v`` as a symbolic sequence if it is one, or a 1-D integer tensor with one entry per document."""
    if isinstance(v, SymbolicSequence):
        return v
    if isinstance(v, ListVariable) and isinstance(v.items, CollectedItems):
        return sequences.of_collected(tx, v.items)
    if isinstance(v, TensorVariable) and is_vector(v):
        size = example(v).shape[0]
        if isinstance(size, torch.SymInt) and not size.node.expr.is_number:
            if loop_mode_for_symint(tx, size.node.expr):
                return sequences.of_tensor(tx, v, location_of(tx))
        else:
            enter_loop_mode(tx, static_sizes(int(size)))
    return None


def example(v: Any) -> Any:
    return v.as_proxy().node.meta.get("example_value")


def is_scalar(v: Any) -> bool:
    value = example(v)
    return isinstance(value, torch.Tensor) and value.dim() == 0 and value.dtype in _INDEX_DTYPES


def is_vector(v: Any) -> bool:
    value = example(v)
    return isinstance(value, torch.Tensor) and value.dim() == 1 and value.dtype in _INDEX_DTYPES


def is_unknown(size: Any) -> bool:
    return isinstance(size, (torch.SymInt, torch.SymBool)) and bool(free_unbacked_symbols(size))


def watch_item(tx: Any, scalar: Any) -> None:
    """``cu[3].item()`` of a small boundary vector: a loop with a constant number of documents, perhaps; capture the
    scalars and let the passes look. Above the limit, unrolling would cost more than it can gain."""
    node = scalar.as_proxy().node
    source = node.args[0] if node.args else None
    while source is not None and getattr(source, "op", "") != "placeholder":
        source = source.args[0] if getattr(source, "args", ()) else None
    value = source.meta.get("example_value") if source is not None else None
    if not isinstance(value, torch.Tensor) or value.dim() != 1 or value.dtype not in _INDEX_DTYPES:
        return
    if isinstance(value.shape[0], int) and value.shape[0] <= UNROLL_LIMIT:
        frame = current_frame()
        symbolic = frame.options.symbolic_loops and symbolic_loops_installed()
        frame.mode = Mode.SYMBOLIC if symbolic else Mode.UNROLLED
        raise restart("boundaries are read one by one")
