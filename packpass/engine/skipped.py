"""Functions that stock torch gives up and runs eagerly: what to say about the loops and shifts in them.

Where the graph breaks inside a Python loop (a loop over blocks of FSDP, whose hooks break the graph), Dynamo skips the
whole function; the functions that it calls are compiled one by one. Loops over documents and naive shifts in the
function itself are then out of reach, whatever stands around the loop.
"""

from __future__ import annotations

from typing import Any

import torch

from packpass.capture.effects import reason_of
from packpass.capture.state import FrameState, react
from packpass.decisions.location import shorten
from packpass.decisions.records import Refusal, record
from packpass.layout.arguments import boundary_arguments
from packpass.semantics.losses import OF_CLASSES

_MODULES = frozenset(module.__name__ for module in (torch.nn.CrossEntropyLoss, torch.nn.NLLLoss))
_SHIFTING = OF_CLASSES | _MODULES | {"roll", "pad"}
"""Names by which code that shifts labels can be told; slices alone are in nearly every function."""


def note_skipped(tx: Any, frame: FrameState, error: Exception) -> None:
    """A function without a captured loop is given up: say so if it knows boundaries by name and seems to shift."""
    if not getattr(error, "skip_frame", False) or frame.options.fix_shifts != "auto":
        return
    if _SHIFTING.isdisjoint(tx.f_code.co_names) or next(boundary_arguments(tx.f_locals), None) is None:
        return
    where = shorten(tx.f_code.co_filename, tx.f_code.co_firstlineno)
    text = f"naive shifts in this function are not looked for, because it is not compiled: {reason_of(error)}"
    refusal = Refusal(rule="capture", code="frame-not-compiled", reason=text, location=where)
    record(refusal)
    react(refusal, frame.options)
