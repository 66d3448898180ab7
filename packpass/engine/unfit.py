"""Calls whose boundaries do not fit what a rewritten loop takes for granted: they run as the loop was written.

The whole-row form checks what it rests on: boundaries that do not fall, lengths that fit their rows. Python cuts slices
instead, or takes them for empty, so that such a call is no error there. Where the check fails before anything else
could be seen of the call, the graph as it was captured runs document by document. If that raises as well, the error of
the check stays, which names the numbers. (On a GPU a failed check of values ends the work of the process there.)

So it is with what torch itself asserts about sizes that are data: that a row reaches to the last boundary, say. Its
message is the bare condition, ``u0 <= s77``, so that an error of the program's own is better.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from packpass import markers
from packpass.decisions.records import VerificationError
from packpass.engine.counting import graph_modules
from packpass.engine.replay import NotReplayable
from packpass.engine.replay_ways import reference
from packpass.semantics import storage
from packpass.semantics.effects import effects_of

log = logging.getLogger("packpass.backend")

_OURS = "packpass: "
"""What messages of checks begin with."""
_OF_TORCH = "Runtime assertion failed for expression"
_CONDITION = re.compile(r"[-\w()+*/%<>=!,. ]*\b[us]\d+\b[-\w()+*/%<>=!,. ]*")
"""What Inductor's messages are for conditions on sizes."""
_OF_NOTHING = (markers.NO_DOCUMENTS, markers.NO_SLOTS)
_PLAIN = markers.MARKERS | {*markers.LOOP_BRANCH, markers.BOUNDARIES}
"""Calls that only stand for something in a graph."""


def unless_unfit(compiled: Callable[..., Any], original: fx.GraphModule, doubt: str) -> Callable[..., Any]:
    """``compiled``, but ``original`` for calls that fail a check of ours. ``doubt`` is that of `replay`."""
    fallback: list[Callable[..., Any]] = []
    draws = any(effects_of(node).random for module in graph_modules(original) for node in module.graph.nodes)

    def run(*inputs: Any) -> Any:
        state = torch.get_rng_state() if draws else None
        try:
            return compiled(*inputs)
        except VerificationError:
            raise
        except (RuntimeError, ValueError) as error:
            of_sizes = _is_of_sizes(error) or any(message in str(error) for message in _OF_NOTHING)
            elsewhere = any(getattr(x, "is_cuda", False) for x in inputs)
            if (elsewhere and (draws or not of_sizes)) or (not of_sizes and _OURS not in str(error)):
                raise
            if not fallback and not _leaves_no_trace(original):
                raise
            try:
                if not fallback:
                    fallback.append(reference(original, doubt))
                if state is not None:  # the numbers that were drawn before the check are drawn again
                    torch.set_rng_state(state)
                result = fallback[0](*inputs)
            except Exception as reason:  # `NotReplayable`, or an error of the program's own
                log.info("not run document by document either: %s", reason)
                if of_sizes and not isinstance(reason, (NotReplayable, LookupError, AttributeError)):
                    raise reason from None
                raise error from None
            log.info("this call runs document by document: %s", error)
            return result

    return run


def _is_of_sizes(error: Exception) -> bool:
    """Is this torch's assertion that sizes are what they were taken for?"""
    text = str(error)
    return isinstance(error, RuntimeError) and (text.startswith(_OF_TORCH) or bool(_CONDITION.fullmatch(text)))


def _leaves_no_trace(gm: fx.GraphModule) -> bool:
    """Is nothing changed by a call that fails on its way: no input, no other rank, nothing that nobody knows?"""
    for module in graph_modules(gm):
        given = {storage(node) for node in module.graph.nodes if node.op in ("placeholder", "get_attr")}
        for node in module.graph.nodes:
            effects = effects_of(node)
            known = effects.known or node.target in _PLAIN
            if not known or effects.collective or effects.mode:
                return False
            if any(storage(written) is None or storage(written) in given for written in effects.writes):
                return False
    return True
