"""A rank that leaves the messages of a loop as they are written, and those that do not.

Before its frame is traced again as stock torch would, messages included, the ranks that send them to each other come
together: all of them leave that loop, or one of the group has put an exchange in place of the messages. Then it waits
for this rank in an agreement, or in the exchange itself, if all have run the same before, and this rank would wait for
its messages: all raise the same `AgreementError`.

A rank that does neither may not run packpass at all, or send from other code. Eager messages are right then, so nothing
is raised: after the time-out this rank goes on, and does not wait in this group again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
from collections.abc import Collection
from time import monotonic, sleep

import torch

from packpass._options import Options
from packpass.ranks.agreement import board_of
from packpass.ranks.calls import Calls
from packpass.ranks.collectives import Collective
from packpass.ranks.meeting import AgreementError, Board, Meeting, Record, replaces_messages
from packpass.ranks.places import inside_with

log = logging.getLogger("packpass.agreement")

_alone: set[str] = set()
"""Names of groups whose ranks did not leave together."""


def leave(group: str, code: str, location: str, peers: Collection[int], settings: Options) -> None:
    """Wait for the ranks at the other ends of the messages.

    Args:
        code: the function whose frame it is, in words that are the same on every rank.
        location: the line of the first message.
        peers: global ranks.

    Raises AgreementError if another rank waits with an exchange in place of the messages.
    """
    board = board_of(group)
    if board is None or group in _alone:
        return
    said = Collective(group, False, "messages as they are written", location)
    leaving = _Leaving(board, [said], settings.agreement_timeout)
    leaving.digest = _digest(code)
    ranks = torch.distributed.get_process_group_ranks(board.group)
    try:
        if not leaving.together([ranks.index(peer) for peer in sorted(peers) if peer in ranks]):
            _alone.add(group)
    except AgreementError as error:
        Calls([leaving]).fail(error)  # for a rank that is in the exchange already
        raise


def runs_eagerly(board: Board, code: str) -> None:
    """For those who leave: here torch runs this code eagerly, messages included, so that nobody waits for this rank."""
    with contextlib.suppress(AgreementError):
        board.put(f"left/{_digest(code)}/{board.rank}", "")


def _digest(code: str) -> str:
    return hashlib.sha256(f"leaves {code}".encode()).hexdigest()[:20]


class _Leaving(Meeting):
    """The messages of one loop in one group."""

    def together(self, waiting: list[int]) -> bool:
        """Wait until these ranks of the group leave the loop; False if not all did within the time-out."""
        board = self.board
        attempt = board.attempt()
        mine = Record("leaves", attempt, self.digest, self.entries, [])
        board.put(f"now/{board.rank}", mine.to_json())
        board.put(self._left(board.rank), "")
        start, pause = monotonic(), 0.001
        while waiting:
            self._hear(mine)
            for rank in list(waiting):
                record = board.record(rank)
                if record is not None and record.state == "waits" and record.attempt == attempt:
                    if replaces_messages(record) and not board.has(self._ran(board.rank, record.digest)):
                        self._disagree(mine, self._gathered(mine, {rank: record}))
                if (standing := inside_with(board, rank)) is not None:
                    # It runs what it has run before, and did not hear that this rank compiles something else now.
                    entries = [(text, at) for text, at in standing.entries]
                    there = Record("runs", attempt, standing.digest, entries, [])
                    if replaces_messages(there):
                        self._disagree(mine, self._gathered(mine, {rank: there}))
                if board.has(self._left(rank)):
                    waiting.remove(rank)
            if monotonic() - start > self.timeout and waiting:
                log.warning(
                    "%s of %s did not come to the loop at %s within %g s; its messages are sent as they are written",
                    board.name(waiting), self.group_in_words(), self.entries[0][1], self.timeout,
                )  # fmt: skip
                break
            sleep(pause)
            pause = min(2 * pause, 0.05)
        self._done(mine)
        return not waiting

    def _left(self, rank: int) -> str:
        return f"left/{self.digest}/{rank}"

    def _hear(self, mine: Record) -> None:
        """Raise what another rank has raised, if this one has part in it."""
        text = self.board.get(f"failed/{mine.attempt}")
        if text is not None:
            digests, message = json.loads(text)
            if mine.digest in digests:
                self._raise(message)

    def _done(self, mine: Record) -> None:
        self.board.put(f"now/{self.board.rank}", Record("left", mine.attempt, "", self.entries, []).to_json())
