"""What the hooks know while one frame is being compiled.

A frame is traced in one of four modes; each refusal restarts Dynamo's analysis one step further down:

``PROBE``     stock tracing that only watches for a loop over documents. A frame without one never leaves this mode.
``SYMBOLIC``  the loop is traced once for every number of documents.
``UNROLLED``  symbolic loops are off (option or hook): scalars are captured and the unrolled loop is left to the passes.
``STOCK``     nothing is hooked: exactly what ``torch.compile`` does by itself.

State lives on the ``CompileContext`` of the frame, so it survives Dynamo's restarts and nothing else.
"""

from __future__ import annotations

import dataclasses
import enum
import threading
import types
import warnings
from typing import TYPE_CHECKING, Any

from torch._dynamo import exc
from torch._guards import CompileContext

from packpass._options import Options
from packpass._report import Refusal, RefusedError, record
from packpass.layout.sources import LayoutError

if TYPE_CHECKING:
    from packpass.capture.region import Region


class Mode(enum.Enum):
    PROBE = "probe"
    SYMBOLIC = "symbolic"
    UNROLLED = "unrolled"
    STOCK = "stock"


class TracingRefusedError(RefusedError, exc.ShortenTraceback):
    """`RefusedError` in a form that Dynamo hands to the user as it is."""

    def __init__(self, refusal: Refusal) -> None:
        exc.ShortenTraceback.__init__(self, self.text(refusal), first_useful_frame=None)
        self.refusal = refusal


class TracingLayoutError(LayoutError, exc.ShortenTraceback):
    """`LayoutError` in a form that Dynamo hands to the user as it is."""

    def __init__(self, error: LayoutError) -> None:
        exc.ShortenTraceback.__init__(self, str(error), first_useful_frame=None)


def tracing_error(error: LayoutError) -> TracingLayoutError:
    """What a backend raises for declarations that contradict each other."""
    return TracingLayoutError(error)


class Restart(exc.UnspecializeRestartAnalysis, exc.TensorifyScalarRestartAnalysis):
    """Trace this frame again.

    ``Unspecialize...`` clears Dynamo's speculation log, ``Tensorify...`` is the one restart that a backend may raise.
    """


@dataclasses.dataclass
class FrameState:
    options: Options
    mode: Mode = Mode.PROBE
    dynamic_sources: set[str] = dataclasses.field(default_factory=set)
    sites: dict[int, str] = dataclasses.field(default_factory=dict)
    """Loop id -> user location."""
    user_checks: bool = False
    """Did the user check data outside a captured loop? Then the assertions in the graph are not all Dynamo's own."""
    not_replayable: str = ""
    """Why the loops of this frame must not be replayed although their two iterations are alike."""
    restarts: int = 0
    offsets: dict[Any, Any] = dataclasses.field(default_factory=dict)
    """Loop (code object, bytecode offset) -> its locals that count on by documents, see `packpass.capture.offsets`."""
    messages: int = 0
    """Point-to-point requests captured so far: each gets a number."""
    code: types.CodeType | None = None
    """The code of the frame; None if the gate was not there when it was traced."""
    named_boundaries: tuple[tuple[str, Any], ...] = ()
    """Name and value of the arguments with well-known names for boundaries, whether or not the code reads them."""


class _Active(threading.local):
    def __init__(self) -> None:
        self.frame: FrameState | None = None
        self.regions: list[Region] = []
        self.stock_settings: tuple[bool, bool] | None = None
        """The user's ``capture_scalar_outputs`` and ``backed_size_oblivious`` while they are overridden."""


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


def restart(reason: str) -> Restart:
    """Close what is open and give the exception that makes Dynamo trace the frame again."""
    while active.regions:
        active.regions.pop().abandon()
    if active.frame is not None:
        active.frame.restarts += 1
    return Restart(restart_reason=f"packpass: {reason}")


def refuse(code: str, reason: str, location: str) -> Restart:
    """Record why the loop at ``location`` is not captured; the frame goes on as stock torch."""
    refusal = Refusal(rule="capture", code=code, reason=reason, location=location)
    record(refusal)
    frame = active.frame
    if frame is not None:
        frame.mode = Mode.STOCK
        react(refusal, frame.options)
    return restart(f"{code}: {reason}")


def react(refusal: Refusal, options: Options) -> None:
    """Warn or raise about a refusal, as the option says; "ignore" leaves it to the report."""
    if options.on_refusal == "raise":
        raise TracingRefusedError(refusal)
    if options.on_refusal == "warn":
        warnings.warn(f"packpass: {refusal.location} [{refusal.code}]: {refusal.reason}", stacklevel=2)
