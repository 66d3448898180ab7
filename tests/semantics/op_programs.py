"""Run the programs of `op_samples` through packpass and hold them against eager; as a command, print a table::

python -m tests.semantics.op_programs [--only NAME] [--part K/N] [--refused] [--samples N] [--mode shift]
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import json
import logging
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch._dynamo.utils import counters

import packpass
from packpass.decisions.records import collecting
from packpass.reports.report import Report

from . import op_modes
from .op_outcomes import UNINITIALISED, Outcome, difference, only_rounding, outcome
from .op_samples import SAMPLES, TOTAL, LeftOut, Making, OpProgram, _as_program, programs

RULE = "vectorize_segments"


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What became of one program.

    ``status``: "vectorised"; "refused" by ``code``; "left" without a word; "random" (draws numbers for every document
    in turn, so that it must stay a loop, and did); "wrong" or "raised" where eager runs.
    """

    name: str
    status: str
    code: str = ""
    reason: str = ""


# === Judging =================================================================================================


def draws(program: OpProgram) -> bool:
    """Do the results depend on the generator?"""
    layout = program.layouts[0]
    return any(
        difference(outcome(program.fn, program, layout, 3), outcome(program.fn, program, layout, s)) for s in (4, 5)
    )


def judge(program: OpProgram) -> Verdict:
    """Compile the program and compare it with eager on every layout."""
    torch._dynamo.reset()
    counters.clear()
    values = program.name.split("/")[0] not in UNINITIALISED
    report = Report(program.name)
    compiled = torch.compile(program.fn, backend=packpass.backend, options={"packpass.inner_backend": "eager"})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wants = [outcome(program.fn, program, layout) for layout in program.layouts]
        random = values and draws(program)
        for layout, want in zip(program.layouts, wants, strict=True):
            try:
                with collecting(report):
                    got = outcome(compiled, program, layout)
            except Exception as error:
                text = str(error).strip().splitlines() or [""]
                return Verdict(program.name, "raised", type(error).__name__, f"{layout}: {text[0]}")
            found = difference(want, got, values)
            if found and not _rounding(program, layout, want, got):
                return Verdict(program.name, "wrong", "", f"{layout}: {found}")
    return _status(program, report, random)


def _rounding(program: OpProgram, layout: tuple[int, ...], want: Outcome, got: Outcome) -> bool:
    """Is it eager in single precision that is further from the truth?"""
    try:
        return only_rounding(want, got, outcome(program.fn, program, layout, wide=True))
    except Exception:  # an op that takes no doubles
        return False


def _status(program: OpProgram, report: Report, random: bool) -> Verdict:
    refusals = [r for r in report.refusals if r.rule in (RULE, "capture")]
    if any(r.rule == RULE for r in report.rewrites) and not refusals:
        return Verdict(program.name, "vectorised")
    code, reason = (refusals[0].code, refusals[0].reason) if refusals else ("", "")
    if random:
        return Verdict(program.name, "random", code, reason)
    return Verdict(program.name, "refused" if refusals else "left", code, reason)


def judge_in(mode: str) -> tuple[Making, Callable[[Any], Verdict]]:
    """What makes and judges the programs of a mode: "loop", "shift" or "padded"."""
    if mode == "loop":
        return _as_program, judge
    make, found = {
        "shift": (op_modes.shift_program, op_modes.judge_shift),
        "padded": (op_modes.padded_program, op_modes.judge_padded),
    }[mode]

    def judged(program: Any) -> Verdict:
        return Verdict(program.name, **dataclasses.asdict(found(program)))

    return make, judged


# === The table ===============================================================================================


def table(verdicts: list[Verdict], left_out: list[LeftOut], refused: bool) -> str:
    """What was found, in lines."""
    counted = collections.Counter(v.status for v in verdicts)
    random = counted["random"]
    total = len(verdicts) - random - counted["mixes"]
    done = counted["vectorised"] + counted["rewritten"]
    ops = {v.name.rpartition("/")[0] for v in verdicts}
    lines = [
        f"{len(verdicts)} programs of {len(ops)} operators, rows of {TOTAL} slots",
        f"rewritten {done} of {total} ({100 * done / max(total, 1):.1f} %), "
        f"refused {counted['refused']}, left {counted['left']}, wrong {counted['wrong']}, raised {counted['raised']}; "
        f"{random} draw random numbers and are not counted, {counted['mixes']} mix slots and were left alone",
    ]
    lines += [
        f"  {v.status.upper()} {v.name}: {v.code} {v.reason}" for v in verdicts if v.status in ("wrong", "raised")
    ]
    codes = collections.Counter(v.code for v in verdicts if v.status == "refused")
    lines += [f"  refused {code}: {n}" for code, n in codes.most_common()]
    if refused:
        lines += [f"  {v.status} {v.name}: [{v.code}] {v.reason}" for v in verdicts if v.status in ("refused", "left")]
    lines.append(f"left out: {len(left_out)} operators without a program")
    reasons = collections.defaultdict(list)
    for item in left_out:
        reasons[item.reason].append(item.name)
    lines += [f"  {reason}: {', '.join(names)}" for reason, names in sorted(reasons.items())]
    return "\n".join(lines)


def part_of(text: str) -> tuple[int, int]:
    """ "2/5" as (2, 5)."""
    k, n = (int(v) for v in text.split("/"))
    if not 1 <= k <= n:
        raise argparse.ArgumentTypeError(f"--part is K/N with 1 <= K <= N, not {text}")
    return k, n


def main(argv: list[str]) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.semantics.op_programs", description=__doc__)
    parser.add_argument("--only", default="", help="operators whose name contains this")
    parser.add_argument("--part", type=part_of, default=(1, 1), help="the K-th of N parts, as K/N")
    parser.add_argument(
        "--mode", choices=("loop", "shift", "padded"), default="loop",
        help="document by document, behind a declared row's operator, or between the attentions of a padded model",
    )  # fmt: skip
    parser.add_argument("--refused", action="store_true", help="say why, for every program that stayed a loop")
    parser.add_argument("--samples", type=int, default=SAMPLES, help="programs per operator")
    parser.add_argument(
        "--json", type=argparse.FileType("a"), help="append every verdict to this file as it is reached"
    )
    parser.add_argument("--why", action="store_true", help="log what was tried")
    parser.add_argument("--source", action="store_true", help="print the programs")
    given = parser.parse_args(argv)
    if given.why:
        logging.basicConfig(format="%(name)s: %(message)s")
        logging.getLogger("packpass").setLevel(logging.DEBUG)
    else:
        logging.disable(logging.ERROR)  # torch logs fakes that fail; that they did is the verdict
    verdicts: list[Verdict] = []
    left_out: list[LeftOut] = []
    make, judged = judge_in(given.mode)
    for program in programs(given.only, given.part, given.samples, make):
        if isinstance(program, LeftOut):
            left_out.append(program)
            continue
        if given.source and given.mode == "loop":
            print(f"# {program.name}\n{program.source}")
        verdicts.append(judged(program))
        if given.json:
            print(json.dumps(dataclasses.asdict(verdicts[-1])), file=given.json, flush=True)
    print(table(verdicts, left_out, given.refused))
    return 1 if any(v.status in ("wrong", "raised") for v in verdicts) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
