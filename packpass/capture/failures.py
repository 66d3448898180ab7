"""What becomes of a frame that cannot be traced: what fails because of packpass must not fail the model."""

from __future__ import annotations

import pathlib
import traceback
from typing import Any

from packpass.capture import code_loops, effects
from packpass.capture.state import active, leave_to_stock, note, refuse, without_counts, without_data_sizes
from packpass.decisions.location import shorten


def refused(tx: Any, error: Exception, loops: bool) -> Exception | None:
    """Whatever fails because of what packpass does to a frame must not fail the model: stock torch decides."""
    what = effects.reason_of(error)
    again = without_counts(what) or without_data_sizes(what)
    if again is not None:
        return again
    if active.regions and code_loops.is_left(active.regions[-1].tx, active.regions[-1].head):
        return effects.refuse_exit()  # what fails is behind the loop, where there is no list of its yet, say
    if active.regions:
        reason = f"the loop body cannot be captured: {what}{effects.line_of(error)}"
        return refuse("body-not-traceable", reason, active.regions[-1].location)
    if loops and active.frame is not None:
        where = next(iter(active.frame.sites.values()), shorten(tx.f_code.co_filename, tx.f_code.co_firstlineno))
        if active.frame.only_numbers and not active.frame.sites:
            return leave_to_stock("a number made from boundaries cannot be captured")
        return refuse(
            "frame-not-compiled",
            f"a frame with a captured loop failed to compile: {what}{effects.line_of(error)}",
            where,
        )
    if active.frame is not None and _is_our_own(error):
        place = shorten(tx.f_code.co_filename, tx.f_code.co_firstlineno)
        note("internal-error", f"packpass failed, and the code runs as in stock torch; please report it: {what}", place)
        return leave_to_stock("an error of packpass's own")
    return None


def _is_our_own(error: BaseException) -> bool:
    """Was this error raised by packpass's own code, not by Dynamo's or the model's?"""
    frames = list(traceback.walk_tb(error.__traceback__))
    file = frames[-1][0].f_code.co_filename if frames else ""
    return isinstance(error, _MISTAKES) and file.startswith(_OURS)


_MISTAKES = (AssertionError, AttributeError, LookupError, NotImplementedError, TypeError, UnboundLocalError)
_OURS = str(pathlib.Path(__file__).parents[1])


def forget_half_made_nodes(output: Any) -> None:
    """Dynamo clears the graphs of a failed frame and stumbles over nodes whose creation failed half way, or that stand
    behind their users."""
    for tracer in output.tracers:
        made = set(tracer.graph.nodes)
        for node in made:
            node.args, node.kwargs = (), {}
        for node in made:
            for user in [user for user in node.users if user not in made]:
                del node.users[user]
