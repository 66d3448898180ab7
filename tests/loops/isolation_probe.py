"""What stock torch.compile does with a few functions, as JSON: ``python -m tests.loops.isolation_probe MODE [NAME..]``.

MODE is ``plain`` (packpass is never imported), ``imported``, ``used`` (packpass compiled and ran loops before) or
``interleaved`` (packpass compiles the same function right before stock torch.compile does). The four must agree.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch._inductor.config as inductor_config
from torch import Tensor
from torch._dynamo.testing import EagerAndRecordGraphs
from torch._dynamo.utils import counters
from torch._inductor.utils import run_and_get_code


def device_bounds(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for i in range(len(cu) - 1):
        s, e = cu[i], cu[i + 1]
        seg = torch.roll(x[..., s:e], -1, -1)
        seg[..., -1:] = 0
        out[..., s:e] = seg
    return out


def item_bounds(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1], cu[1:]):
        out[:, s.item() : e.item()] = x[:, s.item() : e.item()].flip(-1)
    return out


def list_bounds(x: Tensor, cu: Tensor) -> Tensor:
    parts = []
    for seg in x.split(cu.diff().tolist(), -1):
        parts.append(seg * 2)
    return torch.cat(parts, -1)


def layers_and_rolls(x: Tensor, cu: Tensor) -> Tensor:
    for k in range(3):
        x = torch.roll(x, -1, -1) + k
        x = torch.where(x > 0, x, x.flip(0))
    return x * len(cu)


def iterates_boundaries(x: Tensor, cu: Tensor) -> Tensor:
    for c in cu:
        x = x + c
    for i, c in enumerate(cu[1:]):
        x = x * c + i
    return x


def appends(x: Tensor, cu: Tensor) -> Tensor:
    rows = []
    for row in x:
        rows.append(row.cumsum(0))
    total = 0
    for n in range(cu.shape[0]):
        total += n
    return torch.stack(rows) + total


FUNCTIONS: list[Callable[..., Tensor]] = [
    device_bounds, item_bounds, list_bounds, layers_and_rolls, iterates_boundaries, appends,
]  # fmt: skip
INDUCTOR = [layers_and_rolls, iterates_boundaries, appends, device_bounds]
SIZES = ((3, 24), (5, 40), (4, 31))


def _args(n: int, t: int) -> tuple[Tensor, Tensor]:
    x = torch.arange(2 * t, dtype=torch.float32).reshape(2, t) / 8
    inner = torch.arange(1, n) * (t // n)
    return x, torch.cat((torch.zeros(1), inner, torch.tensor([float(t)]))).int()


def _use_packpass(fn: Callable[..., Tensor], inner: str) -> None:
    import packpass

    compiled = torch.compile(fn, backend=packpass.backend, options={"packpass.inner_backend": inner})
    for n, t in SIZES:
        torch.testing.assert_close(compiled(*_args(n, t)), fn(*_args(n, t)))


def _fresh() -> None:
    torch._dynamo.reset()
    counters.clear()


def _dynamo(fn: Callable[..., Tensor], **options: Any) -> dict[str, Any]:
    """Graphs, graph breaks and results of stock Dynamo over several sizes."""
    recorder = EagerAndRecordGraphs()
    compiled = torch.compile(fn, backend=recorder, **options)
    results: list[Any] = []
    for n, t in SIZES:
        try:
            results.append(compiled(*_args(n, t)).sum().item())
        except Exception as error:
            results.append(type(error).__name__)
    return {
        "results": results,
        "graphs": [g.print_readable(print_output=False) for g in recorder.graphs],
        "breaks": dict(counters["graph_break"]),
        "stats": dict(counters["stats"]),
    }


def _generated(fn: Callable[..., Tensor], backend: str) -> dict[str, Any]:
    """The code of a backend and the result; the error if this torch has a bug there."""
    compiled = torch.compile(fn, backend=backend)
    try:
        with inductor_config.patch(force_disable_caches=True):
            result, code = run_and_get_code(compiled, *_args(3, 24))
    except Exception as error:
        return {"error": type(error).__name__}
    # the id in the code counts the compiles of the process
    code = [re.sub(r"# AOT ID: .*", "", text) for text in code]
    return {"code": code, "stats": dict(counters["stats"]), "sum": result.sum().item()}


def probe(mode: str, names: list[str]) -> dict[str, Any]:
    """Everything that must not depend on packpass."""
    seen: dict[str, Any] = {}
    functions = [fn for fn in FUNCTIONS if not names or fn.__name__ in names]
    if mode != "plain":
        import packpass

        assert packpass.backend is not None  # resolves the lazy attribute: the hooks are in
    if mode == "used":
        for fn in functions:
            _use_packpass(fn, "eager")
        _use_packpass(device_bounds, "inductor")
    for fn in functions:
        for label, options in {"": {}, ", fullgraph": {"fullgraph": True}, ", dynamic": {"dynamic": True}}.items():
            if mode == "interleaved":
                _fresh()
                _use_packpass(fn, "eager")
            _fresh()
            seen[fn.__name__ + label] = _dynamo(fn, **options)
    for fn in functions:  # scalar outputs switched on by the user: what fails today must fail the same way
        if mode == "interleaved":
            _fresh()
            _use_packpass(fn, "eager")
        _fresh()
        with torch._dynamo.config.patch(capture_scalar_outputs=True):
            seen[fn.__name__ + ", scalar outputs"] = _dynamo(fn)
    for backend in ("aot_eager", "inductor"):
        for fn in [fn for fn in functions if fn in INDUCTOR]:
            if mode == "interleaved":
                _fresh()
                _use_packpass(fn, "eager")
            _fresh()
            seen[f"{fn.__name__}, {backend}"] = _generated(fn, backend)
    seen["config"] = [
        torch._dynamo.config.capture_scalar_outputs,
        torch._dynamo.config.capture_dynamic_output_shape_ops,
        torch._dynamo.config.specialize_int,
        torch._dynamo.config.assume_static_by_default,
        str(torch._decomp.decomposition_table.get(torch.ops.aten.roll.default)).split(" at ")[0],
        str(torch._decomp.meta_table.get(torch.ops.aten.roll.default)).split(" at ")[0],
    ]
    return seen


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    print("PROBE" + json.dumps(probe(sys.argv[1], sys.argv[2:]), sort_keys=True))
