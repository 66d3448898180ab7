"""Random loop programs, compiled through packpass, against eager: forward, mutation and backward, bit for bit.

``python -m tests.loops.fuzz --minutes 5 --seed 0`` prints every program that differs, reduced by deleting lines.
``--backend eager`` runs stock Dynamo instead, to check the generator itself.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch

from tests.sources import defined

from . import compiling
from .generate import Generated, random_program
from .harness import Program, Shape, build, outcome

ORDERS = (
    (Shape(3, 24, "plain"), Shape(7, 61, "plain"), Shape(4, 30, "tail"), Shape(6, 33, "inner_empty")),
    (Shape(1, 9, "plain"), Shape(3, 26, "gap"), Shape(7, 40, "plain")),
    (Shape(5, 5, "ones"), Shape(2, 17, "lead_empty"), Shape(9, 50, "plain")),
    (Shape(6, 33, "inner_empty"), Shape(3, 22, "gap_empty"), Shape(4, 24, "plain")),
)
_CAT_ORDERS = tuple(tuple(s for s in order if s.kind in ("plain", "ones", "inner_empty")) for order in ORDERS)


def as_program(case: Generated, name: str) -> Program:
    """Compile the source text into a registered-style program."""
    target = defined(case.source, f"<{name}>", torch=torch)
    return Program(
        name=name, target=target, args=case.args, wrap=None, where=(), demand=False, must_refuse=False,
        refusal=False, why="", min_len=0, lead_empty=True, tail=case.tail, exact=True, mutates=case.mutates,
        depends=False, observe=None, shapes=None,
    )  # fmt: skip


def sizes(case: Generated, order: int) -> tuple[Shape, ...]:
    """The sequence of input sizes for a case."""
    return (ORDERS if case.tail else _CAT_ORDERS)[order % len(ORDERS)]


def defined_in_eager(case: Generated, order: int) -> bool:
    """Whether eager runs the program, forward and backward, at all its sizes."""
    try:
        prog = as_program(case, "defined")
        for shape in sizes(case, order):
            outcome(prog.target, build(prog, shape))
    except (RuntimeError, IndexError, ValueError, TypeError, NameError, UnboundLocalError, SyntaxError):
        return False
    return True


def check(case: Generated, order: int, name: str = "fuzz", backend: str | None = None) -> str:
    """Compare with eager; the text of the difference, or the empty string."""
    compiling.fresh()
    prog = as_program(case, name)
    fn: Callable[..., Any] = (
        compiling.compiled(prog) if backend is None else torch.compile(prog.instance(), backend=backend)
    )
    try:
        compiling.hold_against_eager(prog, fn, sizes(case, order))
    except AssertionError as error:
        cause = error.__cause__
        return str(error) + (f"\n{type(cause).__name__}: {str(cause)[:600]}" if cause else "")
    return ""


def was_rewritten(case: Generated, order: int) -> bool:
    """Whether packpass rewrote the loop at the first size."""
    prog = as_program(case, "report")
    return any(r.rule == compiling.RULE for r in compiling.explained(prog, sizes(case, order)[0]).rewrites)


def reduce(case: Generated, order: int, backend: str | None = None, seconds: float = 60.0) -> Generated:
    """Delete lines as long as eager still runs and the difference stays."""
    until = time.monotonic() + seconds
    k = 1
    lines = case.source.splitlines()
    while k < len(lines) - 1 and time.monotonic() < until:
        source = "\n".join([*lines[:k], *lines[k + 1 :]]) + "\n"
        smaller = Generated(source, case.args, case.mutates, case.tail, case.poisons)
        if defined_in_eager(smaller, order) and check(smaller, order, "reduced", backend):
            case, lines = smaller, source.splitlines()
        else:
            k += 1
    return case


def main(argv: list[str] | None = None) -> int:
    """The long run; the exit status is the number of failures, at most 100."""
    parser = argparse.ArgumentParser(prog="python -m tests.loops.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=10**9, help="stop after this many programs")
    parser.add_argument("--poison", type=int, default=6, help="percentage of features that may forbid a rewrite")
    parser.add_argument("--backend", default=None, help="another backend than packpass, to check the generator")
    parser.add_argument("--rates", action="store_true", help="also count how many programs were rewritten")
    parser.add_argument("--max-failures", type=int, default=8)
    options = parser.parse_args(argv)
    warnings.simplefilter("ignore")
    until = time.monotonic() + 60 * options.minutes
    seed, ran, rewritten, failures = options.seed, 0, 0, 0
    while time.monotonic() < until and ran < options.count and failures < options.max_failures:
        case, order = random_program(seed, options.poison), seed
        seed += 1
        if not defined_in_eager(case, order):
            continue
        ran += 1
        difference = check(case, order, f"fuzz-{seed - 1}", options.backend)
        if difference:
            failures += 1
            small = reduce(case, order, options.backend)
            print(f"--- seed {seed - 1}, arguments {small.args}, poisons {small.poisons}\n{small.source}")
            print(check(small, order, "reduced", options.backend), flush=True)
        elif options.rates:
            rewritten += was_rewritten(case, order)
    print(f"{ran} programs (seeds {options.seed}..{seed - 1}), {failures} failures", end="")
    print(f", {rewritten} rewritten" if options.rates else "")
    return min(failures, 100)


if __name__ == "__main__":
    sys.exit(main())
