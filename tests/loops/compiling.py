"""Compile a registered program through packpass and hold it against eager, over a sequence of input sizes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

import packpass

from .harness import Program, Shape, build, compare, outcome

RULE = "vectorize_segments"
EAGER: dict[str, Any] = {"options": {"packpass.inner_backend": "eager"}}


def fresh() -> None:
    """Forget every compiled function and every counter."""
    torch._dynamo.reset()
    counters.clear()


def compiled(prog: Program, inner: str = "eager", device: str = "cpu", **options: Any) -> Callable[..., Any]:
    """A fresh instance of the program, compiled with the given inner backend."""
    target = prog.instance(device)
    settings = {"packpass.inner_backend": inner, **options}
    if isinstance(target, nn.Module):
        target.compile(backend=packpass.backend, options=settings)
        return target
    return torch.compile(target, backend=packpass.backend, options=settings)


def graphs() -> int:
    """Graphs compiled since :func:`fresh`."""
    return int(counters["stats"]["unique_graphs"])


def hold_against_eager(
    prog: Program,
    fn: Callable[..., Any],
    shapes: Iterable[Shape],
    *,
    grad: bool = True,
    exact: bool | None = None,
    device: str = "cpu",
    eager: Callable[..., Any] | None = None,
) -> None:
    """Raise ``AssertionError`` naming the size at which the compiled program does anything else than eager.

    ``eager``: the program that has seen the same calls as ``fn``, if that keeps something between calls.
    """
    eager = prog.instance(device) if eager is None else eager
    before: list[Shape] = []
    for shape in shapes:
        before.append(shape)
        want = outcome(eager, build(prog, shape, grad=grad, device=device), prog.observe)
        try:
            got = outcome(fn, build(prog, shape, grad=grad, device=device), prog.observe)
        except Exception as error:
            if _stock_fails(prog, before, grad, type(error), device):
                pytest.skip(f"torch.compile itself raises {type(error).__name__} for {prog} at {shape} on this torch")
            raise AssertionError(f"{prog} at {shape}: eager runs, compiled raises {type(error).__name__}") from error
        try:
            compare(want, got, prog.exact if exact is None else exact)
        except AssertionError as error:
            raise AssertionError(f"{prog} at {shape}: {error}") from None


def _stock_fails(
    prog: Program, shapes: Iterable[Shape], grad: bool, kind: type[Exception], device: str = "cpu"
) -> bool:
    """Does torch.compile without packpass raise the same in these calls, one after the other?

    With no limit of recompiles: stock gets there later, or runs eagerly before, because it compiles more often.
    """
    torch._dynamo.reset()
    stock = torch.compile(prog.instance(device), backend="eager")
    try:
        with torch._dynamo.config.patch(recompile_limit=64):
            for shape in shapes:
                outcome(stock, build(prog, shape, grad=grad, device=device), prog.observe)
    except kind:
        return True
    except Exception:
        return False
    return False


def explained(prog: Program, shape: Shape | None = None) -> packpass.Report:
    """The report of one run from scratch (the inner backend is eager)."""
    fresh()
    call = build(prog, shape or prog.inputs()[0])
    report: packpass.Report = packpass.explain(prog.instance(), options={"packpass.inner_backend": "eager"})(*call.args)
    if prog.observe is not None:
        prog.observe()
    return report


def located(prog: Program, location: str) -> bool:
    """Whether ``file.py:123`` lies inside the program (or inside a helper that it names)."""
    file, _, line = location.rpartition(":")
    return any(
        os.path.basename(file) == Path(source).name and first <= int(line) <= last
        for source, first, last in prog.spans()
    )
