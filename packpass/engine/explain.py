"""``packpass.explain``: run a model once and say what packpass did with it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from packpass import _compat
from packpass.decisions.records import collecting, record
from packpass.engine.compile import check_keywords, compile_afresh, uncompiled
from packpass.reports.report import Report


def explain(model: Callable[..., Any], **compile_kwargs: Any) -> Callable[..., Report]:
    """``packpass.explain(model, **compile_kwargs)(*args, **kwargs)`` runs ``model`` once and returns a :class:`Report`.

    The call compiles afresh, beside whatever the user has compiled already, and leaves that alone; what the model
    returned is ``report.result``. Mutations of the arguments are the model's own and stay. Exceptions of the model,
    and refusals under ``on_refusal="raise"``, propagate. ``compile_kwargs`` are those of ``torch.compile`` (without
    ``backend``).
    """
    check_keywords("packpass.explain", compile_kwargs)
    if not callable(model):
        raise TypeError(f"packpass.explain takes a callable, got {type(model).__name__}: {model!r}")

    def run(*args: Any, **kwargs: Any) -> Report:
        from packpass.capture import GROUPS
        from packpass.engine.backend import Backend
        from packpass.engine.missing import nothing_seen

        report = Report(f"packpass.explain({model_name(model)})")
        compiled = compile_afresh(model, Backend(), compile_kwargs)
        breaks = dict(_compat.dynamo_counters("graph_break"))
        started = time.perf_counter()
        with collecting(report):
            report.result = compiled(*args, **kwargs)
            missing = nothing_seen(report, {group.name: group for group in GROUPS}, model_name(model))
            if missing is not None:
                record(missing)
        report.compile_seconds = time.perf_counter() - started
        report.graph_break_reasons = new_graph_breaks(breaks)
        report.graph_breaks = len(report.graph_break_reasons)
        return report

    return run


def new_graph_breaks(before: dict[str, int]) -> list[str]:
    """Dynamo's reasons for the graph breaks since ``before`` (a copy of its counter), one entry per break."""
    now = _compat.dynamo_counters("graph_break")
    return [reason for reason, times in now.items() for _ in range(times - before.get(reason, 0))]


def model_name(model: Any) -> str:
    """How the user would call the model: a function's qualified name or a module's class."""
    model = uncompiled(model)
    return getattr(model, "__qualname__", None) or type(model).__qualname__
