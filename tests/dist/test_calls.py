"""What ranks hear of each other in the middle of calls, between threads: who fails takes the others with it, and who
comes back does not."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from time import monotonic, sleep
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist

from packpass._compat import is_of_transport, wrap_backward
from packpass.ranks import calls, places, processes, watching
from packpass.ranks import meeting as rooms
from packpass.ranks.asking import Question
from packpass.ranks.calls import Calls
from packpass.ranks.meeting import AgreementError
from packpass.ranks.places import Lost, Place, concerns
from tests.dist.test_meeting import found, hear, meeting

SOON = 6.0


class Wire:
    """In place of the exchange of a group: who is in it waits until all are, or it is cut."""

    def __init__(self, size: int) -> None:
        self.all_there = threading.Barrier(size)

    def exchange(self) -> None:
        try:
            self.all_there.wait(30)
        except threading.BrokenBarrierError:
            raise RuntimeError("[gloo/transport/tcp/pair.cc:553] Connection closed by peer") from None

    def cut(self, group: Any = None) -> None:
        self.all_there.abort()


class Rank:
    """One rank in a thread, with its own counts."""

    def __init__(self, rank: int, texts: str = "a", size: int = 2, timeout: float = 0.6, ours: bool = True) -> None:
        self.meeting = meeting(rank, texts, size, timeout)
        self.calls = Calls([self.meeting]) if ours else Calls([], [self.meeting])
        self.place = Place()
        self.calls.places = [self.place]

    def call(self, what: Callable[[], Any]) -> Any:
        return self.calls.run(what)


@pytest.fixture(autouse=True)
def store() -> Iterator[Any]:
    made = dist.HashStore()
    with (
        mock.patch.object(rooms, "group_store", return_value=made),
        mock.patch.object(dist, "get_process_group_ranks", return_value=[4, 5, 6]),
        mock.patch.object(calls, "GRACE_S", 0.5),
        mock.patch.object(watching, "AFTER_S", 0.2),
        mock.patch.object(watching, "EVERY_S", 0.05),
    ):
        watching.start()
        yield made


@pytest.fixture
def wire(request: pytest.FixtureRequest) -> Iterator[Wire]:
    made = Wire(getattr(request, "param", 2))
    with mock.patch.object(watching, "interrupt_group", made.cut):
        yield made


def fail(text: str = "no memory") -> Callable[[], None]:
    def call() -> None:
        raise ValueError(text)

    return call


def ends(*calls: Callable[[], Any]) -> list[str]:
    """What each rank hears, soon."""
    started = monotonic()
    said = hear(*calls)
    assert monotonic() - started < SOON
    return said


def quietly(rank: Rank, what: Callable[[], Any]) -> None:
    with pytest.raises(ValueError, match="no memory"):
        rank.call(what)


# === A rank that fails ==========================================================================================


def test_a_rank_that_raises_and_does_not_come_back(wire: Wire) -> None:
    ranks = [Rank(0), Rank(1)]
    said, _ = ends(lambda: ranks[0].call(wire.exchange), lambda: quietly(ranks[1], fail()))
    assert "rank 1: raised ValueError: no memory" in said
    assert "rank 0: waited in this call" in said
    assert "the first: a at model.py:0" in said
    (late,) = ends(lambda: ranks[1].call(wire.exchange))
    assert late == said  # it comes back when the others have given it up


@pytest.mark.parametrize("wire", [3], indirect=True)
def test_all_who_wait_say_the_same(wire: Wire) -> None:
    ranks = [Rank(r, size=3) for r in range(3)]
    first, _, third = ends(
        lambda: ranks[0].call(wire.exchange),
        lambda: quietly(ranks[1], fail()),
        lambda: ranks[2].call(wire.exchange),
    )
    assert first == third
    assert "ranks 0, 2: waited in this call\n  rank 1: raised ValueError: no memory" in first


def test_a_rank_that_raises_and_comes_back(wire: Wire) -> None:
    ranks = [Rank(0), Rank(1)]

    def again() -> None:
        quietly(ranks[1], fail())
        sleep(0.3)
        ranks[1].call(wire.exchange)

    assert ends(lambda: ranks[0].call(wire.exchange), again) == ["agreed"] * 2
    assert [rank.place.done for rank in ranks] == [1, 1]
    # What is over does not count: rank 1 is late, and has failed before.
    assert (
        ends(lambda: ranks[0].call(wire.exchange), lambda: sleep(1.5) or ranks[1].call(wire.exchange)) == ["agreed"] * 2
    )


def test_ranks_that_fail_together_and_go_on(wire: Wire) -> None:
    ranks = [Rank(0), Rank(1)]
    for _ in range(2):
        assert ends(*(lambda rank=rank: quietly(rank, fail()) for rank in ranks)) == ["agreed"] * 2
    slow = lambda: sleep(1.5) or ranks[1].call(wire.exchange)  # noqa: E731  (longer than the time-out)
    assert ends(lambda: ranks[0].call(wire.exchange), slow) == ["agreed"] * 2


def test_a_rank_that_compiles_is_waited_for(wire: Wire) -> None:
    ranks = [Rank(0), Rank(1)]
    until = monotonic() + 1.5

    def again() -> None:
        quietly(ranks[1], fail())
        sleep(1.5)
        ranks[1].call(wire.exchange)

    with mock.patch.object(rooms.compiling, "at_work", side_effect=lambda rank: monotonic() < until):
        assert ends(lambda: ranks[0].call(wire.exchange), again) == ["agreed"] * 2


def test_a_rank_that_never_came_to_the_list_is_not_waited_for(wire: Wire) -> None:
    """Its error is raised by all, at once."""
    ranks = [Rank(0, timeout=60), Rank(1, timeout=60)]

    def leaves() -> None:
        ranks[1].calls.fail(AgreementError("they differ"))

    assert ends(lambda: ranks[0].call(wire.exchange), leaves) == ["they differ", "agreed"]


def test_a_call_that_only_takes_long_is_let_alone(wire: Wire) -> None:
    """Also if another rank fails in a later one."""
    ranks = [Rank(0), Rank(1)]

    def ahead() -> None:
        ranks[1].call(wire.exchange)
        quietly(ranks[1], fail())

    assert ends(lambda: ranks[0].call(lambda: wire.exchange() or sleep(2)), ahead) == ["agreed"] * 2
    assert not wire.all_there.broken


def test_who_fails_after_the_exchange_is_missed_in_the_next(wire: Wire) -> None:
    ranks = [Rank(0), Rank(1)]

    def goes_on() -> None:
        ranks[0].call(wire.exchange)
        ranks[0].call(wire.exchange)

    said, _ = ends(goes_on, lambda: quietly(ranks[1], lambda: wire.exchange() or fail()()))
    assert "rank 1: raised ValueError: no memory" in said


def test_who_has_ended_is_named(wire: Wire) -> None:
    rank = Rank(0)
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    with mock.patch.object(os, "getpid", return_value=other.pid):
        rank.meeting.board.put("process/1", processes.in_words())
    assert not processes.has_ended(rank.meeting.board.get("process/1") or "")
    other.kill()
    wire.cut()
    (said,) = ends(lambda: rank.call(wire.exchange))
    other.wait()
    assert "rank 1: its process has ended" in said


def test_who_does_not_answer_is_named(wire: Wire) -> None:
    wire.cut()
    rank = Rank(0)
    (said,) = ends(lambda: rank.call(wire.exchange))
    assert "rank 1: did not come to this call, or did not answer" in said
    with mock.patch.object(rooms.Board, "_ask", side_effect=AgreementError("gone")):
        (said,) = ends(lambda: Rank(0).call(wire.exchange))  # with the store
    assert "rank 1: did not come to this call, or did not answer" in said


def test_errors_of_exchanges_that_nobody_rewrote_stay_what_they_are(wire: Wire) -> None:
    wire.cut()
    with pytest.raises(RuntimeError, match="Connection closed by peer") as caught:
        Rank(0, ours=False).call(wire.exchange)
    assert not isinstance(caught.value, AgreementError)


def test_what_concerns_whom() -> None:
    def failed(done: int, errors: int) -> Lost:
        return Lost(places.RAISED, done, errors, "")

    assert concerns(failed(3, 1), Place(3, 0))
    assert concerns(failed(2, 1), Place(3, 0))
    assert concerns(failed(3, 2), Place(3, 1))
    assert not concerns(failed(3, 1), Place(3, 1))
    assert not concerns(failed(4, 1), Place(3, 0))


# === Who is in a call does not compile ==========================================================================


def test_a_list_and_a_rank_in_a_call(wire: Wire) -> None:
    """Both hear at once what differs."""
    ranks = [Rank(0, timeout=60), Rank(1, "b", timeout=60)]
    assert ends(*(lambda rank=rank: Rank(rank).meeting.agree([]) for rank in (0, 1))) == ["agreed"] * 2

    def compiles_alone() -> None:
        sleep(0.5)
        assert Question(ranks[1].meeting.board, "f", 60).alike("b", found("b"))
        try:
            ranks[1].meeting.agree([])
        except AgreementError as error:
            ranks[1].calls.fail(error)
            raise

    first, second = ends(lambda: ranks[0].call(wire.exchange), compiles_alone)
    assert first == second
    assert "were about to run different collectives" in first
    assert "rank 0: a at model.py:0\n  rank 1: b at model.py:0" in first


def test_the_same_list_compiled_again_and_a_rank_in_a_call(wire: Wire) -> None:
    ranks = [Rank(0, timeout=60), Rank(1, timeout=60)]
    assert ends(*(lambda rank=rank: rank.meeting.agree([]) for rank in ranks)) == ["agreed"] * 2

    def compiles_again() -> None:
        sleep(0.5)
        assert Question(ranks[1].meeting.board, "f", 60).alike("a", found("a"))
        ranks[1].meeting.agree([])
        ranks[1].call(wire.exchange)

    assert ends(lambda: ranks[0].call(wire.exchange), compiles_again) == ["agreed"] * 2


def test_exchanges_that_nobody_rewrote_are_not_counted(wire: Wire) -> None:
    """They may come in other pieces on other ranks: who is long in one of them says nothing about where it is."""
    ranks = [Rank(0, timeout=60), Rank(1, "b", timeout=60)]
    other = Rank(0, "c", ours=False)

    def late() -> None:
        other.call(lambda: sleep(1))
        Rank(0, "b").meeting.agree([])

    assert ends(late, lambda: sleep(0.5) or ranks[1].meeting.agree([])) == ["agreed"] * 2
    assert other.place.done == 0


def test_who_is_in_exchanges_that_nobody_rewrote_hears_of_a_failure(wire: Wire) -> None:
    ranks = [Rank(0, ours=False), Rank(1)]
    said, _ = ends(
        lambda: ranks[0].call(wire.exchange), lambda: ranks[1].calls.fail(AgreementError("rank 0 did not come"))
    )
    assert said == "rank 0 did not come"


def test_a_call_that_has_ended_is_not_shown(wire: Wire) -> None:
    ranks = [Rank(0), Rank(1)]
    ends(*(lambda rank=rank: rank.call(lambda: sleep(0.5) or wire.exchange()) for rank in ranks))
    assert ranks[0].meeting.board.get("inside/1") == ""


# === Cost, and what of torch is needed ==========================================================================


def test_a_call_that_goes_well_asks_the_store_nothing(wire: Wire) -> None:
    rank = Rank(0, size=1)
    with mock.patch.object(rooms.Board, "_ask") as ask:
        for _ in range(3):
            rank.call(lambda: None)
    assert ask.call_count == 0


def test_errors_of_gloo_are_known() -> None:
    assert is_of_transport(RuntimeError("[../gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 1ms"))
    assert not is_of_transport(RuntimeError("The size of tensor a (2) must match"))
    assert not is_of_transport(ValueError("gloo/transport/"))


def test_the_backward_of_a_compiled_graph() -> None:
    seen: list[str] = []

    def around(backward: Callable[..., Any], *args: Any) -> Any:
        seen.append("backward")
        return backward(*args)

    compiled = torch.compile(lambda x: (x.sin(), x.detach()), backend="aot_eager")
    x = torch.ones(3, requires_grad=True)
    for _ in range(2):
        outputs = compiled(x)
        assert wrap_backward(outputs, around)
        outputs[0].sum().backward()
    assert seen == ["backward"] * 2
    assert x.grad is not None
    assert torch.equal(x.grad, 2 * x.detach().cos())
    assert not wrap_backward(x.sin(), around)
    assert not wrap_backward((x, None, 3), around)
