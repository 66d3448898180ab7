"""Processes with one gloo rank each, started once and given one function after the other, every call under a time-out.

A rank that hangs or dies is an error of that call within the time-out, with what is known of every rank; the pool is
ended with it, and the next call starts a new one.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from time import monotonic
from typing import Any

import torch.multiprocessing as mp

START_S = 60
CALL_S = 60


def _serve(rank: int, size: int, meeting: str, pipe: Connection) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=size)
    pipe.send((True, None))
    while (task := pipe.recv()) is not None:
        function, arguments = task
        try:
            pipe.send((True, function(*arguments)))
        except BaseException:
            pipe.send((False, traceback.format_exc()))
    dist.destroy_process_group()


class Ranks:
    """``call(function, *arguments)`` runs an importable function on every rank and returns the results by rank."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._ranks: list[tuple[Any, Connection]] = []
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def call(self, function: Callable[..., Any], *arguments: Any, timeout_s: float = CALL_S) -> list[Any]:
        if not self._ranks:
            self._start()
        for _, pipe in self._ranks:
            pipe.send((function, arguments))
        return self._answers(function.__name__, timeout_s)

    def close(self) -> None:
        for _, pipe in self._ranks:
            with contextlib.suppress(OSError):
                pipe.send(None)
        for process, _ in self._ranks:
            process.join(10)
        self._end()

    def _start(self) -> None:
        context = mp.get_context("spawn")
        self._folder = tempfile.TemporaryDirectory(prefix="packpass-ranks-", ignore_cleanup_errors=True)
        meeting = str(Path(self._folder.name) / "store")
        previous = os.environ.get("OMP_NUM_THREADS")
        os.environ["OMP_NUM_THREADS"] = "1"
        try:
            for rank in range(self.size):
                here, there = context.Pipe()
                process = context.Process(target=_serve, args=(rank, self.size, meeting, there), daemon=True)
                process.start()
                there.close()
                self._ranks.append((process, here))
        finally:
            if previous is None:
                del os.environ["OMP_NUM_THREADS"]
            else:
                os.environ["OMP_NUM_THREADS"] = previous
        self._answers("init_process_group", START_S)

    def _answers(self, what: str, timeout_s: float) -> list[Any]:
        deadline = monotonic() + timeout_s
        answers: list[Any] = []
        faults: list[str] = []
        for rank, (_process, pipe) in enumerate(self._ranks):
            try:
                if not pipe.poll(max(0.0, deadline - monotonic())):
                    faults.append(f"rank {rank}: no answer within {timeout_s} s")
                    continue
                succeeded, answer = pipe.recv()
            except (EOFError, OSError):
                faults.append(f"rank {rank}: died")
                continue
            answers.append(answer)
            if not succeeded:
                faults.append(f"rank {rank}:\n{answer}")
            # A rank that failed leaves the others in a collective: they are not worth the whole time-out.
            if faults:
                deadline = min(deadline, monotonic() + 5)
        if faults:
            self._end()
            raise RuntimeError(f"{what} on {self.size} ranks:\n" + "\n".join(faults))
        return answers

    def _end(self) -> None:
        for process, pipe in self._ranks:
            if process.is_alive():
                process.kill()
            process.join(10)
            pipe.close()
        self._ranks = []
        if self._folder is not None:
            self._folder.cleanup()
