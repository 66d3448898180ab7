"""``python -m tests.matrix``: what works on which torch and which Python.

Makes an environment per cell outside the repository (cached in $PACKPASS_MATRIX_DIR, else in packpass/matrix under
$XDG_CACHE_HOME or ~/.cache), runs the canaries of doctor, every loop and shift program of the tests with the eager
inner backend, and the tests of Triton code in each, and compares every program with the everyday environment. Exit
status 1 means: a program is wrong, fails or is lost in an environment that could be made; one that could not is
reported.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Sequence

from tests.matrix import environments, judge, readme, tier
from tests.matrix.cells import CELLS, FULL, REFERENCE, Cell
from tests.matrix.environments import Environment
from tests.matrix.steps import ROOT, say
from tests.matrix.verdicts import WHOLE, Share

RESULTS = ROOT / "perf" / "results" / "matrix"


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parser().parse_args(argv)
    if arguments.list:
        return _list()
    if arguments.readme:
        return _readme(arguments.out)
    if arguments.show:
        saved = [load(arguments.out / f"{cell}.json") for cell in arguments.cells or CELLS]
        return _show([result for result in saved if result is not None])
    cells = list(dict.fromkeys(arguments.cells or (FULL if arguments.full else CELLS)))
    if not arguments.full and REFERENCE not in cells:
        cells.insert(0, REFERENCE)
    made = environments.make(cells, arguments.setup_minutes * 60)
    if arguments.make:
        return _say_what_is_missing(made)
    if arguments.full:
        return _full(made, arguments.jobs, arguments.out)
    return _short(made, arguments.jobs, arguments.out, arguments.one_of)


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(
        prog="python -m tests.matrix", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    out.add_argument("cells", nargs="*", type=_cell, metavar="TORCH-pyPYTHON", help="only these; see --list")
    out.add_argument("--full", action="store_true", help="the whole suite (not slow) instead of the short tier")
    out.add_argument("--make", action="store_true", help="make the environments and stop")
    out.add_argument("--show", action="store_true", help="print the tables of the last results again and stop")
    out.add_argument("--list", action="store_true", help="list the cells and which have an environment, and stop")
    out.add_argument(
        "--readme", action="store_true", help="write the versions table of README.md from the last results"
    )
    out.add_argument("--jobs", type=int, default=2, metavar="N", help="processes per cell, default 2")
    out.add_argument(
        "--setup-minutes", type=float, default=60, metavar="N", help="most time to make environments in, default 60"
    )
    out.add_argument(
        "--one-of",
        type=_count,
        default=1,
        metavar="N",
        help="outside the reference one of every N programs, others in each cell; default 1, all",
    )
    out.add_argument("--out", type=pathlib.Path, default=RESULTS, help="where results go, default perf/results/matrix")
    return out


def _cell(text: str) -> Cell:
    try:
        return Cell.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 on")
    return int(text)


def _list() -> int:
    print(f"environments in {environments.cache()}")
    for cell in CELLS:
        env = environments.own(cell) or environments.finished(cell)
        notes = ["made" if env else "not made"]
        notes += ["the reference"] if cell == REFERENCE else []
        notes += ["whole suite with --full"] if cell in FULL else []
        print(f"{cell!s:15}{', '.join(notes)}")
    return 0


def _say_what_is_missing(made: environments.Made) -> int:
    for cell, env in made.items():
        if isinstance(env, str):
            print(f"{cell}: not made: {env}")
    return 0


# === Running =================================================================================================


def _short(made: environments.Made, jobs: int, out: pathlib.Path, one_of: int) -> int:
    results = []
    for number, (cell, env) in enumerate(made.items()):
        if isinstance(env, Environment):
            share = WHOLE if cell == REFERENCE else Share(number % one_of, one_of)
            results.append(tier.short(env, jobs, source(), share))
        else:
            results.append(tier.Result(str(cell), unavailable=env))
        _save(out / f"{cell}.json", results[-1])
    return _show(results)


def _show(results: Sequence[tier.Result]) -> int:
    """Tables of the short tier; the last line counts what passed and failed."""
    judgements = judged(results)
    if judgements:
        print(f"\n{judge.details(judgements)}\n\n{judge.table(judgements)}")
    _say_what_did_not_run(results)
    failed = sum(len(one.failed) for one in judgements)
    print(f"{sum(one.passed for one in judgements)} passed, {failed} failed")
    return 1 if failed else 0


def _say_what_did_not_run(results: Sequence[tier.Result]) -> None:
    for result in results:
        if result.unavailable:
            print(f"{result.cell}: not run: {result.unavailable}")


def judged(results: Sequence[tier.Result]) -> list[judge.Judgement]:
    """Every cell that ran, against the reference if that ran."""
    ran = [result for result in results if not result.unavailable]
    reference = next((result for result in ran if result.cell == str(REFERENCE)), None)
    return [judge.judge(result, reference) for result in ran]


def _full(made: environments.Made, jobs: int, out: pathlib.Path) -> int:
    results = []
    for cell, env in made.items():
        result = tier.Result(str(cell), source=source())
        if isinstance(env, Environment):
            result.suite = tier.suite(env, jobs)
        else:
            result.unavailable = env
        results.append(result)
        _save(out / f"full-{cell}.json", result)
    print(f"\n{judge.suite_table(results)}")
    _say_what_did_not_run(results)
    suites = [result.suite for result in results if result.suite]
    failed = sum(len(tests.failed) + bool(tests.problem) for tests in suites)
    print(f"{sum(tests.passed for tests in suites)} passed, {failed} failed")
    return 1 if failed else 0


def source() -> str:
    """Which state of the repository is being looked at."""
    git = shutil.which("git")
    if git is None:
        return ""
    done = subprocess.run(
        [git, "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    return done.stdout.strip()


# === Results =================================================================================================


def _save(path: pathlib.Path, result: tier.Result) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(result.to_json() + "\n", encoding="utf-8")


def load(path: pathlib.Path) -> tier.Result | None:
    try:
        return tier.Result.from_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        say(path.stem, f"cannot be read, run it again: {error}")
        return None


def _readme(out: pathlib.Path) -> int:
    results = []
    for cell in CELLS:
        result, whole = load(out / f"{cell}.json"), load(out / f"full-{cell}.json")
        if result is not None:
            result.suite = whole.suite if whole else None
            results.append(result)
    ran = judged(results)
    if not ran:
        print(f"no results in {out}: run `make test-matrix` first", file=sys.stderr)
        return 1
    parts = [one.result.cell for one in ran if one.result.share != WHOLE]
    if parts:
        print(f"only a share of the programs ran: run {', '.join(parts)} without --one-of", file=sys.stderr)
        return 1
    states = {one.result.source for one in ran}
    if len(states) > 1:
        print(
            f"these results are about different states of the repository: {', '.join(sorted(states))}", file=sys.stderr
        )
    missing = {result.cell: result.unavailable for result in results if result.unavailable}
    changed = readme.write(ROOT / "README.md", readme.versions(ran, missing))
    print("README.md: the versions table is new" if changed else "README.md: the versions table is as it was")
    return 0


if __name__ == "__main__":
    sys.exit(main())
