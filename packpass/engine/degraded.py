"""What a frame lost because a hook group is off, broken or dead, noticed where tracing the frame ends.

Such a frame looks like any other to stock Dynamo: it breaks or is skipped, and the backend never sees the loop in it.
The gate asks here after every frame of ours; one that was traced to its end has lost nothing. The words are in
`packpass.engine.missing`. Needs of Dynamo what the gate needs, and ``OutputGraph.compile_subgraph_reason``.
"""

from __future__ import annotations

import dis
import logging
import types
from collections.abc import Iterator
from typing import Any

import torch

from packpass.capture.dynamo import CompileContext
from packpass.capture.effects import first_line
from packpass.capture.frame import FrameState, Mode
from packpass.capture.hooks import GROUPS, Group
from packpass.capture.state import react
from packpass.decisions.location import shorten
from packpass.decisions.records import Refusal, record
from packpass.engine import missing, versions
from packpass.layout.arguments import boundary_arguments
from packpass.layout.sources import BOUNDARY_NAMES, last_name, source_name
from packpass.semantics import family_of, op_name

log = logging.getLogger("packpass.capture")
_INDEX_DTYPES = (torch.int32, torch.int64)
_MESSAGES = frozenset({"isend", "irecv", "batch_isend_irecv", "P2POp"})
_WALKS = frozenset({"map", "split", "tensor_split"})
"""Functions that go over documents without a loop in the bytecode."""


def _group(name: str) -> Group | None:
    """The hook group of this name, once they are installed."""
    return next((group for group in GROUPS if group.name == name), None)


def frame_starts(tx: Any, frame: FrameState) -> None:
    """Before a frame is traced: what it is and which boundaries it is given, for the backend (`in_graph`)."""
    versions.warn_if_untested(torch.__version__)
    frame.code = tx.f_code
    try:
        frame.named_boundaries = tuple((a.name, a.value) for a in boundary_arguments(tx.f_locals))
    except Exception as error:  # attributes of an argument may do anything
        log.debug("arguments are not looked at: %s: %s", type(error).__name__, error)


def frame_ended(tx: Any, frame: FrameState, error: Exception | None) -> None:
    """After a frame was traced: record what a group that is not there would have done where tracing stopped."""
    reason = getattr(tx.output, "compile_subgraph_reason", None)
    if error is None and not getattr(reason, "graph_break", False):
        return
    text = str(error) if error is not None else str(getattr(reason, "reason", ""))
    try:
        refusals = list(_lost(tx, frame, text))
    except Exception as found:  # a frame must not fail because it is not known what it lost
        log.warning("it is not known what a frame lost: %s: %s", type(found).__name__, found)
        return
    for refusal in refusals:
        record(refusal)
        react(refusal, frame.options)


def in_graph(gm: torch.fx.GraphModule, frame: FrameState) -> None:
    """Before the passes: record what a graph of this frame should have and has not."""
    try:
        found = _not_in_graph(gm, frame)
    except Exception as error:  # the passes, which look again, decide what contradictions mean
        log.warning("it is not known what a graph lacks: %s: %s", type(error).__name__, error)
        return
    if found is not None:
        record(found)
        react(found, frame.options)


def _not_in_graph(gm: torch.fx.GraphModule, frame: FrameState) -> Refusal | None:
    gate, group = _group("gate"), _group("boundary-inputs")
    if gate is None or group is None:
        return None
    if gate.state != "on":
        return missing.gate_closed({group.name: group for group in GROUPS}, missing.place_of(gm))
    if frame.code is None:
        # Without a compile under way the backend was called on a graph of somebody's own, which has no frame.
        return None if CompileContext.try_get() is None else missing.not_seen(missing.place_of(gm))
    if not frame.named_boundaries:
        return None
    location = shorten(frame.code.co_filename, frame.code.co_firstlineno)
    return missing.unread_boundaries(gm, frame.named_boundaries, frame.options, group, location)


def _lost(tx: Any, frame: FrameState, text: str) -> Iterator[Refusal]:
    location = shorten(tx.f_code.co_filename, tx.lineno)
    stopped = f"tracing {tx.f_code.co_name} stopped here ({first_line(text)[:120]})"
    loops = _group("symbolic-loops")
    if loops is not None and frame.options.runs("vectorize_segments") and _may_loop(tx.f_code):
        if loops.state != "on":
            name = _vector(tx)
            if name is not None:
                what = f"{stopped}, in a function with a loop, which may be one over documents with boundaries {name}"
                yield missing.refusal(loops, what, location)
        elif frame.mode is Mode.PROBE and _goes_over_numbers(tx) and (name := _element_read(tx)) is not None:
            what = f"{stopped}: a loop that reads numbers of {name} was not recognised as one over documents"
            yield missing.refusal(loops, what, location)
    messages = _group("p2p")
    if messages is not None and messages.state != "on" and _sends(tx, text) and _may_loop(tx.f_code):
        yield missing.refusal(messages, f"{stopped}, in a function with a loop that sends messages", location)
    late = _group("late-reads")
    if late is not None and late.state != "on":
        name = _function_with_tensors(tx, text)
        if name is not None:
            yield missing.refusal(late, f"{stopped}, where {name} has a tensor attribute", location)


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """A code object and those of its comprehensions; functions inside have frames of their own."""
    yield code
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType) and inner.co_name.startswith("<"):
            yield from _codes(inner)


def _may_loop(code: types.CodeType) -> bool:
    return any(
        not _WALKS.isdisjoint(inner.co_names) or any(i.opname == "FOR_ITER" for i in dis.get_instructions(inner))
        for inner in _codes(code)
    )


def _goes_over_numbers(tx: Any) -> bool:
    """Is tracing inside a loop, or where a whole tensor is read? One number in front of a loop, such as the total, is
    read as in stock torch."""
    here = tx.indexof[tx.current_instruction]
    for i, instruction in enumerate(tx.instructions):
        if instruction.opname == "FOR_ITER" and i <= here < tx.indexof[instruction.target]:
            return True
    line = (i for i in tx.instructions if tx.lineno in (i.starts_line, getattr(i.positions, "lineno", None)))
    return any(instruction.argval == "tolist" for instruction in line)


def _is_vector(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() == 1 and value.dtype in _INDEX_DTYPES


def _vector(tx: Any) -> str | None:
    """The name of something that may be boundaries: what is read, an argument, or a tensor of the graph so far."""
    arguments = [str(name) for name, value in tx.f_locals.items() if _is_vector(value)]
    nodes = [node for node in tx.output.graph.nodes if _is_vector(node.meta.get("example_value"))]
    names = [_element_read(tx), *(name for name in arguments if name in BOUNDARY_NAMES), *arguments]
    names += [last_name(source_name(node) or "") or str(node.name) for node in nodes]
    return next((name for name in names if name), None)


def _element_read(tx: Any) -> str | None:
    """The name of the 1-D integer input of which the last number in the graph is an entry."""
    for node in reversed(tx.output.graph.nodes):
        value = node.meta.get("example_value")
        if isinstance(value, torch.Tensor) and value.dim() == 0 and value.dtype in _INDEX_DTYPES:
            break
    else:
        return None
    while node.op != "placeholder":
        source = node.args[0] if node.args else None
        reads = op_name(node) == "getitem" or family_of(node) in ("indexing", "pointwise")
        if not reads or not isinstance(source, torch.fx.Node):
            return None
        node = source
    return last_name(source_name(node) or "") or "a tensor" if _is_vector(node.meta.get("example_value")) else None


def _sends(tx: Any, text: str) -> bool:
    names = {name for code in _codes(tx.f_code) for name in code.co_names}
    return not _MESSAGES.isdisjoint(names) or any(name in text for name in _MESSAGES)


def _function_with_tensors(tx: Any, text: str) -> str | None:
    """An autograd.Function with a tensor attribute that the code names."""
    for code in _codes(tx.f_code):
        for name in code.co_names:
            cls = tx.f_globals.get(name)
            if isinstance(cls, type) and issubclass(cls, torch.autograd.Function):
                if any(isinstance(value, torch.Tensor) for value in vars(cls).values()):
                    return cls.__qualname__
    return "an autograd.Function" if "AutogradFunctionVariable" in text else None
