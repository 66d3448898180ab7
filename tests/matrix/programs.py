"""``python -m tests.matrix.programs``: run the programs in this environment and write one JSON line for each.

The first line lists the programs that follow, so that a reader knows which one was running when the process died.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import TextIO

from tests.matrix.verdicts import RAISED, WHOLE, Share, Verdict
from tests.quick import fewer_collections, guards_without_a_stopwatch

LIMIT = 60
"""Seconds that one program may take; most take one at the most."""
FIRST = 3
"""So many times as long has the first one, which pays for what torch imports when it compiles: half a minute, or more
on a machine that is shared."""


class TooLongError(BaseException):
    """Not an ``Exception``: nothing between here and the alarm may take it for an error of the program."""


def _too_long(signum: int, frame: FrameType | None) -> None:
    raise TooLongError


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0 also where programs are wrong: what came out is in the lines."""
    arguments = _parser().parse_args(argv)
    # Programs print, and so does torch: only this stream is for the lines.
    lines = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    from tests.matrix.corpus import jobs

    known = {key: job for key, job in jobs().items() if arguments.share.has(key)}
    wanted = [key for key in known if not arguments.only or any(word in key for word in arguments.only)]
    part, parts = arguments.part
    with guards_without_a_stopwatch(), fewer_collections():
        run({key: known[key] for key in wanted[part::parts] if key not in set(arguments.skip)}, lines, arguments.limit)
    return 0


def run(jobs: Mapping[str, Callable[[], Verdict]], lines: TextIO, limit: int) -> None:
    """Run the jobs one after the other, each within so many seconds, the first within more."""
    print(json.dumps({"programs": list(jobs)}), file=lines)
    signal.signal(signal.SIGALRM, _too_long)
    for n, (key, job) in enumerate(jobs.items()):
        seconds = limit if n else FIRST * limit
        signal.alarm(seconds)
        try:
            verdict = job()
        except TooLongError:
            corpus, name = key.split("/")
            verdict = Verdict(corpus, name, False, RAISED, f"stopped after {seconds} s")
        finally:
            signal.alarm(0)
        print(verdict.to_json(), file=lines)


def _share(text: str) -> Share:
    return Share(*_part(text))


def _part(text: str) -> tuple[int, int]:
    part, _, parts = text.partition("/")
    if not (part.isdigit() and parts.isdigit() and int(part) < int(parts)):
        raise argparse.ArgumentTypeError(f"{text!r} is not K/N with K < N, such as 0/2")
    return int(part), int(parts)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.matrix.programs", description=__doc__)
    parser.add_argument("--only", nargs="+", default=[], metavar="TEXT", help="only programs whose key contains this")
    parser.add_argument("--skip", nargs="+", default=[], metavar="KEY", help="not these (corpus/name)")
    parser.add_argument("--part", type=_part, default=(0, 1), metavar="K/N", help="every N-th program from the K-th on")
    parser.add_argument(
        "--share", type=_share, default=WHOLE, metavar="K/N", help="one of every N programs, told by their names"
    )
    parser.add_argument("--limit", type=int, default=LIMIT, metavar="SECONDS", help=f"per program, default {LIMIT}")
    return parser


if __name__ == "__main__":
    sys.exit(main())
