"""One case through eager, packpass and stock ``torch.compile``: values, gradients, rewrites, graphs, seconds."""

from __future__ import annotations

import collections
import dataclasses
import gc
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch._dynamo.utils import counters

import packpass
from packpass.decisions.records import GraphRecord, Refusal, Rewrite, collecting
from tests.wild.case import Arguments, Case, Program, Verdict


@dataclasses.dataclass
class Outcome:
    """What was seen. ``error`` is empty unless packpass raised or gave something else than eager.

    ``lost``: batches in which a function was compiled again whose loops an earlier batch had rewritten, and nothing was
    rewritten and nothing refused. ``seconds`` of the processor for a first call, forward and backward, in a process in
    which both have compiled the same before: what torch does once per process counts for neither.
    """

    name: str
    package: str = ""
    verdict: str = ""
    error: str = ""
    rewrites: dict[str, int] = dataclasses.field(default_factory=dict)
    refusals: list[tuple[str, str, str]] = dataclasses.field(default_factory=list)
    graphs: int = 0
    breaks: int = 0
    break_reasons: list[str] = dataclasses.field(default_factory=list)
    seconds: float = 0.0
    stock_error: str = ""
    stock_graphs: int = 0
    stock_breaks: int = 0
    stock_seconds: float = 0.0
    lost: list[int] = dataclasses.field(default_factory=list)
    new_graphs: list[int] = dataclasses.field(default_factory=list)

    @property
    def codes(self) -> set[str]:
        return {code for code, _, _ in self.refusals}


def tensors(value: Any, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """Every tensor in a nesting of containers and dataclasses, with where it is."""
    if isinstance(value, Tensor):
        if value.is_nested:
            value = torch.cat([part.reshape(-1) for part in value.unbind()])
        yield path, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from tensors(item, f"{path}.{key}")
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            yield from tensors(item, f"{path}[{i}]")
    elif hasattr(value, "__dict__") and not isinstance(value, type) and not callable(value):
        yield from tensors(vars(value), path)


Seen = list[tuple[str, Tensor | None]]


def step(call: Callable[..., Any], make: Callable[[], Arguments], parameters: list[Tensor], backward: bool) -> Seen:
    """Outputs, arguments after the call (they may be written) and gradients of one step."""
    args, kwargs = make()
    given = list(tensors((args, kwargs)))
    leaves = [tensor for _, tensor in given if tensor.requires_grad and tensor.is_leaf]
    for leaf in [*parameters, *leaves]:
        leaf.grad = None
    torch.manual_seed(0)
    out = call(*args, **kwargs)
    seen: Seen = [(f"output{path}", tensor) for path, tensor in tensors(out)]
    differentiable = [tensor for _, tensor in seen if tensor is not None and tensor.requires_grad]
    if backward and differentiable:
        total = torch.zeros(())
        for i, tensor in enumerate(differentiable):
            weights = torch.randn(tensor.shape, generator=torch.Generator().manual_seed(i))
            total = total + (tensor.float() * weights).sum()
        total.backward()  # type: ignore[no-untyped-call]
        seen += [(f"gradient {i}", leaf.grad) for i, leaf in enumerate([*leaves, *parameters])]
    seen += [(f"argument{path} afterwards", tensor) for path, tensor in given]
    return [(path, None if tensor is None else tensor.detach().clone()) for path, tensor in seen]


def difference(got: Seen, expected: Seen, tolerance: float) -> str:
    """The first difference in words, or nothing."""
    if len(got) != len(expected):
        return f"{len(got)} results instead of {len(expected)}"
    for (path, a), (_, b) in zip(got, expected, strict=True):
        if a is None or b is None:
            other = b if a is None else a
            if other is not None and bool(other.any()):
                return f"{path} is missing on one side"
            continue
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"{path}: {tuple(a.shape)} {a.dtype} instead of {tuple(b.shape)} {b.dtype}"
        if a.numel() and not _close(a, b, tolerance):
            return f"{path} differs by {float((a.double() - b.double()).abs().max()):.3g}"
    return ""


def _close(a: Tensor, b: Tensor, tolerance: float) -> bool:
    if not a.is_floating_point():
        return torch.equal(a, b)
    finite = b[torch.isfinite(b)]
    scale = max(1.0, float(finite.abs().max())) if finite.numel() else 1.0
    return torch.allclose(a, b, rtol=0, atol=tolerance * scale, equal_nan=True)


class _Collected:
    """Every record of a batch, with the number of the frame that Dynamo was compiling."""

    def __init__(self) -> None:
        self.items: list[tuple[int, Any]] = []

    def add(self, item: Any) -> None:
        compiling = torch._guards.CompileContext.current_compile_id()
        self.items.append((-1 if compiling is None else compiling.frame_id or 0, item))

    def of(self, kind: type) -> list[Any]:
        return [item for _, item in self.items if isinstance(item, kind)]

    def frames(self, *kinds: type) -> set[int]:
        return {frame for frame, item in self.items if isinstance(item, kinds)} - {-1}


def inner() -> str:
    """Who compiles behind both: eager (quick: graphs and rewrites are the same), or Inductor."""
    return os.environ.get("PACKPASS_WILD_BACKEND", "eager")


def run(case: Case) -> Outcome:
    """All batches of one case."""
    program = case.build()
    outcome = Outcome(case.name, case.package)
    parameters = parameters_of(program)
    expected = [step(program.call, make, parameters, program.backward) for make in program.batches]
    torch._dynamo.reset()
    counters.clear()
    _run_ours(outcome, ours(program, inner()), program, parameters, expected)
    outcome.graphs, outcome.breaks = counters["stats"]["unique_graphs"], sum(counters["graph_break"].values())
    outcome.break_reasons = [str(reason).strip().split("\n")[0][:200] for reason in counters["graph_break"]]
    outcome.verdict = _verdict(outcome).value
    _run_stock(outcome, program, parameters)
    if not outcome.error and not outcome.stock_error:
        outcome.seconds = _first_call(ours, program)
        outcome.stock_seconds = _first_call(stock, program)
    return outcome


def ours(program: Program, backend: str) -> Callable[..., Any]:
    options: dict[str, Any] = {"packpass.inner_backend": backend}
    return torch.compile(program.call, backend=packpass.backend, options=options)


def stock(program: Program, backend: str) -> Callable[..., Any]:
    return torch.compile(program.call, backend=backend)


def parameters_of(program: Program) -> list[Tensor]:
    """Those of a module, whose gradients are compared."""
    return list(program.call.parameters()) if isinstance(program.call, torch.nn.Module) else []


def _first_call(compile_: Callable[[Program, str], Callable[..., Any]], program: Program) -> float:
    torch._dynamo.reset()
    compiled = compile_(program, inner())
    gc.collect()  # of what was compiled before: it would be charged to whoever's turn it is
    started = time.process_time()
    step(compiled, program.batches[0], parameters_of(program), program.backward)
    return time.process_time() - started


def _run_ours(
    outcome: Outcome, compiled: Callable[..., Any], program: Program, parameters: list[Tensor], expected: list[Seen]
) -> None:
    rewrites: collections.Counter[str] = collections.Counter()
    rewritten: set[int] = set()
    for i, make in enumerate(program.batches):
        before = counters["stats"]["unique_graphs"]
        try:
            with collecting(_Collected()) as records:
                got = step(compiled, make, parameters, program.backward)
        except Exception as error:
            outcome.error = f"batch {i} raised {type(error).__name__}: {str(error).strip()[:1500]}"
            return
        new = counters["stats"]["unique_graphs"] - before
        outcome.new_graphs.append(new)
        found = difference(got, expected[i], program.tolerance)
        if found:
            outcome.error = f"batch {i}: {found}"
            return
        rewrites.update(item.rule for item in records.of(Rewrite))
        outcome.refusals += [(item.code, item.location, item.reason) for item in records.of(Refusal)]
        if rewritten & (records.frames(GraphRecord) - records.frames(Rewrite, Refusal)):
            outcome.lost.append(i)
        rewritten |= records.frames(Rewrite)
    outcome.rewrites = dict(rewrites)


def _verdict(outcome: Outcome) -> Verdict:
    if outcome.rewrites:
        return Verdict.PART if outcome.refusals or outcome.breaks else Verdict.WHOLE
    return Verdict.REFUSED if outcome.refusals else Verdict.UNTOUCHED


def _run_stock(outcome: Outcome, program: Program, parameters: list[Tensor]) -> None:
    torch._dynamo.reset()
    counters.clear()
    compiled = stock(program, inner())
    for i, make in enumerate(program.batches):
        try:
            step(compiled, make, parameters, program.backward)
        except Exception as error:
            outcome.stock_error = f"batch {i} raised {type(error).__name__}: {str(error).strip()[:300]}"
            break
    outcome.stock_graphs, outcome.stock_breaks = (
        counters["stats"]["unique_graphs"],
        sum(counters["graph_break"].values()),
    )
