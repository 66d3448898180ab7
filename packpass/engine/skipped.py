"""Functions that stock torch gives up and runs eagerly: what to say about the loops and shifts in them.

Where the graph breaks inside a Python loop (a loop over blocks of FSDP, whose hooks break the graph), Dynamo skips the
whole function; the functions that it calls are compiled one by one. Loops over documents and naive shifts in the
function itself are then out of reach, whatever stands around the loop.
"""

from __future__ import annotations

import sys
import types
import weakref
from typing import Any

import torch

from packpass._compat import keep_compiled
from packpass.capture.effects import first_line, place_of, reads_data, reason_of
from packpass.capture.frame import LOOP_MODES, FrameState, Mode
from packpass.capture.state import react
from packpass.capture.watch import READ, loops_are_sought
from packpass.decisions.location import shorten
from packpass.decisions.records import Refusal, record
from packpass.layout.arguments import boundary_arguments
from packpass.semantics.losses import OF_CLASSES

_MODULES = frozenset(module.__name__ for module in (torch.nn.CrossEntropyLoss, torch.nn.NLLLoss))
_SHIFTING = OF_CLASSES | _MODULES | {"roll", "pad"}
"""Names by which code that shifts labels can be told; slices alone are in nearly every function."""


GIVEN_UP = "torch gives this function up for good, of which a loop was captured before: {}"
STOPPED = (
    "torch compiles this function no more, of which a loop was captured before. Batches that fit what is compiled "
    "still run that, all others run eagerly: {}"
)


_captured: weakref.WeakSet[Any] = weakref.WeakSet()
"""The code of functions with a loop that was captured."""


_broken: set[tuple[str, int, str]] = set()
"""Where functions stand of which the graph ends in some line. What torch runs of them is other code."""


def _stands(code: types.CodeType) -> tuple[str, int, str]:
    return code.co_filename, code.co_firstlineno, code.co_name


def run_eagerly(tx: Any) -> list[types.CodeType]:
    """The code of a function that is given up, and of those that call it now and would be one graph with it, if it were
    not."""
    found: list[types.CodeType] = [tx.f_code]
    here: types.FrameType | None = sys._getframe()
    while here is not None:
        if _stands(here.f_code) in _broken:
            found.append(here.f_code)
        here = here.f_back
    return found


def note_captured(tx: Any, frame: FrameState, error: Exception | None) -> None:
    """A frame was traced: remember whether a loop in it is captured, and whether its graph ends before it does."""
    if error is None and frame.sites and frame.mode in LOOP_MODES:
        _captured.add(tx.f_code)
    if error is None and getattr(getattr(tx.output, "compile_subgraph_reason", None), "graph_break", False):
        _broken.add(_stands(tx.f_code))


def note_skipped(tx: Any, frame: FrameState, error: Exception) -> None:
    """A function without a captured loop is given up: say so if one was captured before, if a loop in it reads numbers
    from tensors, and if it knows boundaries by name and seems to shift."""
    if not getattr(error, "skip_frame", False):
        return
    start = shorten(tx.f_code.co_filename, tx.f_code.co_firstlineno)
    kept = tx.f_code in _captured and keep_compiled(error)
    if tx.f_code in _captured and not frame.said:
        text = (STOPPED if kept else GIVEN_UP).format(reason_of(error))
        tell(frame, Refusal(rule="capture", code="frame-not-compiled", reason=text, location=place_of(error) or start))
        return
    left = frame.only_numbers and not frame.said  # for numbers in front of a loop, which could not be captured
    if (frame.mode is Mode.PROBE or left) and reads_data(error) and loops_are_sought(frame):
        why, where = READ.format(first_line(error)), place_of(error) or start
        tell(frame, Refusal(rule="capture", code="lengths-unknown", reason=why, location=where))
    if frame.options.fix_shifts != "auto":
        return
    if _SHIFTING.isdisjoint(tx.f_code.co_names) or next(boundary_arguments(tx.f_locals), None) is None:
        return
    text = f"naive shifts in this function are not looked for, because it is not compiled: {reason_of(error)}"
    tell(frame, Refusal(rule="capture", code="frame-not-compiled", reason=text, location=start))


def note_unseen(tx: Any, frame: FrameState, error: Exception | None) -> None:
    """Documents are to be kept apart, and something runs outside of any graph: nobody sees what it does with them."""
    reason = getattr(tx.output, "compile_subgraph_reason", None)
    broken = error is None and getattr(reason, "graph_break", False)
    if not frame.options.runs("isolate") or not (broken or getattr(error, "skip_frame", False)):
        return
    start = shorten(tx.f_code.co_filename, tx.lineno)
    if error is not None:
        where, why, what = place_of(error) or start, reason_of(error), f"{tx.f_code.co_name} is not compiled"
    else:
        stack = list(getattr(reason, "user_stack", None) or ())
        where = shorten(stack[-1].filename, stack[-1].lineno) if stack else start
        why, what = first_line(str(getattr(reason, "reason", ""))), "the graph ends here"
    text = f"{what}, and what runs outside of graphs is not kept apart by documents: {why}"
    code = "graph-break" if error is None else "frame-not-compiled"
    tell(frame, Refusal(rule="isolate", code=code, reason=text, location=where))


def tell(frame: FrameState, refusal: Refusal) -> None:
    """Record a refusal, and warn or raise as the option says."""
    record(refusal)
    react(refusal, frame.options)
