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
            print(f"{entry.name:16}{entry.title}")
        return 0
    unknown = [name for name in arguments.case if name not in known]
    if unknown:
        print(f"no case {', '.join(unknown)}; the cases are {', '.join(known)}", file=sys.stderr)
        return 2
    ctx = Context(arguments.device, arguments.quick, arguments.full)
    return _measure([known[name] for name in arguments.case or known], ctx, arguments.out)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m perf", description=__doc__)
    parser.add_argument("--case", nargs="+", default=[], metavar="NAME", help="only these cases (see --list)")
    parser.add_argument("--list", action="store_true", help="list the cases and stop")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--quick", action="store_true", help="smaller and fewer: to try everything out, not to measure")
    parser.add_argument("--full", action="store_true", help="sweep further than the report does (minutes per case)")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("perf/results"), help="default: perf/results")
    return parser


def _environment() -> dict[str, object]:
    from packpass.measuring.compare import environment

    kept = all(os.environ.get(name) == value for name, value in KEEP_FREED_MEMORY.items())
    return {**environment(), "allocator": "keeps freed memory" if kept else "as the system has it"}


def _measure(chosen: Sequence[Case], ctx: Context, out: pathlib.Path) -> int:
    import torch

    from packpass.measuring.compare import warm_up
    from packpass.measuring.variants import first_line
    from perf.render import case_text, results_page, summary

    if ctx.device == "cuda" and not torch.cuda.is_available():
        print("--device cuda: torch finds no CUDA device here", file=sys.stderr)
        return 2
    out.mkdir(parents=True, exist_ok=True)
    warm_up(ctx.device, "inductor")
    results = []
    for entry in chosen:
        print(f"{entry.name}: {entry.title}", file=sys.stderr, flush=True)
        result = CaseResult(entry.name, entry.title)
        started = time.perf_counter()
        try:
            entry.run(ctx, result)
        except Exception as error:
            import traceback

            traceback.print_exc()
            result.error = first_line(error)
        result.seconds = time.perf_counter() - started
        results.append(result)
        print(case_text(result), flush=True)
        data = {"environment": _environment(), "quick": ctx.quick, **result.to_dict()}
        (out / f"{entry.name}.json").write_text(json.dumps(data, indent=2, default=str) + "\n", encoding="utf-8")
    (out / "report.html").write_text(results_page(results, _environment()), encoding="utf-8")
    print(summary(results))
    print(f"wrote {out / 'report.html'} and one JSON file per case", file=sys.stderr)
    return 1 if any(result.error or result.wrong for result in results) else 0


def _keep_freed_memory() -> None:
    """Start again with an allocator that keeps freed memory; it reads its settings at start-up only."""
    if sys.platform == "linux" and not any(name in os.environ for name in KEEP_FREED_MEMORY):
        os.execve(sys.executable, [sys.executable, "-m", "perf", *sys.argv[1:]], {**os.environ, **KEEP_FREED_MEMORY})


if __name__ == "__main__":
    _keep_freed_memory()
    sys.exit(main())
