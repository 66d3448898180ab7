"""What makes compiling many small programs quicker and changes nothing else."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from unittest import mock

import torch._dynamo.guards


@contextlib.contextmanager
def guards_without_a_stopwatch() -> Iterator[None]:
    """Dynamo times the guards of every frame for a line of its log, with the processor's caches flushed before: about a
    tenth of the time of a test that compiles small programs, and most of it where another process uses the memory."""
    if not hasattr(torch._dynamo.guards, "profile_guard_manager"):
        yield
        return

    def no_time(*_: object) -> float:
        return 0.0

    with mock.patch.object(torch._dynamo.guards, "profile_guard_manager", no_time):
        yield
