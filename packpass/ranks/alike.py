"""Do all ranks of a group do the same with the exchanges of a graph? Asked where it is compiled, before it is kept.

Each rank proves its own program. Where ranks run different code (a branch on the rank, parts taken in an order that
begins with the own one) or one of them has gradients, one may find an exchange in a loop where another finds none, or
join exchanges that stand side by side where another does not: what each would then run does not fit together. So every
rank that would put something in place of what is written says what (`packpass.ranks.asking`), and all that would be
compared before the first call (`packpass.ranks.agreement`), where a difference can only be an error. If they do not all
say the same, all leave these exchanges as they are written, which is what eager runs, and with them all others of the
graph (`packpass.ranks.apart`).

Ranks with other options, or with other code, do not ask the same: their differences are told before the first call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import fx

from packpass import markers
from packpass._compat import names_of_groups
from packpass._options import Options
from packpass.decisions.records import Refusal, Rewrite
from packpass.ranks import apart, leaving
from packpass.ranks.agreement import board_of, may_be_joined, to_compare
from packpass.ranks.asking import Question
from packpass.ranks.collectives import Collective, calls_in, collectives
from packpass.ranks.meeting import Board

LEFT = "left as it is written"


def alike(
    gm: fx.GraphModule,
    results: Sequence[Rewrite | Refusal],
    code: str,
    sites: Mapping[int, str],
    settings: Options,
    written: Sequence[Collective],
) -> bool:
    """False if the ranks do not all exchange in the same way in this graph, or in the code that it is a piece of.

    Args:
        gm: the graph after the passes.
        results: what the passes say of it.
        code: the function whose frame it is, in words that are the same on every rank.
        sites: the places of its captured loops.
        written: its exchanges before the passes.
    """
    ours = [r for r in results if apart.exchanges(r)]
    loops = [_said(r) for r in ours if _of_loop(r, set(sites.values()))]
    if not settings.agreement or not (loops or written):
        return True
    rewrites, found = [r for r in results if isinstance(r, Rewrite)], collectives(gm)
    asked = [
        (name, _question(board, code, settings))
        for name in sorted(_groups(gm, written))
        if (board := board_of(name)) is not None
    ]
    together = bool(loops or not apart.are_left(written)) and not any(q.has_left() for _, q in asked)
    compared = {name: to_compare(found, name, rewrites, settings) for name, _ in asked}
    # All of it in every group: what differs in one of them is heard in the first, and is told in the others.
    words = "\n".join([*loops, *sorted(c.text for texts in compared.values() for c in texts)])
    for name, question in asked if together else ():
        replaced = any(isinstance(r, Rewrite) and r.claims.group in (None, name) for r in ours)
        if not (loops or replaced or may_be_joined([c for c in found if c.group == name], settings)):
            question.stays()
        elif not question.alike(words, compared[name]):
            together = False
            break
    if not together:
        apart.leave(written)
        for _, question in asked:
            question.leaves()
    return together


def runs_eagerly(code: str, *callers: str, settings: Options) -> None:
    """Torch has given up this function on this rank, and may have done so on no other: those that compile it, alone or
    as a part of its callers, hear that here everything is exchanged as it is written, and need not wait for what will
    not come.

    Which groups it would exchange in is not known of code that was not traced to its end: said in all.
    """
    for name in names_of_groups() if settings.agreement else ():
        if (board := board_of(name)) is not None:
            for words in (code, *callers):
                question = _question(board, words, settings)
                if words == code or not question.has_asked():  # what it has said of a caller, it goes by
                    question.runs_eagerly()
                    leaving.runs_eagerly(board, words)


def _question(board: Board, code: str, settings: Options) -> Question:
    passes = ", ".join(name for name in apart.EXCHANGES if settings.runs(name))
    return Question(board, f"{code} with {passes}", settings.agreement_timeout)


def _of_loop(result: Rewrite | Refusal, sites: set[str]) -> bool:
    return result.claims.captured_loop if isinstance(result, Rewrite) else result.location in sites


def _said(result: Rewrite | Refusal) -> str:
    return "; ".join(result.claims.agreement) if isinstance(result, Rewrite) else LEFT


def _groups(gm: fx.GraphModule, written: Sequence[Collective]) -> set[str]:
    """The groups in which this graph exchanges something, rewritten or not."""
    sends = [node for node in calls_in(gm) if node.target in (markers.SEND, markers.RECV)]
    found = [c for c in (*written, *collectives(gm)) if c.exchange]
    return {str(node.args[3]) for node in sends} | {c.group for c in found if c.group is not None}
