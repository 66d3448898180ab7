"""Trains `Model` compiled by packpass beside `Reference` uncompiled, and compares every step."""

from __future__ import annotations

import contextlib
import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._dynamo.utils import clear_compilation_metrics, counters, get_compilation_metrics
from torch.testing import assert_close

import packpass
from packpass.decisions.records import collecting
from packpass.reports.report import Report
from tests.trainers.models import LENGTHS, Model, Reference, batches, made

WHOLE = {"vectorize_segments": 3, "pack_shifts": 2}
"""Rewrites in the model as one graph: its loops (the positions, one in each block), its depths of next tokens."""

Compile = Callable[..., Any]
Prepare = Callable[[Model, Compile], Any]
Backward = Callable[[Any, dict[str, Tensor]], Tensor]


def packpass_compile(inner_backend: str = "aot_eager", **keywords: Any) -> Compile:
    """``torch.compile`` with packpass; ``mode`` takes the place of options, which need an environment variable then."""
    if "mode" not in keywords:
        keywords["options"] = {"packpass.inner_backend": inner_backend}
    return lambda function: torch.compile(function, backend=packpass.backend, **keywords)


def uncompiled(function: Any) -> Any:
    """In place of `packpass_compile`, for the reference."""
    return function


def compiled_whole(model: Model, compile: Compile) -> Any:
    """The simplest trainer: no wrapper at all."""
    return compile(model)


def backward(model: Any, batch: dict[str, Tensor]) -> Tensor:
    """The usual half of a step."""
    loss = model(**batch)
    loss.backward()
    return loss.detach()


@dataclasses.dataclass
class Step:
    loss: Tensor
    gradients: dict[str, Tensor]


@dataclasses.dataclass
class Seen:
    """What packpass reported and Dynamo compiled while a model was trained."""

    first: dict[str, int]
    """Rewrites by rule in the first step."""
    rewrites: dict[str, int]
    refusals: list[str]
    frames: dict[str, int]
    """How often Dynamo compiled each frame."""
    pieces: int = 0
    """Graphs that AOTAutograd got."""

    def check(self, first: dict[str, int], graphs: int = 1) -> None:
        """These rewrites in the first step, the same again in each of ``graphs`` graphs, nothing left alone, and at
        most two graphs for any frame."""
        assert self.refusals == []
        assert self.first == first
        assert self.rewrites == {rule: n * graphs for rule, n in first.items()}
        assert max(self.frames.values()) <= 2, self.frames


def given_up() -> dict[int, str]:
    """First lines of the functions that Dynamo gave up since `watching` began, with its reason."""
    return {int(m.co_firstlineno or 0): str(m.fail_reason) for m in get_compilation_metrics() if m.fail_type}


def gradients(model: nn.Module) -> dict[str, Tensor]:
    """By the names they have without a wrapper, whole where they are sharded."""
    found = {}
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            gradient = parameter.grad
            whole = gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient
            found[name.replace("_orig_mod.", "").replace("_checkpoint_wrapped_module.", "")] = whole.clone()
    return found


def steps(model: Model, called: Any, half: Backward, rows: Any) -> Iterator[Step]:
    """A step for each row, with plain gradient descent."""
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for batch in rows:
        optimizer.zero_grad()
        loss = half(called, batch)
        yield Step(loss, gradients(model))
        optimizer.step()


@contextlib.contextmanager
def watching() -> Iterator[Callable[[], Seen]]:
    """Everything compiled from here on; the callable gives what was seen so far."""
    torch._dynamo.reset()
    clear_compilation_metrics()
    report, first = Report(), Counter[str]()
    pieces = counters["aot_autograd"]["total"]

    def seen() -> Seen:
        rewrites = Counter(rewrite.rule for rewrite in report.rewrites)
        if not first:
            first.update(rewrites)
        compiled = [m for m in get_compilation_metrics() if m.co_name and not m.fail_type]
        frames = Counter(f"{Path(m.co_filename).name}:{m.co_firstlineno} {m.co_name}" for m in compiled)
        refusals = [f"{refusal.code} at {refusal.location}: {refusal.reason}" for refusal in report.refusals]
        return Seen(dict(first), dict(rewrites), refusals, dict(frames), counters["aot_autograd"]["total"] - pieces)

    with collecting(report):
        yield seen


def agree(have: Tensor, want: Tensor, name: str, rounding: float | None) -> None:
    """Equal up to rounding (see `train`)."""
    apart = {} if rounding is None else {"rtol": 0.0, "atol": rounding * float(want.abs().max())}
    assert_close(have, want, **apart, msg=lambda text: f"{name}: {text}")


def train(
    prepare: Prepare = compiled_whole,
    compile: Compile | None = None,
    half: Backward = backward,
    lengths: tuple[tuple[int, ...], ...] = LENGTHS,
    rank: int = 0,
    reference: type[Model] = Reference,
    cls: type[Model] = Model,
    rounding: float | None = None,
    **arguments: Any,
) -> Seen:
    """Train both models in step, assert that they agree in every one, and say what was seen.

    ``prepare`` wraps and compiles a model (with `uncompiled` for the reference), ``half`` runs forward and backward.
    ``rounding`` is how far they may be apart, relative to the largest number of a tensor, where products are rounded to
    few bits: how a compiler cuts them up differs from processor to processor. Without it, torch's own for float32.
    """
    right, model = made(reference, **arguments), made(cls, **arguments)
    wanted = steps(right, prepare(right, uncompiled), half, batches(lengths, rank))
    with watching() as seen:
        found = steps(model, prepare(model, compile or packpass_compile()), half, batches(lengths, rank))
        for want in wanted:
            have = next(found)
            seen()
            agree(have.loss, want.loss, "loss", rounding)
            assert want.gradients.keys() == have.gradients.keys()
            assert want.gradients
            for name, gradient in want.gradients.items():
                agree(have.gradients[name], gradient, name, rounding)
        return seen()
