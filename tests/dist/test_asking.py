"""What ranks ask each other while they compile, between threads: no answer is waited for that cannot come."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import monotonic, sleep
from typing import Any
from unittest import mock

import pytest
import torch.distributed as dist

from packpass.ranks import meeting as rooms
from packpass.ranks.asking import Question
from packpass.ranks.meeting import AgreementError, Board
from tests.dist.test_meeting import Group, found, hear, meeting

SOON = 5.0


@pytest.fixture(autouse=True)
def store() -> Iterator[Any]:
    made = dist.HashStore()
    with (
        mock.patch.object(rooms, "group_store", return_value=made),
        mock.patch.object(dist, "get_process_group_ranks", return_value=[4, 5, 6]),
    ):
        yield made


def question(rank: int, code: str = "f", size: int = 2, timeout: float = 20.0) -> Question:
    return Question(Board(Group(rank, size)), code, timeout)


def ask(*calls: Callable[[], Any]) -> list[Any]:
    """What each of several threads is answered; all are within a time that is shorter than their time-outs."""
    answers: list[Any] = ["no answer"] * len(calls)

    def one(i: int) -> Callable[[], None]:
        def call() -> None:
            answers[i] = calls[i]()

        return call

    started = monotonic()
    said = hear(*map(one, range(len(calls))))
    assert monotonic() - started < SOON
    return [answer if ended == "agreed" else ended for answer, ended in zip(answers, said, strict=True)]


def say(rank: int, words: str, code: str = "f", size: int = 2, delay: float = 0.0) -> Callable[[], bool]:
    def call() -> bool:
        sleep(delay)
        return question(rank, code, size).alike(words, found(*words))

    return call


def test_all_say_the_same() -> None:
    assert ask(say(0, "a", size=3), say(1, "a", size=3, delay=0.3), say(2, "a", size=3)) == [True] * 3
    assert ask(say(1, "a", size=3)) == [True]  # alone, it waits for nobody


def test_one_says_something_else() -> None:
    assert ask(say(0, "a", size=3), say(1, "b", size=3, delay=0.3), say(2, "a", size=3)) == [False] * 3
    assert ask(say(0, "a", size=3)) == [False]


def test_one_puts_nothing_in_place() -> None:
    assert ask(lambda: question(1).stays(), say(0, "a")) == [None, False]
    question(1).leaves()
    assert ask(say(0, "b")) == [False]  # however often it compiles again


def test_who_has_left_knows() -> None:
    assert not question(0).has_left()
    question(0).leaves()
    question(0).stays()
    assert question(0).has_left()


def test_first_nothing_then_the_same() -> None:
    """An evaluation before a training."""
    for rank in (0, 1):
        question(rank).stays()
        question(rank).stays()
    assert ask(say(0, "a"), say(1, "a", delay=0.3)) == [True, True]


def test_who_has_compiled_before_runs_what_it_has() -> None:
    question(1).stays()
    question(0).stays()
    assert not question(0, timeout=0.3).alike("a", found("a"))


def test_nobody_answers() -> None:
    """That is told before the first call."""
    assert question(0, timeout=0.3).alike("a", found("a"))


def test_other_questions() -> None:
    assert ask(say(0, "a", "f", 3), say(1, "a", "f", 3, 0.3), say(2, "a", "g", 3, 0.1)) == [True] * 3


def test_a_question_and_a_list() -> None:
    """The rank that asks hears nothing, and comes with its list."""

    def asks() -> None:
        sleep(0.3)
        assert question(0).alike("b", found("b"))
        meeting(0, "b", 2).agree([])

    first, second = ask(asks, lambda: meeting(1, "a", 2).agree([]))
    assert first == second
    assert "were about to run different collectives" in first


def test_a_question_and_a_list_that_all_have_run() -> None:
    """A rank that compiles it again does not run it while another asks for something else."""
    assert ask(*(lambda rank=rank: meeting(rank, "a", 2).agree([]) for rank in (0, 1))) == [None, None]

    def asks() -> None:
        assert question(0).alike("b", found("b"))
        sleep(0.5)
        meeting(0, "b", 2).agree([])

    def runs_again() -> None:
        sleep(0.3)
        with pytest.raises(AgreementError, match="were about to run different collectives"):
            meeting(1, "a", 2).agree([])

    first, second = ask(asks, runs_again)
    assert "were about to run different collectives" in first
    assert second is None


def test_a_store_that_is_gone() -> None:
    with mock.patch.object(Board, "_ask", side_effect=AgreementError("gone")):
        question(0).stays()
        question(0).leaves()
        assert not question(0).has_left()
        assert question(0).alike("a", found("a"))
