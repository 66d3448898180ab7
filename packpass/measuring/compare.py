"""``packpass.compare``: a model eager, through stock torch.compile and through packpass, side by side."""

from __future__ import annotations

import contextlib
import functools
import json
import os
from collections.abc import Callable, Mapping
from typing import Any

import torch

from packpass import _compat
from packpass._options import PREFIX, Options
from packpass._passes import names_of_tiers
from packpass.decisions.records import Rewrite, collecting
from packpass.engine.backend import Backend
from packpass.engine.compile import check_keywords, compile_afresh, fresh_copy, is_compiled, uncompiled
from packpass.engine.explain import model_name
from packpass.measuring.measure import interleave, same_randomness
from packpass.measuring.trees import difference, tensors
from packpass.measuring.variants import Row, Workload, examine, examine_compiled
from packpass.reports.report import Report

EAGER, STOCK, PACKPASS = "eager", "torch.compile", "packpass"


class Comparison:
    """The figures of :func:`compare`: one :class:`Row` per variant, eager first.

    ``report`` is packpass's own report of the compile, ``notes`` says what a reader must know about the figures.
    """

    def __init__(self, title: str, work: str, rows: list[Row], report: Report, notes: list[str]) -> None:
        self.title, self.work, self.rows, self.report, self.notes = title, work, rows, report, notes

    def __getitem__(self, name: str) -> Row:
        for row in self.rows:
            if row.name == name:
                return row
        raise KeyError(f"no variant {name!r}; there are {', '.join(row.name for row in self.rows)}")

    @property
    def ok(self) -> bool:
        """Whether packpass ran and agreed with eager."""
        return self[PACKPASS].ok

    def speedup(self, name: str = PACKPASS, over: str = EAGER) -> float | None:
        """How many times faster ``name`` is than ``over``; None where either is missing or wrong."""
        one, other = self[over].timing, self[name].timing
        return one.ratio / other.ratio if one and other else None

    def to_dict(self) -> dict[str, Any]:
        """The comparison as plain data, ready for JSON."""
        return {
            "title": self.title,
            "work": self.work,
            "environment": environment(),
            "rows": [{**row.to_dict(), "speedup": self.speedup(row.name)} for row in self.rows],
            "notes": self.notes,
            "report": self.report.to_dict(),
        }

    def to_json(self, indent: int | None = 2) -> str:
        """The comparison as JSON text."""
        return json.dumps(self.to_dict(), indent=indent, default=str)

    def to_html(self, path: str | os.PathLike[str]) -> None:
        """Write one self-contained HTML page: table, plot (where matplotlib is installed), packpass's report."""
        from packpass.measuring.compare_render import comparison_page

        with open(path, "w", encoding="utf-8") as file:
            file.write(comparison_page(self))

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Write a bar chart; the format follows the suffix (.png, .svg, .pdf). Needs matplotlib."""
        from packpass.measuring.compare_render import comparison_figure

        comparison_figure(self).savefig(path, bbox_inches="tight")

    def __str__(self) -> str:
        from packpass.measuring.compare_render import comparison_text

        return comparison_text(self)

    def __repr__(self) -> str:
        gain = self.speedup()
        return f"<packpass.Comparison of {self.title}: " + (f"{gain:.2f}x eager>" if gain else "no speed-up to show>")


def compare(
    model: Callable[..., Any], *, backward: bool | None = None, budget: float = 6.0, **compile_kwargs: Any
) -> Callable[..., Comparison]:
    """``packpass.compare(model, **compile_kwargs)(*args, **kwargs)`` measures ``model`` three ways.

    Eager, stock ``torch.compile`` (Inductor) and packpass run on copies of the same arguments from the same random
    state. Correctness comes first: results, changed arguments, gradients and the module's buffers are compared with
    eager's, and a variant that differs beyond tolerance, or raises, is shown as such, without a speed-up. Times are
    medians over interleaved rounds and include the backward where an input or a parameter requires a gradient.

    Args:
        model: a function, method or module; it may be compiled already (the comparison compiles afresh).
        backward: whether to run the backward; by default wherever there is something to differentiate.
        budget: wall time in seconds for the timed rounds of all variants together.
        compile_kwargs: those of ``torch.compile`` (without ``backend``); ``packpass.*`` options go to packpass only.
    """
    check_keywords("packpass.compare", compile_kwargs)
    if not callable(model):
        raise TypeError(f"packpass.compare takes a callable, got {type(model).__name__}: {model!r}")

    def run(*args: Any, **kwargs: Any) -> Comparison:
        return _compare(model, Workload(uncompiled(model), args, kwargs, backward), budget, compile_kwargs)

    return run


def _compare(model: Any, workload: Workload, budget: float, compile_kwargs: dict[str, Any]) -> Comparison:
    notes: list[str] = []
    report = Report(f"packpass on {model_name(model)}")
    calls: dict[str, Callable[..., Any] | None] = {EAGER: _eager(model)}
    rows = {EAGER: examine(EAGER, workload, _eager(model))}
    if rows[EAGER].ok:
        expected = workload.observe(_eager(model))
        with contextlib.ExitStack() as stack:
            if _draws_random_numbers(workload, _eager(model)):
                stack.enter_context(_compat.eager_random_numbers())
                notes.append(
                    "every variant draws random numbers from eager's generator, so that results can be compared"
                )
            warm_up(_device(workload), Options.from_dict(compile_kwargs.get("options"))[0].inner_backend)
            # packpass before stock: a frame that stock torch.compile has given up on is offered to no other backend.
            with collecting(report):
                rows[PACKPASS], calls[PACKPASS] = examine_compiled(
                    PACKPASS, workload, lambda: compile_afresh(model, Backend(), compile_kwargs), expected, rows[EAGER]
                )
            fixed = _fixes(report)
            if fixed and calls[PACKPASS] is not None and rows[PACKPASS].error is None:
                notes.append(
                    _judge_by_fixed_code(model, workload, compile_kwargs, rows[PACKPASS], calls[PACKPASS], fixed)
                )
            stock = stock_keywords(compile_kwargs)
            rows[STOCK], calls[STOCK] = examine_compiled(
                STOCK, workload, lambda: compile_afresh(model, "inductor", stock), expected, rows[EAGER]
            )
        right = {name: call for name, call in calls.items() if call is not None and rows[name].ok}
        _time(workload, right, rows, budget, expected)
    else:
        notes.append("the model raises without any compiler, so there is nothing to compare with")
        rows |= {name: Row(name, error="not run: eager raises") for name in (STOCK, PACKPASS)}
    report.graph_break_reasons = rows[PACKPASS].graph_break_reasons or []
    report.graph_breaks = len(report.graph_break_reasons)
    report.compile_seconds = rows[PACKPASS].first_call
    work = f"{'forward + backward' if workload.backward else 'forward'} on {_device(workload)}"
    return Comparison(model_name(model), work, [rows[name] for name in (EAGER, STOCK, PACKPASS)], report, notes)


def _fixes(report: Report) -> list[Rewrite]:
    """Rewrites that change results on purpose, be it only where nobody should look: at padding."""
    names = names_of_tiers("fix", "numerics")
    return [r for r in report.rewrites if r.rule in names]


def _judge_by_fixed_code(
    model: Any, workload: Workload, compile_kwargs: dict[str, Any], row: Row, call: Any, fixes: list[Rewrite]
) -> str:
    """Compare packpass with the rewritten code run by eager kernels; returns the note that says so."""
    options = {**(compile_kwargs.get("options") or {}), f"{PREFIX}inner_backend": "eager"}
    options = {key: value for key, value in options.items() if str(key).startswith(PREFIX)}
    keywords = {key: value for key, value in compile_kwargs.items() if key not in ("mode", "options")}
    expected = workload.observe(compile_afresh(model, Backend(), {**keywords, "options": options}))
    from_eager, row.difference = row.difference, difference(expected, workload.observe(call))
    where = ", ".join(dict.fromkeys(r.location for r in fixes))
    change = from_eager.largest if from_eager else 0.0
    shifts = [r for r in fixes if r.rule in names_of_tiers("fix")]
    made = f"made {len(shifts)} shift(s) respect documents" if shifts else "computes no padding"
    off = '"packpass.fix_shifts": "off"} leaves shifts alone' if shifts else '"packpass.eliminate_padding": False} does'
    return (
        f"packpass {made} ({where}), so its results differ from eager's on purpose (largest difference {change:.3g}); "
        f"they are compared with those of the rewritten code run by eager kernels. options={{{off}"
    )


def stock_keywords(compile_kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The keywords without ``packpass.*`` options, for stock torch.compile."""
    kept = dict(compile_kwargs)
    if kept.get("options") is not None:
        kept["options"] = {k: v for k, v in kept["options"].items() if not str(k).startswith(PREFIX)} or None
    return kept


def environment() -> dict[str, Any]:
    """What the figures were measured with."""
    import platform

    from packpass import __version__

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine()
    return {
        "packpass": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": device,
        "threads": torch.get_num_threads(),
    }


def _time(
    workload: Workload,
    calls: Mapping[str, Callable[..., Any]],
    rows: Mapping[str, Row],
    budget: float,
    expected: Mapping[str, Any],
) -> None:
    """Fill in the timings of the variants in ``calls``, the first being the reference."""
    if workload.changes_arguments(expected):
        ways: dict[str, Callable[..., Any]] = {
            name: functools.partial(workload.step, call) for name, call in calls.items()
        }
        prepare = dict.fromkeys(calls, workload.arguments)
    else:
        arguments = workload.arguments()
        ways = {name: functools.partial(workload.step, call, arguments) for name, call in calls.items()}
        prepare = {}
    with workload.same_state(), same_randomness():
        timings = interleave(ways, prepare=prepare, budget=budget)
    for name, timing in timings.items():
        rows[name].timing = timing


def _eager(model: Any) -> Callable[..., Any]:
    """The model without any compiler, parts that the user compiled included."""
    plain = fresh_copy(model)
    module = getattr(plain, "__self__", plain)
    parts = module.modules() if isinstance(module, torch.nn.Module) else ()
    if not any(is_compiled(part) or is_compiled(part.forward) for part in parts):
        return plain

    @functools.wraps(plain)
    def eager(*args: Any, **kwargs: Any) -> Any:
        with torch.compiler.set_stance("force_eager"):
            return plain(*args, **kwargs)

    return eager


def _draws_random_numbers(workload: Workload, call: Callable[..., Any]) -> bool:
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices), workload.same_state():
        before = [torch.get_rng_state(), *(torch.cuda.get_rng_state(d) for d in devices)]
        workload.step(call, workload.arguments())
        after = [torch.get_rng_state(), *(torch.cuda.get_rng_state(d) for d in devices)]
    return any(not torch.equal(one, other) for one, other in zip(before, after, strict=True))


def _device(workload: Workload) -> str:
    found = [t.device.type for _, t in tensors(workload.arguments())] + [p.device.type for _, p in workload.parameters]
    return next((device for device in found if device != "cpu"), "cpu")


@functools.cache
def warm_up(device: str, inner_backend: str) -> None:
    """Pay once for what the first compile of a process pays, so that no variant is charged for it."""
    if inner_backend != "inductor":
        return
    for backend in ("inductor", Backend()):
        x = torch.zeros(8, device=device, requires_grad=True)
        torch.compile(lambda x: (x + 1) * x, backend=backend)(x).sum().backward()
