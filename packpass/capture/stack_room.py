"""Room on the interpreter's stack for everything that is called while a frame is traced and compiled.

From 3.11 on CPython keeps the frames of Python functions in chunks of 16 KiB. A call for which the last chunk has no
room maps another one, which is unmapped as soon as that call returns: where a loop happens to call functions across
such a border, every call costs system calls and page faults. Tracing makes hundreds of thousands of calls some hundred
frames deep, so how deep its caller is decides whether a compile takes a third longer; and hooks make it deeper. A chunk
is as large as the first frame in it asks for, rounded up to a power of two: behind a frame that asks for much there is
as much again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

# In words of 8 bytes: 2 MiB for the frame, which never touches them, and nearly 2 MiB behind it. A thousand frames, the
# interpreter's limit, take less.
WORDS = 2**18


def with_room(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call the function where the interpreter has room for a thousand frames. Python 3.10 has no such stack: there it
    is called as it is."""
    return function(*args, **kwargs)


with_room.__code__ = with_room.__code__.replace(co_stacksize=WORDS)
