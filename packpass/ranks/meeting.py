"""The ranks of a process group meet in the group's store and compare what they are about to run: see `_agreement`.

Keys, below ``packpass/agreement`` in the store of the group; ranks are those of the group::

    attempt/<rank>              how many failures this rank has raised
    now/<rank>                  what this rank waits for, or last ran (`Record`)
    ran/<digest>/<rank>         this rank came to a graph with this list (and did not fail there)
    failed/<attempt>            the digests that had part in a failure, and the message that all ranks raise
    left/<digest>/<rank>        this rank sends the messages of a loop as they are written
    asking/<rank>, said/...     what a rank asks while it compiles, see `packpass.ranks.asking`
    calls/<attempt>/<rank>      verify: how many calls this rank has compared
    call/<attempt>/<n>/<rank>   verify: its n-th call
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from time import monotonic, sleep
from typing import Any, NoReturn, TypeVar

import torch

from packpass._compat import group_store
from packpass.ranks import compiling
from packpass.ranks.collectives import Collective
from packpass.ranks.numbers import Numbers, first_number
from packpass.ranks.places import inside_with

log = logging.getLogger("packpass.agreement")

Result = TypeVar("Result")

GRACE_S = 2.0
"""How long a rank that has found a mismatch waits for the others, so that the message covers them."""
PATIENCE_S = 30.0
"""After this many seconds the log says who is waited for."""
LONGEST = 10
"""A rank waits for others that compile, but no longer than so many times its time-out: they may have died."""

ADVICE = (
    "Every rank must compile the same model code with the same packpass options and PACKPASS_* variables, break graphs "
    'at the same places, and call it alike. options={"packpass.disable": [...]} leaves collectives as they are '
    'written, {"packpass.agreement": False} skips this check.'
)


SAME_BATCH = (
    "Every rank of the group must be given shards of the same batch and the same (global) boundaries. "
    '{"packpass.agreement": False} skips this check.'
)
WAITING = ("waits", "leaves")
EVER, EAGERLY = "ever", "eagerly"
FINAL = (EVER, EAGERLY)
"""What a rank says of code whose exchanges stay as they are written there; no other answer is waited for."""
MESSAGES_REPLACED = "fuse_boundary_exchange: "


class AgreementError(RuntimeError):
    """The ranks of a group do not run the same collectives, or not all of them answered in time."""


@dataclasses.dataclass(frozen=True)
class Record:
    """What a rank publishes of itself.

    Attributes:
        state: "waits" for the others, "runs" the graph, or "compiled" one whose collectives are the user's own;
            "leaves" messages as they are written and waits until all do; "asks" whether all compile the same.
        entries: text and location of each collective.
        numbers: those of the call, in the order of the entries.
    """

    state: str
    attempt: int
    digest: str
    entries: list[tuple[str, str]]
    numbers: list[Numbers]

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Record:
        fields = json.loads(text)
        fields["entries"] = [(text, location) for text, location in fields["entries"]]
        fields["numbers"] = [Numbers(**numbers) for numbers in fields["numbers"]]
        return cls(**fields)


# === The store ==================================================================================================


class Board:
    """The store of a group, as one rank uses it: no call blocks for a key that is missing."""

    def __init__(self, group: Any) -> None:
        self.group = group
        self.rank, self.size = group.rank(), group.size()
        self.others = [rank for rank in range(self.size) if rank != self.rank]
        self._store = torch.distributed.PrefixStore("packpass/agreement", group_store(group))

    def has(self, *keys: str) -> bool:
        return bool(self._ask(lambda: self._store.check(list(keys))))

    def get(self, key: str) -> str | None:
        return self._ask(lambda: self._store.get(key).decode()) if self.has(key) else None

    def put(self, key: str, value: str) -> None:
        self._ask(lambda: self._store.set(key, value))

    def put_first(self, key: str, value: str) -> str:
        """The value that is there, or ``value``, which is there from now on."""
        return self._ask(lambda: self._store.compare_set(key, "", value).decode())

    def count(self, key: str, step: int = 0) -> int:
        return self._ask(lambda: self._store.add(key, step))

    def drop(self, key: str) -> None:
        self._ask(lambda: self._store.delete_key(key))

    def compiles(self, ranks: Sequence[int]) -> bool:
        """Does one of these ranks compile at present?"""
        everyone = torch.distributed.get_process_group_ranks(self.group)
        return any(compiling.at_work(everyone[rank]) for rank in ranks)

    def attempt(self) -> int:
        """This rank's attempt; if others wait in a later one, because they gave this rank up before, theirs."""
        own = self.count(f"attempt/{self.rank}")
        theirs = [record.attempt for r in self.others if (record := self.record(r)) and record.state == "waits"]
        return self.count(f"attempt/{self.rank}", max(0, *theirs, own) - own)

    def record(self, rank: int) -> Record | None:
        text = self.get(f"now/{rank}")
        return None if text is None else Record.from_json(text)

    def is_awaited(self, rank: int, attempt: int) -> bool:
        """Does another rank wait with a list, or for an answer that this rank has not given?"""
        record = self.record(rank)
        if record is None or record.attempt != attempt:
            return False
        return record.state in WAITING or (record.state == "asks" and self.is_asked(rank))

    def is_asked(self, rank: int) -> bool:
        """Has this rank not answered what another one asks or has asked? See `packpass.ranks.asking`."""
        asking = self.get(f"asking/{rank}") or ""
        code = asking.partition("/")[0]
        if self.get(f"stays/{code}/{self.rank}") in FINAL:
            return False
        return not self.has(f"said/{asking}/{self.rank}")

    def name(self, ranks: Sequence[int]) -> str:
        return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))

    def _ask(self, call: Callable[[], Result]) -> Result:
        try:
            return call()
        except Exception as error:  # each store raises its own
            raise AgreementError(
                f"packpass: the store of process group {self.group.group_name!r} does not answer, so its ranks cannot "
                f"compare their collectives ({error}). The process that serves the store may have died; "
                '{"packpass.agreement": False} skips this check.'
            ) from error


# === One group ==================================================================================================


def replaces_messages(record: Record) -> bool:
    """Does the rank run exchanges in place of messages that others of the group send?"""
    return any(text.startswith(MESSAGES_REPLACED) for text, _ in record.entries)


class Meeting:
    """The collectives of one graph in one group."""

    def __init__(self, board: Board, found: Sequence[Collective], timeout: float) -> None:
        self.board, self.timeout = board, timeout
        self.found = found
        self.entries = [(c.text, c.location) for c in found]
        text = json.dumps([c.text for c in found])
        self.digest = hashlib.sha256(text.encode()).hexdigest()[:20]

    def agree(self, numbers: list[Numbers]) -> None:
        """Wait for the other ranks and compare; raises AgreementError."""
        mine = self._begin(numbers)
        own = self._ran(self.board.rank)
        known = self.board.has(own)
        self.board.put(own, "")  # after the record: who sees this finds the record
        try:
            self._compare(mine, known)
        except AgreementError:
            if not known:  # it did not come to run it
                with contextlib.suppress(AgreementError):
                    self.board.drop(own)
            raise
        self._leave(mine)

    def _compare(self, mine: Record, known: bool) -> None:
        """``known``: all ranks have come to this list before."""
        board = self.board
        waiting = list(board.others)
        for _ in self._turns(mine, waiting):
            for rank in list(waiting):
                came = board.has(self._ran(rank))  # before its record is read, which it wrote first
                record = board.record(rank)
                # A call which it has behind it may have had other sizes: what counts is what it waits for.
                if record is not None and record.state == "waits" and record.attempt == mine.attempt:
                    if self._crossed(record) if record.digest != mine.digest else not _same(record, mine):
                        self._disagree(mine, self._gathered(mine, {rank: record}))
                elif record is not None and record.state == "leaves" and replaces_messages(mine) and not came:
                    if record.attempt == mine.attempt:
                        self._disagree(mine, self._gathered(mine, {rank: record}))
                elif (standing := inside_with(board, rank)) is not None and standing.digest != mine.digest:
                    # It waits for this rank, in the call that this one is coming to, with another list.
                    entries = [(text, location) for text, location in standing.entries]
                    there = Record("runs", mine.attempt, standing.digest, entries, [])
                    self._disagree(mine, self._gathered(mine, {rank: there}))
                # Who asks this rank something sees that it waits here, and comes with what it is going to run: not
                # necessarily this, which it has run before.
                asks = known and record is not None and record.state == "asks" and record.attempt == mine.attempt
                if came and not (asks and board.is_asked(rank)):
                    waiting.remove(rank)

    def check_call(self, numbers: list[Numbers]) -> None:
        """Compare sizes and boundaries of one call of every rank; raises AgreementError."""
        board = self.board
        mine = self._begin(numbers)
        attempt = mine.attempt
        n = board.count(f"calls/{attempt}/{board.rank}", 1)
        board.put(f"call/{attempt}/{n}/{board.rank}", mine.to_json())
        waiting = list(board.others)
        seen = {board.rank: mine}
        for _ in self._turns(mine, waiting):
            for rank in list(waiting):
                text = board.get(f"call/{attempt}/{n}/{rank}")
                if text is not None:
                    seen[rank] = Record.from_json(text)
                    waiting.remove(rank)
        if any(record.digest != mine.digest or not _same(record, mine) for record in seen.values()):
            self._disagree(mine, dict(sorted(seen.items())))
        if n > 1:  # all ranks have come to call n, so nobody reads the one before any more
            board.drop(f"call/{attempt}/{n - 1}/{board.rank}")
        self._leave(mine)

    def _begin(self, numbers: list[Numbers]) -> Record:
        """Announce this rank. Raises if the others have given up on the same list already."""
        attempt = self.board.attempt()
        while True:
            mine = Record("waits", attempt, self.digest, self.entries, numbers)
            text = self.board.get(f"failed/{attempt}")
            if text is None:
                self.board.put(f"now/{self.board.rank}", mine.to_json())
                return mine
            digests, message = json.loads(text)
            if self.digest in digests:
                self._raise(message)
            attempt = self.board.count(f"attempt/{self.board.rank}", 1)  # a failure of others, long ago

    def _leave(self, mine: Record) -> None:
        self.board.put(f"now/{self.board.rank}", dataclasses.replace(mine, state="runs").to_json())

    def _ran(self, rank: int, digest: str | None = None) -> str:
        return f"ran/{digest or self.digest}/{rank}"

    def _turns(self, mine: Record, waiting: list[int]) -> Iterator[None]:
        """One turn after the other until nobody is waited for; raises when another rank failed or time is over."""
        start, pause, told = monotonic(), 0.001, False
        last = quiet = start
        while waiting:
            text = self.board.get(f"failed/{mine.attempt}")
            if text is not None:
                self._raise(json.loads(text)[1])
            yield
            if not waiting:
                return
            waited = monotonic() - start
            if monotonic() - last > min(1.0, self.timeout / 4) and waited < LONGEST * self.timeout:
                last = monotonic()
                if self.board.compiles(waiting):
                    quiet = last
            if monotonic() - quiet > self.timeout:
                self._fail(mine, {self.board.rank: mine}, self._silence(waiting))
            if waited > PATIENCE_S and not told:
                told = True
                log.warning("waiting for %s of %s", self.board.name(waiting), self.group_in_words())
            sleep(pause)
            pause = min(2 * pause, 0.05)

    def _crossed(self, record: Record) -> bool:
        """Does a rank that waits with another list wait for this one, which never came to that list?

        It waits until this rank comes there, and takes part in no collective before, so in none of this rank's list.
        """
        return not self.board.has(self._ran(self.board.rank, record.digest))

    def _gathered(self, mine: Record, known: dict[int, Record]) -> dict[int, Record]:
        """Records of this attempt by rank, ``known`` among them; waits a little for those that are missing."""
        until = monotonic() + min(GRACE_S, self.timeout)
        while True:
            records = {rank: self.board.record(rank) for rank in self.board.others}
            found = {rank: r for rank, r in records.items() if r and r.attempt == mine.attempt and r.state in WAITING}
            late = monotonic() > until or self.board.has(f"failed/{mine.attempt}")
            if late or len(found) == len(records):
                return dict(sorted({**found, **known, self.board.rank: mine}.items()))
            sleep(0.01)

    def _disagree(self, mine: Record, records: dict[int, Record]) -> NoReturn:
        self._fail(mine, records, self._difference(records))

    def _fail(self, mine: Record, records: dict[int, Record], message: str) -> NoReturn:
        """Raise on every rank what the first one to fail says."""
        text = json.dumps([sorted({record.digest for record in records.values()}), message])
        self._raise(json.loads(self.board.put_first(f"failed/{mine.attempt}", text))[1])

    def _raise(self, message: str) -> NoReturn:
        with contextlib.suppress(AgreementError):  # the message matters more than a store that is gone
            self.board.count(f"attempt/{self.board.rank}", 1)
        raise AgreementError(message)

    # --- Messages: a function of the records alone, so that it is the same on every rank ---

    def group_in_words(self) -> str:
        ranks = torch.distributed.get_process_group_ranks(self.board.group)
        return f"process group {self.board.group.group_name!r} (global ranks {', '.join(map(str, ranks))})"

    def _difference(self, records: dict[int, Record]) -> str:
        missing = [rank for rank in range(self.board.size) if rank not in records]
        tail = f"  {self.board.name(missing)}: no answer so far\n" if missing else ""
        count = max(len(record.entries) for record in records.values())
        for i in range(count):
            said = {
                rank: record.entries[i] if i < len(record.entries) else ("no more collectives", "")
                for rank, record in records.items()
            }
            if len({text for text, _ in said.values()}) > 1:
                lines = self.by_rank({rank: f"{text} at {at}" if at else text for rank, (text, at) in said.items()})
                return (
                    f"packpass: the ranks of {self.group_in_words()} were about to run different collectives; none was "
                    f"started. First difference: collective {i + 1} of the graph\n{lines}\n{tail}{ADVICE}"
                )
        for numbers in zip(*(record.numbers for record in records.values()), strict=True):
            place, values = first_number({r: n.entries for r, n in zip(records, numbers, strict=True)})
            if values:
                return (
                    f"packpass: the ranks of {self.group_in_words()} brought different sizes or boundaries to the same "
                    f"collectives; none was started. First difference: {numbers[0].what}{place}\n"
                    f"{self.by_rank(values)}\n{tail}{SAME_BATCH}"
                )
        return "packpass: the ranks disagreed, and what about is gone from their store"

    def by_rank(self, said: dict[int, str]) -> str:
        texts = list(dict.fromkeys(said.values()))
        return "\n".join(
            f"  {self.board.name([rank for rank, other in said.items() if other == text])}: {text}" for text in texts
        )

    def _silence(self, waiting: Sequence[int]) -> str:
        entry, location = self.entries[0]
        answers = "\n".join(f"  rank {rank}: {self._last_seen(rank)}" for rank in waiting)
        return (
            f"packpass: {self.board.name(waiting)} of {self.group_in_words()} did not come to the same collectives "
            f"within {self.timeout:g} s (packpass.agreement_timeout); none was started. The others are at a graph with "
            f"{len(self.entries)} of them, the first: {entry} at {location}\n{answers}\n{ADVICE}"
        )

    def _last_seen(self, rank: int) -> str:
        record = self.board.record(rank)
        if record is None:
            return "never came to collectives compiled by packpass; it may have died, or run something else"
        entry, location = record.entries[0]
        done = {
            "waits": "waits itself at a graph with",
            "leaves": "waits to send messages as they are written, with",
            "left": "sends messages as they are written, with",
            "runs": "last came to a graph with",
            "asks": "compiles, and waits to hear whether all ranks do the same with",
            "asked": "has not come to run what it was about to compile (its log may show an error), with",
            "compiled": "compiled a graph whose collectives are left as they are written, with",
        }[record.state]
        return f"{done} {len(record.entries)} collectives, the first: {entry} at {location}"


def _same(record: Record, mine: Record) -> bool:
    pairs = zip(record.numbers, mine.numbers, strict=True)
    return not any(first_number({0: a.entries, 1: b.entries})[1] for a, b in pairs)
