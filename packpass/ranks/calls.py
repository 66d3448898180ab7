"""Calls of graphs with exchanges of packpass: where a rank fails in one, the others do not wait for it in vain.

Ranks agree before the first call of a graph (`packpass.ranks.agreement`); later calls ask nobody. An error on one rank
in such a call leaves the others in an exchange to which it does not come. So a rank says in the store that a call of
its ended in an error, and every rank that is in a call for longer than a moment looks, once a second, in a thread of
its own (`packpass.ranks.watching`), whether another rank has said so and has not come back. Then it interrupts its own
exchange, and all raise the same `AgreementError`. A call that nothing goes wrong in costs a few entries in
dictionaries, and no question to the store.

Who has failed may try again (a batch that did not fit into memory), which the others would not notice: so it gets
``packpass.agreement_timeout`` seconds to come back, and more while it compiles. A rank that ended in an
`AgreementError` never comes to the exchange that the others are in. Where ranks fail together (a bad batch, on all of
them) and go on with the next one, nobody waits for what is over: a rank counts the calls in a group that went well, and
the errors since, and is concerned by errors that it has not had itself.

Not heard are errors elsewhere: in code that is not compiled, in the data loader. They cost the others the time-out of
their process group, unless the process ends, which closes its connections. The error that they get is packpass's as
well, and says which ranks answered.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable, Sequence
from time import monotonic, sleep
from typing import Any, NoReturn

from packpass._compat import is_of_transport, wrap_backward
from packpass.ranks import processes, watching
from packpass.ranks.meeting import GRACE_S, AgreementError, Board, Meeting
from packpass.ranks.places import CUT, LEFT, RAISED, Lost, Place, concerns, lost, place_in


class Calls:
    """The calls of one graph, forward and backward."""

    def __init__(self, met: Sequence[Meeting], left: Sequence[Meeting] = ()) -> None:
        """
        Args:
            met: of groups whose ranks agree on the graph, so that all count the same calls.
            left: of groups whose exchanges stay as they are written, maybe in other pieces on other ranks.
        """
        self.meetings, self.met = [*met, *left], len(met)
        self.boards = [meeting.board for meeting in self.meetings]
        self.places = [place_in(board.group.group_name) for board in self.boards]
        self._backward_known = False

    def begin(self) -> None:
        """Before the first call: say which process this is, for those who find that it does not answer."""
        watching.start()
        for board in self.boards:
            with contextlib.suppress(AgreementError):
                board.put(f"process/{board.rank}", processes.in_words())

    def run(self, call: Callable[..., Any], *inputs: Any) -> Any:
        """The call, forward."""
        result = self._run(call, *inputs)
        if not self._backward_known:
            self._backward_known = True  # that gradients are needed is part of what a graph is compiled for
            wrap_backward(result, self._run)
        return result

    def fail(self, error: AgreementError) -> None:
        """The ranks did not come together before a call."""
        self._say(LEFT, str(error))

    def _run(self, call: Callable[..., Any], *inputs: Any) -> Any:
        for place in self.places:
            if place.said:
                self._come_back()
        entry = watching.enter(self.meetings, self.places, self.met)
        try:
            result = call(*inputs)
        except BaseException as error:
            self._failed(entry, error)
            raise
        finally:
            watching.leave(entry)
        for i, place in enumerate(self.places):
            place.done += i < self.met
            place.errors = 0
        return result

    def _failed(self, entry: watching.Inside, error: BaseException) -> None:
        if isinstance(error, AgreementError):  # of a graph that this one calls
            self._say(LEFT, str(error))
        elif entry.interrupted or (self.met and is_of_transport(error)):
            self._say(CUT, "waited in this call")
            self._cut_off(error)
        else:
            self._say(RAISED, f"{type(error).__name__}: {str(error)[:2000]}")

    def _say(self, state: str, text: str) -> None:
        for board, place in zip(self.boards, self.places, strict=True):
            place.errors += 1
            lost = Lost(state, place.done, place.errors, text)
            with contextlib.suppress(AgreementError):  # without a store nobody is told
                board.put(f"lost/{board.rank}", json.dumps(dataclasses.asdict(lost)))
                board.count("lost", 1)
                place.said = True

    def _come_back(self) -> None:
        for board, place in zip(self.boards, self.places, strict=True):
            with contextlib.suppress(AgreementError):
                board.put(f"lost/{board.rank}", "")
                place.said = False

    def _cut_off(self, error: BaseException) -> NoReturn:
        """Raise what all raise; of several groups, of the one in which a rank failed."""
        heard = [_gathered(board, place) for board, place in zip(self.boards, self.places, strict=True)]
        i = next((i for i, lost in enumerate(heard) if any(x.state != CUT for x in lost.values())), None)
        if i is None:
            i = next((i for i, lost in enumerate(heard) if len(lost) < self.boards[i].size - 1), 0)
        raise AgreementError(_same_for_all(self.meetings[i], _words(self.meetings[i], heard[i]))) from error


def _gathered(board: Board, place: Place) -> dict[int, Lost]:
    """What the other ranks say of the call that this rank was in; waits a little for them."""
    until = monotonic() + GRACE_S
    before = dataclasses.replace(place, errors=place.errors - 1)
    while True:
        found: dict[int, Lost] = {}
        with contextlib.suppress(AgreementError):
            said = {rank: lost(board, rank) for rank in board.others}
            found = {rank: x for rank, x in said.items() if x is not None and concerns(x, before)}
        if len(found) == len(board.others) or monotonic() > until:
            return found
        sleep(0.05)


def _words(meeting: Meeting, found: dict[int, Lost]) -> str:
    board = meeting.board
    left = next((x for x in found.values() if x.state == LEFT), None)
    if left is not None:
        return left.text
    said = {board.rank: "waited in this call"}
    for rank in board.others:
        x = found.get(rank)
        said[rank] = _unheard(board, rank) if x is None else x.text if x.state == CUT else f"raised {x.text}"
    text, location = meeting.entries[0]
    lines = meeting.by_rank(dict(sorted(said.items())))
    return (
        f"packpass: the ranks of {meeting.group_in_words()} were cut off from each other in the middle of a call, with "
        f"{len(meeting.entries)} collectives, the first: {text} at {location}\n{lines}\n{BROKEN}"
    )


BROKEN = (
    "The cause is what a rank raised, or the log of one that has ended or did not answer. The process group cannot be "
    "used any more: start all ranks again. A rank that raises, and comes back to a call within "
    "packpass.agreement_timeout, is waited for."
)


def _unheard(board: Board, rank: int) -> str:
    with contextlib.suppress(AgreementError):
        process = board.get(f"process/{rank}")
        if process and processes.has_ended(process):
            return "its process has ended"
        if board.has(f"lost/{rank}"):
            return "did not come to this call; it had an error before"
    return "did not come to this call, or did not answer; it may have ended, hang, or run something else"


def _same_for_all(meeting: Meeting, message: str) -> str:
    """The message of the rank that is first to say something of this; those who wait elsewhere raise it, too."""
    board = meeting.board
    try:
        attempt = board.attempt()
        while True:
            text = json.dumps([[meeting.digest], message])
            digests, first = json.loads(board.put_first(f"failed/{attempt}", text))
            attempt = board.count(f"attempt/{board.rank}", 1)
            if meeting.digest in digests:
                return str(first)  # else a failure of others, long ago
    except AgreementError:  # the store is gone with the rank that served it
        return message
