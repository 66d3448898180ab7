"""What one rank says of the exchanges of some code while it compiles it, and whether all ranks of a group say the same.

Nobody is waited for twice about the same words, so that a rank that compiles again, alone, is not held up. A rank that
puts nothing in place of what it exchanges says so and waits for nobody: nothing that the others say would change it. A
rank that does not come, or waits for something else that this rank is to do first (an exchange, maybe), is left to the
agreement before the first call (`packpass.ranks.agreement`), which knows how to say so. Keys, in the store of the
group::

    asked/<code>/<rank>          how often this rank has said something new about the exchanges of this code
    said/<code>/<n>/<rank>       what it said the n-th time
    asking/<rank>                "<code>/<n>" of the question to which it waits for answers, or has waited last
    stays/<code>/<rank>          it compiles them as they are written: "now", because there is nothing to put in their
                                 place ("" if it has asked since), or for "ever", because the ranks differ; or it does
                                 not compile the code, which torch runs "eagerly" there ("" if it has asked since)
    written/<code>/<rank>        it has said that it does
    alike/<code>/<digest>        whether all said what has this digest: "yes" or "no"
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
from collections.abc import Sequence
from time import monotonic, sleep

from packpass.ranks.collectives import Collective
from packpass.ranks.meeting import EAGERLY, EVER, FINAL, LONGEST, AgreementError, Board, Record
from packpass.ranks.places import inside_with

STAYS = "nothing takes the place of what is exchanged"
NOW = "now"


class Question:
    """Do the ranks of one group do the same with the exchanges of some code?"""

    def __init__(self, board: Board, code: str, timeout: float) -> None:
        self.board, self.timeout = board, timeout
        self.code = digest(code)

    def stays(self) -> None:
        """For those who ask: here the exchanges are compiled as they are written, now."""
        with contextlib.suppress(AgreementError):  # a store that does not answer is told before the first call
            board, said = self.board, f"written/{self.code}/{self.board.rank}"
            if not board.has(said):  # that a rank compiles again, alone, must not count
                board.put(said, "")
                n = board.count(f"asked/{self.code}/{board.rank}", 1)
                board.put(f"said/{self.code}/{n}/{board.rank}", STAYS)
            if board.get(self._stays(board.rank)) != EVER:
                board.put(self._stays(board.rank), NOW)

    def leaves(self) -> None:
        """For those who ask, now or later: here they will always be compiled as they are written."""
        with contextlib.suppress(AgreementError):
            self.board.put(self._stays(self.board.rank), EVER)

    def runs_eagerly(self) -> None:
        """For those who ask, now or later: here torch runs this code eagerly, so that nothing will be asked."""
        with contextlib.suppress(AgreementError):
            if not self.has_left():
                self.board.put(self._stays(self.board.rank), EAGERLY)

    def has_asked(self) -> bool:
        """Has this rank said anything of the code so far?"""
        with contextlib.suppress(AgreementError):
            return self.board.has(f"asked/{self.code}/{self.board.rank}")
        return True

    def has_left(self) -> bool:
        """Is this what others have been told? They go by it, so must this rank."""
        with contextlib.suppress(AgreementError):
            return self.board.get(self._stays(self.board.rank)) == EVER
        return False

    def alike(self, mine: str, found: Sequence[Collective]) -> bool:
        """Do all ranks say the same? True as well where some do not answer.

        Args:
            found: what would be compared before the first call, if they did.
        """
        try:
            board = self.board
            board.put(self._stays(board.rank), "")
            known = board.get(self._answer(mine))
            if known is not None:
                return known == "yes"
            said = self._gathered(mine, found)
            same = said is None or set(said) == {mine}
            for text in said or ():
                board.put(self._answer(text), "yes" if same else "no")
            return same
        except AgreementError:
            return True

    def _answer(self, said: str) -> str:
        return f"alike/{self.code}/{digest(said)}"

    def _stays(self, rank: int) -> str:
        return f"stays/{self.code}/{rank}"

    def _gathered(self, mine: str, found: Sequence[Collective]) -> list[str] | None:
        """What every rank says this time; None if not all do."""
        board = self.board
        n = board.count(f"asked/{self.code}/{board.rank}", 1)
        board.put(f"said/{self.code}/{n}/{board.rank}", mine)
        board.put(f"asking/{board.rank}", f"{self.code}/{n}")
        entries = [(c.text, c.location) for c in found] or [(STAYS, "the loops of this graph")]
        asks = Record("asks", board.attempt(), "", entries, [])
        board.put(f"now/{board.rank}", asks.to_json())
        said = {board.rank: mine}
        if not self._answered(n, said, asks):
            return None  # still asking, for those who wait for this rank: until it says what it runs
        board.put(f"now/{board.rank}", dataclasses.replace(asks, state="asked").to_json())
        return [said[rank] for rank in sorted(said)] if len(said) == board.size else None

    def _answered(self, n: int, said: dict[int, str], asks: Record) -> bool:
        """Wait until every rank has ``said`` something or time is over; False if another rank waits for this one, or is
        in the call for which this one compiles, and so does not compile."""
        board = self.board
        start = quiet = monotonic()
        pause = 0.001
        while True:
            waiting = [rank for rank in board.others if rank not in said]
            for rank in waiting:
                # First: what it has said before is there then.
                awaited, left = board.is_awaited(rank, asks.attempt), board.get(self._stays(rank)) in FINAL
                text = board.get(f"said/{self.code}/{n}/{rank}") or (STAYS if left else None)
                if text is not None:
                    said[rank] = text
                elif awaited or inside_with(board, rank) is not None:
                    return False
            waiting = [rank for rank in waiting if rank not in said]
            if not waiting:
                return True
            now = monotonic()
            if now - start < LONGEST * self.timeout and board.compiles(waiting):
                quiet = now
            if now - quiet > self.timeout:
                # Who has compiled this code before, as it is written, and does not compile it again, runs it like that.
                said.update((rank, STAYS) for rank in waiting if board.get(self._stays(rank)) == NOW)
                return True
            sleep(pause)
            pause = min(2 * pause, 0.05)


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:20]
