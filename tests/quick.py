"""What makes compiling many small programs quicker and changes nothing else."""

from __future__ import annotations

import contextlib
import gc
import logging
from collections.abc import Iterator
from unittest import mock

import torch._dynamo.config
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


@contextlib.contextmanager
def no_trace_of_compiles() -> Iterator[None]:
    """torch describes everything that it compiles to whoever listens to one of its loggers, and pytest listens to every
    logger that does not hand its records on: a tenth of the time of a test that compiles, for records nobody reads."""
    trace = logging.getLogger("torch.__trace")
    with mock.patch.object(trace, "propagate", True), mock.patch.object(trace, "handlers", []):
        yield


@contextlib.contextmanager
def fewer_collections() -> Iterator[None]:
    """What imports have made stays (`conftest.py` stops collecting until here): to look through it for what can be
    freed takes a quarter of a second every time. ``gc.collect()`` still frees what a test has made."""
    before = gc.get_threshold()
    gc.freeze()
    gc.enable()
    gc.set_threshold(10_000, 20, 10)
    # Dynamo collects after every compile.
    setting = {"run_gc_after_compile": False} if hasattr(torch._dynamo.config, "run_gc_after_compile") else {}
    try:
        with torch._dynamo.config.patch(setting):
            yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
