"""The backend object: ``torch.compile(model, backend=packpass.backend)``."""

from __future__ import annotations

import contextlib
import logging
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from packpass.engine.versions import require_torch, warn_if_untested

require_torch(torch.__version__)  # before the imports that would fail obscurely

from packpass import capture, markers, ops  # noqa: F401  (ops registers the operators
from packpass._compat import size_oblivious, transforms_closed
from packpass._options import Options
from packpass.capture import Mode, frame_state
from packpass.capture.expansions import PASS as EXPANDING
from packpass.capture.frame import LOOP_MODES, FrameState
from packpass.capture.state import (
    hands_on,
    in_tracing,
    restart,
    tracing_error,
    without_data_sizes,
    without_lone_document,
)
from packpass.decisions.location import shorten
from packpass.decisions.records import Refusal, active, record
from packpass.engine import after_autograd, ddp, degraded, missing, passes, plain_lengths, skipped
from packpass.engine.assertions import held_outside
from packpass.engine.cacheable import check_by_ops
from packpass.engine.copies import copy_graph
from packpass.engine.isolated import isolated, rows_of_one_length
from packpass.engine.numbers_once import read_once
from packpass.engine.overlap import unless_overlapping
from packpass.engine.pipeline import Outcome, run_passes
from packpass.engine.replay import NotReplayable, replay
from packpass.engine.shorter_code import with_shorter_code
from packpass.engine.size_names import traced_again
from packpass.engine.slice_bounds import check_bounds
from packpass.engine.unasked import without_questions
from packpass.engine.unfit import unless_unfit
from packpass.engine.unpadded import unpadded
from packpass.engine.verify import verified
from packpass.layout import LayoutError
from packpass.layout.mixing import mixing_operations
from packpass.ranks import apart, compiling
from packpass.ranks.agreement import agreement
from packpass.ranks.alike import alike, runs_eagerly
from packpass.ranks.leaving import leave
from packpass.ranks.meeting import AgreementError
from packpass.reports.report import traced_transaction

log = logging.getLogger("packpass.backend")


class Backend:
    """A ``torch.compile`` backend that rewrites packed-sequence code and hands the graph to Inductor.

    One module-level object serves all models: a new object per call would make Dynamo compile again. It holds no
    state.
    """

    __name__ = "packpass"

    @transforms_closed()
    def __call__(
        self,
        gm: fx.GraphModule,
        example_inputs: Sequence[Any],
        *,
        mode: str | None = None,
        options: dict[str, Any] | None = None,
    ) -> Callable[..., Any]:
        """Compile one Dynamo graph. Called by torch.compile; ``mode`` and ``options`` as given there."""
        settings, inductor_options = Options.from_dict(options)
        warn_if_untested(torch.__version__)
        frame = frame_state(settings)
        optimizer = ddp.take_optimizer(gm)

        capturing = frame.mode in LOOP_MODES

        def one_graph(part: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
            return self.compile_graph(part, inputs, settings, mode, inductor_options)

        inner = ddp.splitting(optimizer, gm, one_graph)
        degraded.in_graph(gm, frame)
        places = [node.name for node in gm.graph.nodes if node.op == "placeholder"]
        untouched = copy_graph(gm) if capturing else None
        try:
            # As while the loop was traced: no size is asked whether it is 0 or 1 for its layout.
            with size_oblivious() if capturing else contextlib.nullcontext():
                if settings.runs("isolate") and (rows := rows_of_one_length(gm, frame)):
                    frame.rows |= rows
                    raise restart("the length of the row is a symbol, as a document has another one")
                outcome = run_passes(gm, settings, frame)
        except LayoutError as error:
            raise tracing_error(error) from None
        settings = exchanging(gm, outcome, frame, settings)
        if not outcome.loops_left and is_worth_keeping(outcome, frame):
            outcome.react(settings)
            if capturing and settings.inner_backend != "eager":
                check_bounds(gm.graph)
            with traced_transaction():  # the inner backend, too, may have Dynamo trace the frame again
                outcome.commit()
                agreed = agreement(gm, outcome.rewrites, settings)
                compiled = _in_its_form(outcome, gm, inner, example_inputs, settings)
            return agreed.before(_watched(outcome, compiled, untouched, places, frame))
        _look_again(outcome, settings, frame)
        if outcome.loops_left:
            try:
                agreed = agreement(gm, outcome.rewrites, settings)
                compiled = replay(gm, inner, frame.not_replayable)
                outcome.commit()
                log.info("replaying %d loop(s) over documents that were not vectorised", outcome.loops_left)
                return agreed.before(_watched(outcome, compiled, untouched, places, frame))
            except NotReplayable as reason:
                outcome.record_refusals()
                frame.said = True
                log.info("not replayed: %s", reason)
                left = loops_to_leave(gm, outcome, frame)
                if left:
                    frame.left |= left
                    raise restart("the graph ends in front of a loop that is not vectorised") from None
        frame.mode = Mode.STOCK
        raise restart("the captured loop is not vectorised")

    def compile_graph(
        self,
        gm: fx.GraphModule,
        example_inputs: Sequence[Any],
        settings: Options,
        mode: str | None,
        inductor_options: dict[str, Any],
    ) -> Callable[..., Any]:
        """What becomes of a rewritten graph; an audit runs it call by call instead."""
        return compile_inner(gm, example_inputs, settings, mode, inductor_options)


def _look_again(outcome: Outcome, settings: Options, frame: FrameState) -> None:
    """Nothing is kept of a graph: have its frame traced again without what was captured and may be none of ours."""
    if again := without_lone_document("it is not vectorised"):
        if frame.lone_at:
            outcome.record_refusals()
        raise again
    outcome.react(settings)
    if frame.expands and not frame.sites and (again := without_data_sizes("no boundaries are remapped")):
        outcome.record_refusals()
        raise again


def is_worth_keeping(outcome: Outcome, frame: FrameState) -> bool:
    """Is a graph without loops that which stock torch would trace, or a better one?"""
    # Loops that only count are gone before any pass looks at them.
    counted = frame.mode is Mode.SYMBOLIC and bool(frame.sites) and not outcome.refusals
    remapped = any(frame.expands or r.rule == EXPANDING for r in outcome.rewrites)
    parts = hands_on() and not outcome.refusals
    return bool(outcome.loop_rewrites) or not outcome.capturing or counted or remapped or parts


def loops_to_leave(gm: fx.GraphModule, outcome: Any, frame: FrameState) -> set[Any]:
    """The loops that nobody rewrote, where others are rewritten and stay so if the graph ends in front of these."""
    if not outcome.loop_rewrites or frame.mode is not Mode.SYMBOLIC:
        return set()
    numbers = {node.args[1] for node in gm.graph.nodes if node.target is markers.LOOP_BEGIN}
    return {frame.keys[number] for number in numbers if number in frame.keys} - frame.left


def _watched(
    outcome: Any, compiled: Callable[..., Any], untouched: fx.GraphModule | None, places: list[str], frame: FrameState
) -> Callable[..., Any]:
    """``compiled`` behind what looks at every call: beside the graph as it was, or instead of it where that must run.

    Args:
        untouched: the captured graph before any pass; None where no loop was captured.
        places: names of the graph's inputs in their order.
    """
    for stage in outcome.stages:
        compiled = verified(stage.before, stage.after, compiled, stage.rewrites, frame.not_replayable)
    if untouched is not None and outcome.keeps_results:
        compiled = unless_unfit(compiled, untouched, frame.not_replayable)
    if outcome.separate_inputs:
        assert untouched is not None
        groups = [[places.index(name) for name in group] for group in outcome.separate_inputs]
        compiled = unless_overlapping(groups, compiled, untouched, frame.not_replayable)
    return compiled


def exchanging(gm: fx.GraphModule, outcome: Outcome, frame: FrameState, settings: Options) -> Options:
    """The options for what follows the passes: where ranks differ, nothing else may join what they exchange either.

    If a pass has put something in the place of exchanges there, Dynamo traces the frame again, with all as it is
    written.
    """
    if frame.apart:
        return apart.without_exchanges(settings)
    code = "\n".join(sorted(frame.sites.values())) if frame.code is None else words_of(frame.code)
    if alike(gm, outcome.results, code, frame.sites, settings, outcome.written):
        return settings
    frame.apart = True
    replaced = [r for r in outcome.rewrites if apart.exchanges(r)]
    if not replaced:
        left = None if frame.sites else apart.left_side_by_side(gm, settings)
        outcome.results += [left] if left is not None else []
        return apart.without_exchanges(settings)
    with traced_transaction() as tx:
        for rewrite in replaced:
            reason = (
                "other ranks of the group do something else here, have gradients where this one has none or the other "
                f"way round, or do not find that it is {rewrite.after}"
            )
            tx.record(Refusal(rewrite.rule, "ranks-differ", reason, rewrite.location))
        for refusal in outcome.refusals:
            if refusal.rule in apart.EXCHANGES:
                tx.record(refusal)
    raise restart("the ranks do not exchange alike")


def _in_its_form(outcome: Any, gm: fx.GraphModule, inner: Any, inputs: Sequence[Any], settings: Options) -> Any:
    """What runs: the graph, or what passes made beside it, of documents or of real tokens alone."""
    if outcome.documents is not None:
        return isolated(outcome.documents, gm, inner)
    if outcome.packed is not None:
        return unpadded(outcome.packed, gm, inner, outcome.packing if settings.verify else "")
    return inner(gm, inputs)


def compile_inner(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    settings: Options,
    mode: str | None,
    inductor_options: dict[str, Any],
) -> Callable[..., Any]:
    """Hand a graph to the inner backend exactly as ``torch.compile`` would."""
    if settings.inner_backend == "eager":
        return gm.forward
    read_once(gm.graph)
    without_questions(gm.graph)
    check_by_ops(gm.graph)
    if settings.inner_backend == "inductor":
        with_shorter_code(gm.graph)
    gm.recompile()
    if settings.inner_backend == "aot_eager":
        aot_eager = torch._dynamo.lookup_backend("aot_eager")
        return traced_again(gm.graph, lambda: aot_eager(gm, list(example_inputs)))
    inductor_options = after_autograd.inductor_options(gm, example_inputs, settings, inductor_options)
    held_outside(gm)
    wrapper = torch._TorchCompileInductorWrapper(mode, inductor_options or None, None)
    return traced_again(gm.graph, lambda: wrapper(gm, example_inputs))


def words_of(code: types.CodeType) -> str:
    """A function, in words that are the same on every rank."""
    return f"{code.co_name} of {shorten(code.co_filename, code.co_firstlineno)}"


def leave_messages(tx: Any, frame: FrameState) -> None:
    """The frame goes on as stock torch, with the messages of its loop as they are written: once all ranks do so."""
    groups, frame.message_groups = frame.message_groups, {}
    code = words_of(tx.f_code)
    runs_eagerly(code, settings=frame.options)  # first: who asks hears it, and does not wait for this rank
    for name in sorted(groups):
        location, peers = groups[name]
        try:
            leave(name, code, location, peers, frame.options)
        except AgreementError as error:
            raise in_tracing(error) from None


class _Client:
    """What capture asks us."""

    def options_of(self, compiler_fn: Any) -> Options | None:
        """The options of the packpass backend behind ``compiler_fn``, or None for any other backend."""
        found, given = capture.backend_behind(compiler_fn)
        return Options.from_dict(given.get("options"))[0] if isinstance(found, Backend) else None

    def backend_for(self, compiler_fn: Any) -> Any:
        """What a frame is compiled with in place of ``compiler_fn``."""
        return ddp.rewriting_first(compiler_fn, lambda behind: self.options_of(behind) is not None)

    def wants_boundaries(self, view: Any, stand_in: fx.Node | None) -> Any:
        """Whether a pass would use boundaries in this graph; what mixes documents there is told to who reads."""
        if active():
            for finding in mixing_operations(view, stand_in):
                record(finding)
        return passes.load().wants_boundaries(view, stand_in)

    def frame_starts(self, tx: Any, frame: FrameState) -> None:
        """A frame of ours is about to be traced."""
        degraded.frame_starts(tx, frame)
        if frame.mode is Mode.STOCK and frame.message_groups and frame.options.agreement:
            leave_messages(tx, frame)
        compiling.begins()

    def frame_ended(self, tx: Any, frame: FrameState, error: Exception | None) -> None:
        """It was traced, or failed."""
        degraded.frame_ended(tx, frame, error)
        plain_lengths.note(tx, frame)
        skipped.note_captured(tx, frame, error)
        skipped.note_unseen(tx, frame, error)
        if error is not None:
            skipped.note_skipped(tx, frame, error)
            if getattr(error, "skip_frame", False):
                runs_eagerly(*(words_of(code) for code in skipped.run_eagerly(tx)), settings=frame.options)

    def trace_ended(self) -> None:
        """Whatever came of it, be it that the frame is traced again."""
        compiling.ends()


backend = Backend()
capture.install(_Client())
missing.warn_about(capture.GROUPS)
passes.load_all()  # now: an ImportError while a frame is compiled would only make the frame run as under stock torch
