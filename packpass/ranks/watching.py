"""One thread that looks after calls which take longer than a moment: see `packpass.ranks.calls`.

It starts with the first call of a graph whose ranks have agreed, and asks the store of a group nothing before a call
has taken `AFTER_S` seconds.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import threading
from collections.abc import Sequence
from time import monotonic, sleep

from packpass._compat import interrupt_group
from packpass.ranks.meeting import AgreementError, Meeting
from packpass.ranks.places import RAISED, Lost, Place, Standing, concerns, lost

log = logging.getLogger("packpass.agreement")

AFTER_S = 2.0
EVERY_S = 1.0


class Inside:
    """A call that has not ended.

    Attributes:
        meetings: one for each group of its graph.
        places: how far this rank was in each of them.
        met: of how many of them, the first ones, the ranks agree on the graph.
        shown: has it said in the store that it is in there?
        interrupted: has this rank given up waiting?
        heard: when it has heard of which error for the first time.
    """

    __slots__ = ("heard", "interrupted", "meetings", "met", "places", "shown", "since")

    def __init__(self, meetings: Sequence[Meeting], places: Sequence[Place], met: int) -> None:
        self.meetings, self.places, self.met, self.since = meetings, places, met, monotonic()
        self.shown = self.interrupted = False
        self.heard: dict[tuple[int, Lost], float] | None = None


_inside: dict[int, Inside] = {}
"""The calls of this process that have not ended."""

_started_in: int | None = None
"""The process that has the thread: a forked one has none."""


def start() -> None:
    global _started_in
    if _started_in != os.getpid():
        _started_in = os.getpid()
        threading.Thread(target=_watch, name="packpass-watch", daemon=True).start()


def enter(meetings: Sequence[Meeting], places: Sequence[Place], met: int) -> Inside:
    entry = Inside(meetings, places, met)
    _inside[id(entry)] = entry
    return entry


def leave(entry: Inside) -> None:
    del _inside[id(entry)]
    if entry.shown:
        _withdraw(entry)


def _withdraw(entry: Inside) -> None:
    for meeting in entry.meetings[: entry.met]:
        with contextlib.suppress(AgreementError):
            meeting.board.put(f"inside/{meeting.board.rank}", "")


def _watch() -> None:
    while True:
        sleep(EVERY_S)
        for entry in list(_inside.values()):
            if monotonic() - entry.since > AFTER_S:
                try:
                    look(entry)
                except AgreementError as error:  # the store may be gone because all is over
                    log.info("%s", error)


def look(entry: Inside) -> None:
    """Say that this rank is in a call, and interrupt it if it waits in vain."""
    if not entry.shown:
        for meeting, place in zip(entry.meetings[: entry.met], entry.places, strict=False):
            standing = Standing(place.done, place.errors, meeting.digest, [list(words) for words in meeting.entries])
            meeting.board.put(f"inside/{meeting.board.rank}", json.dumps(dataclasses.asdict(standing)))
        entry.shown = True
        if id(entry) not in _inside:  # it ended meanwhile, and did not know that this was said
            _withdraw(entry)
    in_vain = [_in_vain(entry, m, p) for m, p in zip(entry.meetings, entry.places, strict=True)]
    if any(in_vain) and not entry.interrupted and id(entry) in _inside:
        entry.interrupted = True
        for meeting in entry.meetings:
            interrupt_group(meeting.board.group)


def _in_vain(entry: Inside, meeting: Meeting, place: Place) -> bool:
    """Has another rank of the group failed, for good?"""
    board = meeting.board
    if board.count("lost") == 0:  # one question, however many ranks there are
        return False
    for rank in board.others:
        found = lost(board, rank)
        if found is None or not concerns(found, place):
            continue
        if (found.state != RAISED and found.done == place.done) or _waited_for(entry, meeting, rank, found):
            return True
    return False


def _waited_for(entry: Inside, meeting: Meeting, rank: int, found: Lost) -> bool:
    """Has this rank had the time to come back?"""
    now = monotonic()
    entry.heard = {} if entry.heard is None else entry.heard
    if found.state == RAISED and meeting.board.compiles([rank]):
        entry.heard[rank, found] = now
    return now - entry.heard.setdefault((rank, found), now) > meeting.timeout
