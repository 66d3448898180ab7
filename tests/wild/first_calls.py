"""``python -m tests.wild.first_calls [GROUP ...]``: first calls with Inductor behind both, in empty caches.

What `make test-wild` measures is tracing and passes alone (an eager inner backend). What people wait for is this: one
call, forward and backward, of the first batch, with the kernels written and compiled, packpass's and stock
``torch.compile``'s in turn. Seconds of the processor, compilers that torch starts included (one at a time).
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import logging
import os
import statistics
import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from tabulate import tabulate

from tests.wild import groups, measure
from tests.wild.case import CASES, Case, Program


def seconds() -> float:
    """Of the processor: this process, and the compilers that it waited for."""
    return sum(os.times()[:4])


def first_call(program: Program, compile_: Callable[[Program, str], Callable[..., Any]], backend: str) -> float:
    """One first call; in empty caches, if Inductor is behind it."""
    from torch._inductor.utils import fresh_cache

    torch._dynamo.reset()
    compiled, parameters = compile_(program, backend), measure.parameters_of(program)
    with fresh_cache():
        gc.collect()  # of what was compiled before: it would be charged to whoever's turn it is
        started = seconds()
        measure.step(compiled, program.batches[0], parameters, program.backward)
        return seconds() - started


def measured(case: Case) -> dict[str, object]:
    """Both first calls of one case, after both have been traced once: what torch imports counts for neither."""
    program = case.build()
    try:
        for compile_ in (measure.ours, measure.stock):
            first_call(program, compile_, "eager")
        return {
            "name": case.name,
            "ours": first_call(program, measure.ours, "inductor"),
            "stock": first_call(program, measure.stock, "inductor"),
        }
    except Exception as error:
        return {"name": case.name, "error": f"{type(error).__name__}: {str(error).strip()[:200]}"}


def worker(group: str) -> None:
    """All cases of one file, a line of JSON each."""
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    importlib.import_module(f"tests.wild.cases_{group}")
    torch.compile(lambda x: (x.sin() @ x).sum(), backend="inductor")(torch.randn(4, 4, requires_grad=True)).backward()
    for case in CASES.values():
        if case.group == group and not groups.missing(case):
            print("first: " + json.dumps(measured(case)), flush=True)


def run(group: str) -> list[dict[str, object]]:
    """One group in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(groups.packages.ROOT)}
    command = [sys.executable, "-m", "tests.wild.first_calls", "--worker", group]
    found: list[dict[str, object]] = []
    root = groups.packages.ROOT
    with subprocess.Popen(command, cwd=root, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("first: "):
                found.append(json.loads(line[7:]))
                print(f"  {found[-1]}", file=sys.stderr, flush=True)
    return found


def table(found: list[dict[str, object]]) -> str:
    """A line per case, and the medians of the cases whose loops are rewritten and of the others."""
    verdicts = {case.name: case.verdict.value for case in groups.cases()}
    rows, ratios = [], {}
    for one in found:
        if "error" in one:
            rows.append([one["name"], verdicts[str(one["name"])], "", "", str(one["error"])])
            continue
        ours, stock = float(str(one["ours"])), float(str(one["stock"]))
        ratios[str(one["name"])] = ours / stock
        rows.append([one["name"], verdicts[str(one["name"])], f"{ours:.1f}", f"{stock:.1f}", f"{ours / stock:.2f}x"])
    lines = [tabulate(rows, ["case", "loops", "packpass (s)", "stock (s)", "of stock"], disable_numparse=True), ""]
    for said in ("", *sorted(set(verdicts.values()))):
        some = [ratio for name, ratio in ratios.items() if said in ("", verdicts[name])]
        if some:
            lines.append(f"{said or 'all'}: {len(some)} cases, {statistics.median(some):.2f}x of stock in the median")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.wild.first_calls", description=__doc__)
    parser.add_argument("groups", nargs="*", help="files of cases, without `cases_`; all of them if none is named")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        worker(arguments.worker)
        return 0
    names = arguments.groups or sorted({case.group for case in groups.cases()})
    found = [one for name in names for one in run(name)]
    print(table(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
