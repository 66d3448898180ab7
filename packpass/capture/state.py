"""The frame that is being compiled on this thread, and what becomes of it: another trace, or a refusal.

State lives on the ``CompileContext`` of the frame, so it survives Dynamo's restarts and nothing else.
"""

from __future__ import annotations

import inspect
import threading
import warnings
from typing import TYPE_CHECKING, Any

from packpass._options import Options
from packpass.capture.dynamo import (
    CompileContext,
    ShortenTraceback,
    TensorifyScalarRestartAnalysis,
    UnspecializeRestartAnalysis,
)
from packpass.capture.frame import FrameState, Mode
from packpass.capture.trace import Trace
from packpass.decisions.location import is_library, shorten
from packpass.decisions.records import Refusal, RefusedError, record
from packpass.layout.sources import LayoutError

if TYPE_CHECKING:
    from packpass.capture.region import Region


class TracingRefusedError(RefusedError, ShortenTraceback):
    """`RefusedError` in a form that Dynamo hands to the user as it is."""

    def __init__(self, refusal: Refusal) -> None:
        ShortenTraceback.__init__(self, self.text(refusal), first_useful_frame=None)
        self.refusal = refusal


class TracingLayoutError(LayoutError, ShortenTraceback):
    """`LayoutError` in a form that Dynamo hands to the user as it is."""

    def __init__(self, error: LayoutError) -> None:
        ShortenTraceback.__init__(self, str(error), first_useful_frame=None)


def in_tracing(error: Exception) -> Exception:
    """The error in a form that Dynamo hands to the user as it is: of the same class, and in the same words, to which it
    would add advice on debugging Dynamo."""
    name, text = type(error).__name__, str(error)
    kind = type(name, (ShortenTraceback, type(error)), {"__str__": lambda self: text})
    made: Exception = kind(text, first_useful_frame=None)
    return made


def tracing_error(error: LayoutError) -> TracingLayoutError:
    """What a backend raises for declarations that contradict each other."""
    return TracingLayoutError(error)


class Restart(UnspecializeRestartAnalysis, TensorifyScalarRestartAnalysis):
    """Trace this frame again.

    ``Unspecialize...`` clears Dynamo's speculation log, ``Tensorify...`` is the one restart that a backend may raise.
    """


class _Active(threading.local):
    def __init__(self) -> None:
        self.frame: FrameState | None = None
        self.ours = False
        """Is it a frame of packpass's that is traced, also where its loops are left to stock torch?"""
        self.trace = Trace()
        self.regions: list[Region] = []
        self.stock_settings: dict[str, bool] | None = None
        """The user's settings of what is captured while they are overridden."""


active = _Active()


def frame_state(options: Options) -> FrameState:
    """The state of the frame being compiled on this thread (one per ``torch._dynamo`` compile, restarts included)."""
    context: Any = CompileContext.try_get()
    if context is None:  # the backend is called on a graph of one's own
        return FrameState(options)
    state = getattr(context, "_packpass", None)
    if state is None:
        state = context._packpass = FrameState(options)
    return state


def current_frame() -> FrameState:
    assert active.frame is not None
    return active.frame


def hands_on() -> bool:
    """Does the code behind the graph that was traced get the documents that a tensor is split into?"""
    return active.trace.hands_on


def caller_of(tx: Any) -> Any:
    """The frame that runs this one, None for the outermost: a generator is run by the loop that goes over it."""
    return active.trace.consumers.get(tx, getattr(tx, "parent", None))


def is_run_by_a_loop(tx: Any) -> bool:
    """If this frame is a generator's: is it a loop that runs it, so that its iterations are those of that loop?"""
    while tx is not None and tx.f_code.co_flags & inspect.CO_GENERATOR:
        if tx not in active.trace.consumers:
            return False
        tx = active.trace.consumers[tx]
    return True


def resumes(tx: Any) -> bool:
    """Does the frame go on after a graph break?"""
    while tx.parent is not None:
        tx = tx.parent
    return str(tx.f_code.co_name).startswith("torch_dynamo_resume_in_")


def location_of(tx: Any) -> str:
    """``file.py:123`` of the line of the user's that ``tx`` is tracing."""
    while tx.parent is not None and is_library(tx.f_code.co_filename):
        tx = tx.parent
    return shorten(tx.f_code.co_filename, tx.lineno)


def restart(reason: str) -> Restart:
    """Close what is open and give the exception that makes Dynamo trace the frame again."""
    while active.regions:
        active.regions.pop().abandon()
    if active.frame is not None:
        active.frame.restarts += 1
    return Restart(restart_reason=f"packpass: {reason}")


def leave_to_stock(reason: str) -> Restart:
    """The frame goes on as stock torch; there was nothing to refuse."""
    if active.frame is not None:
        active.frame.mode = Mode.STOCK
    return restart(reason)


def without_data_sizes(reason: str) -> Restart | None:
    """If sizes that are data were captured, do without them before anything is refused: the graph then ends in front of
    such an operation, as in stock torch, and the loops behind it are captured in the next one."""
    frame = active.frame
    if frame is None or not frame.data_sizes:
        return None
    frame.data_sizes, frame.expands = None, False
    return _from_the_start(frame, f"without sizes that are data: {reason}")


def without_lone_document(reason: str) -> Restart | None:
    """If a loop over one document was captured, do without it before anything is refused: it may be none."""
    frame = active.frame
    if frame is None or not frame.lone:
        return None
    if frame.lone_ranges:
        frame.lone_ranges = None
    else:
        frame.lone = None
    return _from_the_start(frame, f"without a loop over one document: {reason}")


def without_counts(reason: str) -> Restart | None:
    """If a loop that runs as often as a given number says was taken for one over documents, do without that before
    anything is refused: it may be one over layers."""
    frame = active.frame
    if frame is None or not frame.counts:
        return None
    frame.counts, frame.data_sizes = None, False
    return _from_the_start(frame, f"loops that a given number counts are traced as they are written: {reason}")


def with_layers(key: Any, reason: str) -> Restart | None:
    """If a loop was taken for one over documents that may be another, with documents inside of it, trace it as it is
    written before anything is refused."""
    frame, found = active.frame, [region for region in active.trace.regions.values() if region.key == key]
    where = found[-1].location if found else None
    if frame is None or frame.layers is None or where not in frame.assumed or not found[-1].may_be_layers():
        return None
    return as_layers(frame, where, reason)


def as_layers(frame: FrameState, where: str, reason: str) -> Restart | None:
    """Trace the loop at that line as it is written; None if that was tried."""
    if frame.layers is None or where in frame.layers:
        return None
    frame.layers.add(where)
    return _with_rows(frame, True, f"the loop at {where} is traced as it is written: {reason}")


def without_layers(reason: str) -> Restart | None:
    """If such loops are traced as they are written and something was refused, do without that."""
    frame = active.frame
    if frame is None or not frame.in_rows:
        return None
    frame.layers = None
    return _with_rows(frame, False, f"loops with documents inside are taken for loops over documents again: {reason}")


def _with_rows(frame: FrameState, in_rows: bool, reason: str) -> Restart:
    frame.in_rows, frame.data_sizes = in_rows, False
    frame.row_sizes = frame.single_rows = False
    return _from_the_start(frame, reason)


def _from_the_start(frame: FrameState, reason: str) -> Restart:
    """Forget what was learned of the loops of a frame."""
    frame.mode, frame.only_numbers = Mode.PROBE, False
    frame.dynamic_sources.clear()
    frame.batches.clear()
    frame.sites.clear()
    frame.totals.clear()
    frame.branches.clear()
    frame.carried.clear()
    frame.both_ways.clear()
    frame.running.clear()
    return restart(reason)


def refuse(code: str, reason: str, location: str, loop: Any = None) -> Restart:
    """Record why the loop at ``location`` is not captured; the frame goes on as stock torch, or up to that loop as it
    was, if others were captured before (``loop``: its key, where it is not the open one)."""
    frame = active.frame
    if frame is not None and frame.lone and location in frame.lone_at:
        note(code, reason, location)
    key = loop or (active.regions[-1].key if active.regions else None)
    why = f"{code}: {reason}"
    again = without_lone_document(why) or with_layers(key, why)
    own = [region for region in active.trace.regions.values() if region.key == key]
    if again is None and (again := without_counts(why)) and any(region.reads_entries() for region in own):
        note(code, reason, location)  # what is traced next has no loop that this could be said of
    again = again or without_data_sizes(why) or without_layers(why)
    if again is not None:
        return again
    note(code, reason, location)
    if frame is not None and key is not None and key not in frame.left and captured_before(key):
        frame.left.add(key)
        return restart(f"the graph ends in front of a loop: {why}")
    return leave_to_stock(why)


def captured_before(key: Any) -> bool:
    """Has this trace captured another loop, in front of this one?"""
    others = [region for region in active.trace.regions.values() if region.key != key]
    return active.frame is not None and active.frame.mode is Mode.SYMBOLIC and any(r.closed for r in others)


def has_captured() -> bool:
    """Has this trace captured a loop?"""
    return any(region.closed for region in active.trace.regions.values())


_noted: set[str] = set()


def is_noted(location: str) -> bool:
    """Has a loop at this line been refused before? The code behind the graph break that follows need not say more."""
    return location in _noted


def note(code: str, reason: str, location: str) -> None:
    """Record why the loop at ``location`` is not captured in this graph, whatever becomes of the frame."""
    refusal = Refusal(rule="capture", code=code, reason=reason, location=location)
    record(refusal)
    _noted.add(location)
    if active.frame is not None:
        active.frame.said = True
        react(refusal, active.frame.options)


def react(refusal: Refusal, options: Options) -> None:
    """Warn or raise about a refusal, as the option says; "ignore" leaves it to the report."""
    if options.on_refusal == "raise":
        raise TracingRefusedError(refusal)
    if options.on_refusal == "warn":
        warnings.warn(f"packpass: {refusal.location} [{refusal.code}]: {refusal.reason}", stacklevel=2)
