"""What the capture tests share: inputs, a backend that records, and the comparison with eager."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, fx
from torch._dynamo import config as dynamo_config
from torch._dynamo.utils import counters

import packpass
from packpass._options import Options
from packpass.capture import Mode, frame_state
from packpass.decisions.records import collecting
from packpass.engine.backend import Backend
from packpass.engine.copies import copy_graph
from packpass.reports.report import Report

TOTAL = 160
Fn = Callable[..., Any]


def boundaries(docs: int, least: int = 0, dtype: torch.dtype = torch.int64) -> Tensor:
    """``docs + 1`` boundaries; documents have ``least`` to 3 tokens, the second has ``least``, the row has a tail."""
    lengths = torch.randint(least, 4, (docs,), generator=torch.Generator().manual_seed(docs))
    lengths[1:2] = least
    return torch.cat((torch.zeros(1, dtype=torch.int64), lengths.cumsum(0))).to(dtype)


def row(grad: bool = False) -> Tensor:
    """``[2, TOTAL]`` small multiples of 1/4: sums and products are exact."""
    x = torch.randint(-20, 20, (2, TOTAL), generator=torch.Generator().manual_seed(3)).float() / 4
    return x.requires_grad_(grad)


def no_rule(part: Tensor, dim: int) -> Tensor:
    """An operation along documents that no pass has a rule for: a loop around it stays a loop."""
    return torch.fft.fftshift(part, dim)


class Recorder(Backend):
    """packpass, keeping what it was given: graphs as captured, and what capture was set to meanwhile."""

    def __init__(self) -> None:
        self.graphs: list[fx.GraphModule] = []
        self.modes: list[Mode] = []
        self.restarts: list[int] = []
        self.scalars: list[bool] = []

    def __call__(self, gm: fx.GraphModule, example_inputs: Any, **kwargs: Any) -> Any:
        state = frame_state(Options())
        self.graphs.append(copy_graph(gm))
        self.modes.append(state.mode)
        self.restarts.append(state.restarts)
        self.scalars.append(dynamo_config.capture_scalar_outputs)
        return super().__call__(gm, example_inputs, **kwargs)


def compiled(fn: Fn, inner: str = "eager", backend: Any = None, fullgraph: bool = False, **options: Any) -> Any:
    """``fn`` through packpass, from scratch; keywords are packpass options."""
    torch._dynamo.reset()
    counters.clear()
    settings = {"packpass.inner_backend": inner, **{f"packpass.{k}": v for k, v in options.items()}}
    return torch.compile(fn, backend=backend or packpass.backend, fullgraph=fullgraph, options=settings)


def graphs() -> int:
    """Graphs compiled since the last `compiled`."""
    return int(counters["stats"]["unique_graphs"])


def flat(value: Any) -> list[Any]:
    return [leaf for item in value for leaf in flat(item)] if isinstance(value, (tuple, list)) else [value]


def equal(want: Any, got: Any) -> None:
    """Bit for bit, types, shapes and dtypes included."""
    wants, gots = flat(want), flat(got)
    assert [type(w) for w in wants] == [type(g) for g in gots]
    for w, g in zip(wants, gots, strict=True):
        if isinstance(w, Tensor):
            assert w.shape == g.shape
            assert w.dtype == g.dtype
            assert torch.equal(w, g), f"eager\n{w}\ncompiled\n{g}"
        else:
            assert w == g


def hold(fn: Fn, compiled_fn: Fn, sizes: Iterable[int], least: int = 0, wrap: Fn | None = None) -> None:
    """Results, changed inputs and gradients of ``fn(x, cu)`` equal eager's for every number of documents."""
    for docs in sizes:
        outcomes = []
        for call in (fn, compiled_fn):
            leaf = row(grad=True)
            x, cu = leaf.clone(), boundaries(docs, least)
            out = call(x, cu if wrap is None else wrap(cu))
            tensors = [t for t in flat(out) if isinstance(t, Tensor) and t.requires_grad]
            if tensors:
                weights = [torch.arange(float(t.numel())).reshape(t.shape) % 7 - 3 for t in tensors]
                torch.stack([(t * w).sum() for t, w in zip(tensors, weights, strict=True)]).sum().backward()
            gradient = torch.zeros(0) if leaf.grad is None else leaf.grad
            outcomes.append([v.detach() if isinstance(v, Tensor) else v for v in (*flat(out), x, gradient)])
        equal(*outcomes)


def reported(fn: Fn, *args: Any, **options: Any) -> Report:
    """The report of one compile and call from scratch; the result is ``report.result``."""
    report = Report()
    call = compiled(fn, **options)
    with collecting(report):
        report.result = call(*args)
    return report
