"""Canaries: small programs that are compiled to see whether the hooks do anything on this torch.

A hook whose target kept its name and lost its meaning installs without complaint, so ``python -m packpass doctor``
compiles these and asks for two things: the results are right, and the report shows the rewrite. Run as a process of
their own (``python -m packpass.cli.canaries``, one line of JSON per canary), they neither change the caller's process,
where a process group may be running, nor hang it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from packpass import backend, capture, explain
from packpass.cli import canary_programs as programs
from packpass.reports.report import Report

OPTIONS = {"packpass.inner_backend": "eager"}
OK, FAILED, SKIPPED = "ok", "failed", "skipped"


@dataclasses.dataclass(frozen=True)
class Canary:
    """A program, what has to happen to it, and which hook groups that proves."""

    name: str
    proves: tuple[str, ...]
    """Groups that are dead if the canary fails."""
    run: Callable[[], Outcome]
    needs: tuple[str, ...] = ()
    """Groups without which it cannot succeed, and whose fault that may be."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What happened to one canary. ``state``: ok, failed or skipped; ``detail``: the rewrites, or what went wrong."""

    state: str
    detail: str
    name: str = ""
    seconds: float = 0.0
    right: bool = True
    """Are the results what they have to be? Whether or not something was rewritten."""


# === What is asked of a program ==============================================================================


def _boundaries(*sizes: int) -> Tensor:
    return torch.tensor([0, *sizes]).cumsum(0)


def _rewrites(report: Report) -> str:
    return "; ".join(f"{r.rule}: {r.before} -> {r.after}" for r in report.rewrites)


def _instead(report: Report) -> str:
    """What happened in place of a rewrite."""
    # The first sentence says what happened; what to do is said beside the hook group.
    refused = [f"refused [{r.code}] {r.reason.split('. ')[0]}" for r in report.refusals]
    breaks = [f"graph break: {reason.strip().splitlines()[0]}" for reason in report.graph_break_reasons]
    return "; ".join(refused or breaks) or f"no refusal either, {report.graphs} graph(s)"


def _judge(report: Report, rule: str, right: bool) -> Outcome:
    rewritten = any(r.rule == rule for r in report.rewrites)
    if not right:
        return Outcome(FAILED, f"wrong result after {_rewrites(report) or 'no rewrite'}", right=False)
    if not rewritten:
        return Outcome(FAILED, f"not rewritten by {rule}: {_rewrites(report) or _instead(report)}")
    return Outcome(OK, _rewrites(report))


def _gate() -> Outcome:
    """Frames of packpass are seen as such while they are traced, and no others."""
    seen: list[bool] = []

    @torch.compiler.assume_constant_result  # runs while the frame around it is traced
    def look() -> int:
        seen.append(capture.active.frame is not None)
        return 1

    def program(x: Tensor) -> Tensor:
        return x + look()

    x = torch.ones(2)
    right = torch.equal(torch.compile(program, backend=backend, options=dict(OPTIONS))(x), x + 1)
    ours, seen[:] = seen[:], []
    torch.compiler.reset()
    right = right and torch.equal(torch.compile(program, backend="eager")(x), x + 1)
    if not right or True in seen or not all(ours):
        told = f"seen as packpass's: {ours} under packpass, {seen} under another backend"
        return Outcome(FAILED, told if right else "wrong result", right=right)
    return Outcome(OK, "a frame -> seen as packpass's under packpass.backend alone")


def _loop(program: Callable[..., Tensor], empty: bool = False) -> Outcome:
    """A loop over documents: rewritten once, and the same function then right for other documents."""
    torch.manual_seed(0)
    x = torch.randn(12, 3)
    sizes = (3, 0, 4, 5) if empty else (3, 4, 5)
    report = explain(program, options=OPTIONS)(x, _boundaries(*sizes))
    right = torch.equal(report.result, program(x, _boundaries(*sizes)))
    compiled = torch.compile(program, backend=backend, options=dict(OPTIONS))
    for cu in (_boundaries(*sizes), _boundaries(2, 1, 4, 2, 3), _boundaries(12)):
        right = right and torch.equal(compiled(x, cu), program(x, cu))
    return _judge(report, "vectorize_segments", right)


def _lists() -> Outcome:
    """Lists of several numbers of documents, right for all of them."""
    torch.manual_seed(0)
    batches = [(list(torch.randn(sum(n), 3).split(n)), n) for n in ([3, 4, 5], [2, 1, 4, 2, 3], [6, 6])]
    report = explain(programs.lengths_loop, options=OPTIONS)(*batches[0])
    compiled = torch.compile(programs.lengths_loop, backend=backend, options=dict(OPTIONS), fullgraph=True)
    right = all(torch.equal(compiled(*batch), programs.lengths_loop(*batch)) for batch in batches)
    return _judge(report, "vectorize_segments", right)


def _shift() -> Outcome:
    """A fix: the results are not eager's, but those of the documents one by one."""
    ids, cu = torch.arange(1, 13)[None], _boundaries(3, 4, 5)
    report = explain(programs.unread_shift, options=OPTIONS)(ids, cu)
    by_documents = programs.shift_of_documents(ids, cu)
    fixed = any(r.rule == "pack_shifts" for r in report.rewrites)
    # Without the fix the row is what the code says: one document.
    wanted = by_documents if fixed else programs.unread_shift(ids, cu)
    return _judge(report, "pack_shifts", torch.equal(report.result, wanted))


def _late_read() -> Outcome:
    """One graph; the gradient uses the value that the class has when the backward runs."""
    before = programs.Scaler.scale
    x, y = torch.ones(3, requires_grad=True), torch.full((3,), 2.0, requires_grad=True)
    try:
        report = explain(programs.late_read, options=OPTIONS)(x, y)
        programs.Scaler.scale = torch.tensor(5.0)
        report.result.sum().backward()
    finally:
        programs.Scaler.scale = before
    right = torch.equal(report.result, torch.full((3,), 6.0)) and y.grad is not None
    right = right and torch.equal(y.grad, torch.full((3,), 20.0)) and torch.equal(x.grad, torch.full((3,), 6.0))  # type: ignore[arg-type]
    if not right:
        return Outcome(FAILED, "wrong gradients", right=False)
    if report.graphs != 1 or report.graph_breaks:
        return Outcome(FAILED, f"{report.graphs} graphs: {_instead(report)}")
    return Outcome(OK, "autograd.Function with a tensor attribute -> 1 graph, read when the backward runs")


def _messages() -> Outcome:
    """Under a fake process group nothing arrives, so only slots that no message fills are compared."""
    if not dist.is_available():
        return Outcome(SKIPPED, "this build of torch has no torch.distributed")
    if dist.is_initialized():
        return Outcome(SKIPPED, "a process group is initialised")
    try:
        from torch.testing._internal.distributed.fake_pg import FakeStore
    except ImportError as error:
        return Outcome(SKIPPED, f"this build of torch has no fake process group ({error})")
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        x, cu = torch.arange(1, 9), torch.tensor([0, 8, 16])
        report = explain(programs.message_loop, options=OPTIONS)(x, cu, dist.group.WORLD)
        # Rank 0 is sent what follows either of its chunks of a document, the fill behind the last one included.
        known = torch.tensor([True, False, True, False] * 2)
        wanted = torch.tensor([2, 0, 4, 0, 6, 0, 8, 0])
        return _judge(report, "fuse_boundary_exchange", torch.equal(report.result[known], wanted[known]))
    finally:
        torch.compiler.reset()
        dist.destroy_process_group()


def _refused() -> Outcome:
    """A loop that must be left alone, with the reason in the report."""
    x, cu = torch.arange(24.0).view(12, 2), _boundaries(3, 4, 5)
    report = explain(programs.carried_loop, options=OPTIONS)(x, cu)
    right = torch.equal(report.result, programs.carried_loop(x, cu))
    if report.rewrites or not right:
        return Outcome(FAILED, f"wrong: {_rewrites(report) or 'another result than eager'}", right=right)
    refusal = next((r for r in report.refusals if r.code == "carried-state"), None)
    if refusal is None:
        return Outcome(FAILED, f"not refused as carried-state: {_instead(report)}")
    return Outcome(OK, f"left alone [{refusal.code}]: {refusal.reason}")


_LOOPS = ("symbolic-loops",)
CANARIES: tuple[Canary, ...] = (
    Canary("frames told apart", ("gate",), _gate),
    Canary("loop with .item()", _LOOPS, lambda: _loop(programs.item_loop)),
    Canary("loop over zip", _LOOPS, lambda: _loop(programs.zip_loop)),
    Canary("tolist, append, cat", _LOOPS, lambda: _loop(programs.list_loop)),
    Canary("integer write in a loop", _LOOPS, lambda: _loop(programs.written_loop)),
    Canary("transposed body", _LOOPS, lambda: _loop(programs.transposed_loop)),
    Canary("continue in the body", _LOOPS, lambda: _loop(programs.skipping_loop, empty=True)),
    Canary("carried state is refused", _LOOPS, _refused),
    Canary("documents in lists", ("list-inputs",), _lists, needs=_LOOPS),
    Canary("shift, unread boundaries", ("boundary-inputs",), _shift),
    Canary("late read in a backward", ("late-reads",), _late_read),
    Canary("messages in a loop", ("p2p",), _messages, needs=_LOOPS),
)


# === Running them ============================================================================================


def run(canary: Canary) -> Outcome:
    """Compile one canary; whatever it raises is its outcome."""
    torch.compiler.reset()
    start = time.perf_counter()
    try:
        outcome = canary.run()
    except Exception as error:
        text = str(error).strip().splitlines()
        outcome = Outcome(FAILED, f"{type(error).__name__}: {text[0][:300] if text else ''}", right=False)
    return dataclasses.replace(outcome, name=canary.name, seconds=time.perf_counter() - start)


def run_all(canaries: Sequence[Canary] = CANARIES) -> Iterator[Outcome]:
    """The outcomes, one by one as they come. Compiled code of the process is forgotten in between, so this is for a
    process of its own."""
    for canary in canaries:
        yield run(canary)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Standard output is for the outcomes; what torch warns about where a canary fails is in them."""
    logging.disable(logging.CRITICAL)
    with warnings.catch_warnings(), contextlib.redirect_stdout(sys.stderr):
        warnings.simplefilter("ignore")
        yield


def main(names: Sequence[str] = ()) -> None:
    """Run the canaries of these names, or all."""
    out = sys.stdout
    torch.set_num_threads(1)
    with _quiet():
        for outcome in run_all([canary for canary in CANARIES if not names or canary.name in names]):
            print(json.dumps(dataclasses.asdict(outcome)), file=out, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
