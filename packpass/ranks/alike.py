"""Do all ranks of a group rewrite the loops of a graph alike? Asked where the graph is compiled, before it is kept.

Each rank proves its own program. Where ranks run different code (a branch on the rank, parts taken in an order that
begins with the own one), one may find an exchange where another finds none: what each would then run does not fit
together. So every rank says which exchange it makes of each loop, and all that would be compared before the first call
(`packpass.ranks.agreement`), where a difference can only be an error. If they do not all say the same, all leave these
exchanges as they are written, which is what eager runs, and with them all others of the graph (`packpass.ranks.apart`).

Nobody is waited for twice about the same words, so that a rank that compiles again, alone, is not held up. A rank that
does not come, or waits elsewhere, is left to the agreement before the first call (`packpass.ranks.agreement`), which
knows how to say so. Keys, in the store of the group::

    asked/<loops>/<rank>          how often this rank has asked about these loops
    said/<loops>/<n>/<rank>       what it said the n-th time
    alike/<loops>/<digest>        whether all said what has this digest: "yes" or "no"
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from time import monotonic, sleep

from torch import fx

from packpass import markers
from packpass._options import Options
from packpass.decisions.records import Refusal, Rewrite
from packpass.ranks import apart
from packpass.ranks.agreement import board_of, to_compare
from packpass.ranks.collectives import Collective, collectives
from packpass.ranks.meeting import LONGEST, WAITING, AgreementError, Board

LEFT = "left as it is written"


def alike(
    gm: fx.GraphModule,
    results: Sequence[Rewrite | Refusal],
    sites: Mapping[int, str],
    settings: Options,
    written: Sequence[Collective],
) -> bool:
    """False if the ranks do not all exchange in the same way in this graph, or in the code that it is a piece of.

    Args:
        gm: the graph after the passes.
        results: what the passes say of it.
        sites: the places of its captured loops.
        written: its exchanges before the passes.
    """
    verdicts = [_said(r) for r in results if r.rule in apart.EXCHANGES and _of_loop(r, set(sites.values()))]
    if not settings.agreement:
        return True
    if not verdicts:
        return not apart.are_left(written)
    loops = _digest("\n".join(sorted(sites.values())))
    rewrites, found = [r for r in results if isinstance(r, Rewrite)], collectives(gm)
    together = True
    for name in sorted(_groups(gm)):
        board = board_of(name)
        if board is not None:
            compared = [c.text for c in to_compare(found, name, rewrites, settings)]
            together &= _ask(board, loops, "\n".join([*verdicts, *compared]), settings.agreement_timeout)
    if not together:
        apart.leave(written)
    return together


def _of_loop(result: Rewrite | Refusal, sites: set[str]) -> bool:
    return result.claims.captured_loop if isinstance(result, Rewrite) else result.location in sites


def _said(result: Rewrite | Refusal) -> str:
    return "; ".join(result.claims.agreement) if isinstance(result, Rewrite) else LEFT


def _groups(gm: fx.GraphModule) -> set[str]:
    """The groups in which loops of this graph exchange something, rewritten or not."""
    sends = [node for node in gm.graph.nodes if node.target in (markers.SEND, markers.RECV)]
    found = [c for c in collectives(gm) if c.exchange]
    return {str(node.args[3]) for node in sends} | {c.group for c in found if c.group is not None}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def _ask(board: Board, loops: str, mine: str, timeout: float) -> bool:
    """Do all ranks of one group say the same? True as well where some do not answer."""
    try:
        known = board.get(f"alike/{loops}/{_digest(mine)}")
        said = [mine] if known is not None else _gathered(board, loops, mine, timeout)
        if said is None:
            return True
        same = known == "yes" if known is not None else set(said) == {mine}
        for text in said:
            board.put(f"alike/{loops}/{_digest(text)}", "yes" if same else "no")
        return same
    except AgreementError:  # a store that does not answer is told before the first call
        return True


def _gathered(board: Board, loops: str, mine: str, timeout: float) -> list[str] | None:
    """What every rank says this time; None if not all do."""
    n = board.count(f"asked/{loops}/{board.rank}", 1)
    board.put(f"said/{loops}/{n}/{board.rank}", mine)
    attempt, said = board.attempt(), {board.rank: mine}
    start = quiet = monotonic()
    pause = 0.001
    while len(said) < board.size:
        waiting = [rank for rank in board.others if rank not in said]
        for rank in waiting:
            record = board.record(rank)  # first: what it has said before it waits is there then
            text = board.get(f"said/{loops}/{n}/{rank}")
            if text is not None:
                said[rank] = text
            elif record is not None and record.state in WAITING and record.attempt == attempt:
                return None
        now = monotonic()
        if now - start < LONGEST * timeout and board.compiles(waiting):
            quiet = now
        if now - quiet > timeout:
            return None
        sleep(pause)
        pause = min(2 * pause, 0.05)
    return [said[rank] for rank in sorted(said)]
