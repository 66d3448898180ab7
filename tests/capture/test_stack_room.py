"""Calls made deep below a frame that asks for much cross no border of a chunk of the interpreter's stack."""

from __future__ import annotations

import resource
import sys

import pytest
import torch

import packpass
from packpass.capture import stack_room
from packpass.capture.stack_room import with_room

CALLS = 2000


def _leaf(value: int) -> int:
    one, two, three = value, value + 1, value + 2
    return one + two + three


def _faults_at(depth: int) -> int:
    """Page faults of a loop of calls that many frames down, of which a few words are taken for each frame."""
    if depth:
        return _faults_at(depth - 1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for value in range(CALLS):
        _leaf(value)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def _most(depths: int) -> int:
    return max(_faults_at(depth) for depth in range(depths))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="page faults are counted as Linux counts them")
def test_no_depth_is_slow_with_room() -> None:
    _most(10)
    if sys.version_info >= (3, 11):
        assert _most(400) >= CALLS / 2, "no call crosses a border of a chunk: there is nothing to mend"
    assert with_room(_most, 400) < CALLS / 10


def test_calls_as_it_is() -> None:
    assert with_room(int, "101", base=2) == 5
    with pytest.raises(ZeroDivisionError):
        with_room(divmod, 1, 0)


def test_backends_are_called_with_room(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def counting(function: object, *args: object, **kwargs: object) -> object:
        asked.append(function)
        return with_room(function, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr("packpass.capture.with_room", counting)
    x = torch.randn(4)
    options = {"packpass.inner_backend": "eager"}
    assert torch.equal(torch.compile(lambda x: x + 1, backend=packpass.backend, options=options)(x), x + 1)
    assert len(asked) == 1
    assert torch.equal(torch.compile(lambda x: x + 2, backend="eager")(x), x + 2)
    assert len(asked) == 1, "frames of other backends are not ours"
    assert stack_room.with_room.__code__.co_stacksize == stack_room.WORDS
