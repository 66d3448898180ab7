"""The command: workers that judge seeds; a line of JSON per slice, every failure printed with its program."""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import json
import logging
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .families import FAMILIES, family
from .found import Found

SLICE = 100
"""Seeds per line of the file: what is lost if a run is stopped."""


def worker(name: str, first: int, step: int, until: float, count: int) -> None:
    """Judge seeds ``first, first + step, ...``; print a line of JSON per slice and one per failure."""
    import torch

    from tests.quick import guards_without_a_stopwatch

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    with guards_without_a_stopwatch():
        judge_slices(name, family(name), first, step, until, count)


def judge_slices(name: str, judged: Callable[[int], Found], first: int, step: int, until: float, count: int) -> None:
    """The seeds in slices, until the time is up or all are judged."""
    seed, done = first, 0
    while time.time() < until and done < count:
        counted: collections.Counter[str] = collections.Counter()
        start = seed
        for _ in range(min(SLICE, count - done)):
            found = judged(seed)
            counted[found.status] += 1
            counted["rewritten"] += found.rewritten
            if found.status == "wrong":
                print(json.dumps({"family": name, "failed": seed, "text": found.text}), flush=True)
            seed += step
            done += 1
            if time.time() > until:
                break
        print(
            json.dumps({"family": name, "first": start, "step": step, "seeds": (seed - start) // step, **counted}),
            flush=True,
        )


def run(options: argparse.Namespace) -> int:
    """Start the workers, gather their lines, print the table."""
    until = time.time() + 60 * options.minutes
    # The workers of one family take seeds in turn; with several families, they go round.
    plan = [(name, k) for k in range(options.workers) for name in options.family]
    each = -(-options.count // options.workers)
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.fuzz", "--worker", name, str(options.seed + k), str(options.workers),
             str(until), str(each)],
            stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        for name, k in plan
    ]  # fmt: skip
    lines: list[dict[str, Any]] = []
    with concurrent.futures.ThreadPoolExecutor(len(running)) as readers:
        list(readers.map(lambda process: read(process, lines, options.json), running))
    ended = [p.wait() for p in running]
    print(summary(lines))
    return 1 if any("failed" in line for line in lines) or any(ended) else 0


def read(process: subprocess.Popen[str], lines: list[dict[str, Any]], file: Path | None) -> None:
    """Gather what one worker prints."""
    assert process.stdout is not None
    for text in process.stdout:
        if not text.startswith("{"):
            continue
        line = json.loads(text)
        lines.append(line)
        if file is not None:
            with file.open("a") as out:
                out.write(text)
        if "failed" in line:
            print(f"--- {line['family']}, seed {line['failed']}\n{line['text']}", flush=True)
        elif sys.stderr.isatty():
            print(f"\r{line['family']}: seed {line['first']} and on", end="", file=sys.stderr, flush=True)


def summary(lines: list[dict[str, Any]]) -> str:
    """Programs, rewritten ones and failures of each family."""
    from tabulate import tabulate

    table = []
    for name in FAMILIES:
        own = [line for line in lines if line["family"] == name and "failed" not in line]
        if not own:
            continue
        counted = collections.Counter[str]()
        for line in own:
            counted.update({k: v for k, v in line.items() if k not in ("family", "first", "step")})
        last = max(line["first"] + line["step"] * (line["seeds"] - 1) for line in own)
        programs = counted["right"] + counted["wrong"]
        seeds = f"{min(line['first'] for line in own)} to {last}"
        table.append([name, programs, counted["rewritten"], counted["wrong"], counted["undefined"], seeds])
    return tabulate(table, headers=["family", "programs", "rewritten", "wrong", "undefined in eager", "seeds"])


def main() -> int:
    """Parse the command line."""
    if sys.argv[1:2] == ["--worker"]:
        name, first, step, until, count = sys.argv[2:]
        worker(name, int(first), int(step), float(until), int(count))
        return 0
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=10**9, help="seeds per family")
    parser.add_argument("--workers", type=int, default=1, help="processes per family")
    parser.add_argument("--family", action="append", choices=FAMILIES, help="may be given several times; default: all")
    parser.add_argument("--json", type=Path, help="append a line per hundred seeds, and one per failure")
    parser.add_argument("--summary", type=Path, help="print the table of such a file, and run nothing")
    options = parser.parse_args()
    options.family = options.family or list(FAMILIES)
    if options.summary:
        print(summary([json.loads(line) for line in options.summary.read_text().splitlines()]))
        return 0
    return run(options)


if __name__ == "__main__":
    sys.exit(main())
