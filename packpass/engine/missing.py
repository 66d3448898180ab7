"""What a model would have got from a hook group that is off, broken or dead: words, and refusals instead of silence.

A loop over documents that is not captured reaches no pass, so none could refuse it. `packpass.capture.degraded` tells
this module what it sees of a frame; the backend asks about boundaries, because it sees every graph. Here are the rules
and the words. Frames without documents cost a look at a dictionary.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from torch import fx

from packpass._compat import hint_of
from packpass._options import Options
from packpass.decisions.location import location_of_node
from packpass.decisions.records import Refusal
from packpass.engine.versions import PROVE, CompatibilityWarning, tested_versions
from packpass.reports.report import Report

RULE = "capture"
CONSEQUENCES: dict[str, str] = {
    "gate": "nothing is captured: loops over documents, messages between ranks and shifts with unread boundaries are "
    "left as under stock torch.compile",
    "symbolic-loops": "a loop over documents runs document by document, mostly uncompiled, as under stock "
    "torch.compile",
    "late-reads": "the graph breaks where an autograd.Function is applied whose backward reads a tensor attribute, and "
    "neither side sees the loops and boundaries of the other",
    "boundary-inputs": "a naive shift is not fixed where the code does not read cu_seqlens: every document's end gets "
    "the next one's token (packpass.packed(x, cu_seqlens) declares it)",
    "list-inputs": "lengths, sizes and documents that come as lists of Python are constants: another graph for every "
    "batch, as under stock torch.compile",
    "p2p": "a loop that sends messages between ranks runs document by document, with its own messages for each",
}
"""Hook group -> what its absence means for a model."""


class HookStateLike(Protocol):
    """`packpass.capture.HookState`, of which this module needs to know no more."""

    name: str
    state: str
    reason: str


def consequence(group: str) -> str:
    return CONSEQUENCES.get(group, "what it captures is left as under stock torch.compile")


def warn_about(states: Iterable[Any]) -> None:
    """One warning for all hook groups that do not fit this torch; models run without them."""
    broken = [s for s in states if s.state == "broken"]
    # All others are broken because of the gate: one cause, one sentence.
    named = [s for s in broken if s.name == "gate"] or broken
    if named:
        lines = "; ".join(f"{s.name} ({s.reason}): {consequence(s.name)}" for s in named)
        warnings.warn(
            f"packpass: parts of it do not fit this torch and are off, models run without them. {lines}. Tested are "
            f"torch {tested_versions()}; {PROVE}",
            CompatibilityWarning,
            stacklevel=3,
        )


def refusal(state: HookStateLike, what: str, location: str) -> Refusal:
    """What is said about something that a group would have taken care of."""
    if state.state == "on":
        return Refusal(
            rule=RULE,
            code="hooks-dead",
            reason=f"{what}. The hook group {state.name!r} is for this, is installed and did nothing: "
            f"{consequence(state.name)}. {PROVE[0].upper()}{PROVE[1:]}",
            location=location,
        )
    if state.state == "off":
        how, remedy = f"off ({state.reason})", "Switch it on again"
    else:
        how, remedy = (
            f"off, because it does not fit this torch ({state.reason})",
            f"Use a torch that it fits (tested: {tested_versions()})",
        )
    return Refusal(
        rule=RULE,
        code="hooks-off",
        reason=f"{what}. The hook group {state.name!r} is for this and is {how}: {consequence(state.name)}. "
        f"{remedy}, or {PROVE}",
        location=location,
    )


def unread_boundaries(
    gm: fx.GraphModule, named: Sequence[tuple[str, Any]], settings: Options, state: HookStateLike, location: str
) -> Refusal | None:
    """A naive shift in a graph whose frame has boundaries that are no input of the graph: they should have been made
    one, whatever the reason is that they are not.

    Args:
        named: name and value of the frame's arguments with well-known names for boundaries.
    """
    if not named or settings.fix_shifts != "auto" or not settings.runs("pack_shifts"):
        return None
    from packpass.engine.passes import load
    from packpass.layout.sources import BOUNDARY_NAMES, last_name, source_name

    # Dynamo makes the name of an input from its source: the source itself is only asked where that fits.
    places = (node for node in gm.graph.nodes if node.op == "placeholder" and "cu_" in node.name)
    inputs = {last_name(source_name(node) or "") for node in places}
    missing = [(name, value) for name, value in named if name in BOUNDARY_NAMES and name not in inputs]
    if not missing or inputs & set(BOUNDARY_NAMES):
        return None
    name, value = missing[0]
    stand_in = fx.Graph().placeholder(name)
    stand_in.meta["example_value"] = value
    wish = load().wants_boundaries(gm, stand_in)
    equal = bool(wish.if_equal) and all(_same(a, b) for a, b in wish.if_equal)
    if not wish.wanted and not equal:
        return None
    what = f"a shift along a packed row was not made to stop at documents, because {name} did not reach the graph"
    return refusal(state, what, _first_shift(gm) or location)


def _same(a: Any, b: Any) -> bool:
    """Are two sizes equal in this call? Without a guard."""
    return hint_of(a) is not None and hint_of(a) == hint_of(b)


def _first_shift(gm: fx.GraphModule) -> str | None:
    from packpass.semantics import op_name

    shifts = (node for node in gm.graph.nodes if op_name(node) in ("roll", "pad"))
    return next((place for node in shifts if (place := location_of_node(node))), None)


def place_of(gm: fx.GraphModule) -> str:
    """Where the first operation of a graph was written."""
    places = (place for node in gm.graph.nodes if node.op != "placeholder" and (place := location_of_node(node)))
    return next(places, "<unknown>")


def gate_closed(states: Mapping[str, HookStateLike], location: str) -> Refusal | None:
    """Without the gate nobody sees frames, and what they may have lost is not known."""
    gate = states.get("gate")
    if gate is None or gate.state == "on":
        return None
    return refusal(gate, "loops over documents and boundaries that are not read are not looked for", location)


def not_seen(location: str) -> Refusal:
    """Dynamo does not know a backend again that is called by another one; nor do hooks that are dead."""
    return Refusal(
        rule=RULE,
        code="frame-not-seen",
        reason="packpass got a graph of a frame that it did not see being traced, so loops over documents and "
        "boundaries that are not read were not looked for: packpass.backend is called by another backend (give it to "
        f"torch.compile itself), or its hooks do nothing on this torch ({PROVE})",
        location=location,
    )


def nothing_seen(report: Report, states: Mapping[str, HookStateLike], location: str) -> Refusal | None:
    """What a report has to say that no frame and no graph could: the gate is closed, or there was no graph at all."""
    if any(r.code in ("hooks-off", "hooks-dead") for r in report.refusals):
        return None
    closed = gate_closed(states, location)
    if closed is not None or report.graphs or report.refusals:
        return closed
    return Refusal(
        rule=RULE,
        code="no-graph",
        reason="Dynamo compiled nothing of this call: it has no tensor operation, torch.compile is disabled in this "
        "process or for this function, or tracing stopped in every frame (TORCH_LOGS=graph_breaks shows where)",
        location=location,
    )
