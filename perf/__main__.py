"""``python -m perf``: measure the cases, print tables, write JSON and one HTML page."""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import sys
import time
from collections.abc import Sequence

from perf.registry import Case, Context, cases
from perf.results import CaseResult
from perf.stored import Run, merged, read, write

DEFAULT_OUT = pathlib.Path("perf/results")
STORED = pathlib.Path("perf/measured")
"""Runs on machines that are not here, kept with the code."""
ALL = "all.json"
LIMITS = {"cpu": 450.0, "cuda": 400.0}
"""Seconds after which no further case is started: the last may still take some, and all shall be done in 10 minutes, on
a GPU in 8."""

# glibc gives a freed block of some MB back to the system and faults its pages in again at the next call: up to 4 ms
# for twelve outputs of 1 MB, on whichever of the compared ways the heap happens to lie badly. Keep freed memory
# instead, for all of them alike; training processes do so anyway after their first steps.
# These are the largest values that it takes; it ignores larger ones.
KEEP_FREED_MEMORY = {"MALLOC_TRIM_THRESHOLD_": str((1 << 31) - 1), "MALLOC_MMAP_THRESHOLD_": str(1 << 25)}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the chosen cases. Exit code 1 if a case failed or a result was wrong (a missed target is not an error)."""
    # The profiler of some torch builds prints a line per start and stop otherwise.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    arguments = _parser().parse_args(argv)

    known = cases()
    if arguments.list:
        for entry in known.values():
            told = "" if "cpu" in entry.devices else " (GPU only)"
            print(f"{entry.name:16}{entry.title}{told}" + (" (only with --case)" if entry.on_request else ""))
        return 0
    out = arguments.out or DEFAULT_OUT / ("cuda" if arguments.device == "cuda" else "")
    if arguments.merge is not None:
        return _merge(arguments.merge, out)
    unknown = [name for name in arguments.case if name not in known]
    if unknown:
        print(f"no case {', '.join(unknown)}; the cases are {', '.join(known)}", file=sys.stderr)
        return 2
    # Who asks for cases by name, or for more than the report measures, waits for them.
    asked = bool(arguments.case) or arguments.full
    usual = float("inf") if asked else LIMITS[arguments.device]
    limit = usual if arguments.limit is None else arguments.limit
    ctx = Context(arguments.device, arguments.quick, arguments.full)
    chosen = [known[name] for name in arguments.case or known if arguments.case or not known[name].on_request]
    return _measure([entry for entry in chosen if arguments.device in entry.devices], ctx, out, limit)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m perf", description=__doc__)
    parser.add_argument("--case", nargs="+", default=[], metavar="NAME", help="only these cases (see --list)")
    parser.add_argument("--list", action="store_true", help="list the cases and stop")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--quick", action="store_true", help="smaller and fewer: to try everything out, not to measure")
    parser.add_argument("--full", action="store_true", help="sweep further than the report does (minutes per case)")
    parser.add_argument(
        "--limit", type=float, metavar="SECONDS", help="start no further case after this (default: 450, on a GPU 400)"
    )
    parser.add_argument(
        "--merge",
        nargs="*",
        type=pathlib.Path,
        metavar="JSON",
        help="measure nothing: one page of the last run here and of runs elsewhere (default: perf/results/cuda, "
        f"{STORED}/*.json)",
    )
    parser.add_argument("--out", type=pathlib.Path, help="default: perf/results, on a GPU perf/results/cuda")
    return parser


def _environment() -> dict[str, object]:
    from packpass.measuring.compare import environment

    kept = all(os.environ.get(name) == value for name, value in KEEP_FREED_MEMORY.items())
    return {**environment(), "allocator": "keeps freed memory" if kept else "as the system has it"}


def _measure(chosen: Sequence[Case], ctx: Context, out: pathlib.Path, limit: float) -> int:
    import torch

    from packpass.measuring.compare import warm_up

    if ctx.device == "cuda" and not torch.cuda.is_available():
        print("--device cuda: torch finds no CUDA device here", file=sys.stderr)
        return 2
    out.mkdir(parents=True, exist_ok=True)
    begun = time.perf_counter()
    warm_up(ctx.device, "inductor")
    run = Run(ctx.device, _environment(), [], ctx.quick)
    for entry in chosen:
        if time.perf_counter() - begun > limit:
            late = CaseResult(entry.name, entry.title, notes=[f"not run: {limit:.0f} s were over (--limit)"])
            run.results.append(late)
            continue
        print(f"{entry.name}: {entry.title}", file=sys.stderr, flush=True)
        result = _measured(entry, ctx)
        run.results.append(result)
        data = {"environment": run.environment, "quick": ctx.quick, **result.to_dict()}
        (out / f"{entry.name}.json").write_text(json.dumps(data, indent=2, default=str) + "\n", encoding="utf-8")
        # After every case: what ends the run early leaves what was measured.
        write(run, out / ALL)
    return _show([run], out)


def _measured(entry: Case, ctx: Context) -> CaseResult:
    from packpass.measuring.variants import first_line

    result = CaseResult(entry.name, entry.title, data={"device": ctx.device})
    started = time.perf_counter()
    try:
        entry.run(ctx, result)
    except Exception as error:
        import traceback

        traceback.print_exc()
        result.error = first_line(error)
    result.seconds = time.perf_counter() - started
    print(f"  {result.seconds:.0f} s", file=sys.stderr, flush=True)
    return result


def _merge(others: Sequence[pathlib.Path], out: pathlib.Path) -> int:
    """One page of the runs in ``out`` and in ``others``."""
    found = list(others) or [path for path in (out / "cuda" / ALL, *sorted(STORED.glob("*.json"))) if path.exists()]
    try:
        runs = [read(path) for path in (out / ALL, *found) if path in found or path.exists()]
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    if not runs:
        print(f"nothing to merge: no {out / ALL}, and no other run", file=sys.stderr)
        return 2
    out.mkdir(parents=True, exist_ok=True)
    return _show(runs, out)


def _show(runs: Sequence[Run], out: pathlib.Path) -> int:
    from perf.render import results_page, results_text, summary

    results = merged(runs)
    (out / "report.html").write_text(results_page(results, [run.environment for run in runs]), encoding="utf-8")
    print(results_text(results))
    print(summary(results))
    print(f"wrote {out / 'report.html'}, one JSON file per case, and {ALL} with all of them", file=sys.stderr)
    return 1 if any(result.error or result.wrong for result in results) else 0


def _keep_freed_memory() -> None:
    """Start again with an allocator that keeps freed memory; it reads its settings at start-up only."""
    if sys.platform == "linux" and not any(name in os.environ for name in KEEP_FREED_MEMORY):
        os.execve(sys.executable, [sys.executable, "-m", "perf", *sys.argv[1:]], {**os.environ, **KEEP_FREED_MEMORY})


if __name__ == "__main__":
    _keep_freed_memory()
    sys.exit(main())
