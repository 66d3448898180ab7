"""Gloo ranks that the cases start themselves, every call under a time-out; under ``torchrun`` its processes are used.

A rank that hangs or dies is a :class:`RanksFailed` of that call within its time-out; the processes are ended with it
and the next call starts new ones. Under torchrun the first rank runs the cases and the others serve it
(``torchrun --nproc-per-node 4 -m perf --case cp_exchange``); ending hung processes is torchrun's part there.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from time import monotonic
from typing import Any, Protocol

START_S = 90.0
COLLECTIVE_S = 60.0
# One thread per rank, and no further processes that compile for it: ranks outnumber the cores as it is.
# Graph breaks are counted; Dynamo's warnings about them would come from every rank.
RANK_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "TORCHINDUCTOR_COMPILE_THREADS": "1",
    "TORCH_LOGS": "-dynamo",
    "KINETO_LOG_LEVEL": "99",
}


class RanksFailed(RuntimeError):
    """What is known of every rank that failed, died or did not answer in time; ``timed_out`` if nothing worse did."""

    def __init__(self, message: str, timed_out: bool) -> None:
        super().__init__(message)
        self.timed_out = timed_out


class Ranks(Protocol):
    """``call(function, *arguments)`` runs an importable function on every rank; results by rank."""

    size: int

    def call(self, function: Callable[..., Any], *arguments: Any, timeout_s: float) -> list[Any]: ...

    def close(self) -> None: ...


@functools.cache
def ranks_of(size: int) -> Ranks:
    """``size`` ranks that live as long as this process; under torchrun the ranks that there are.

    There, ranks other than the first do not return: they serve until the first one is done.
    """
    ranks: Ranks = StartedByTorchrun() if under_torchrun() else Started(size)
    atexit.register(ranks.close)
    return ranks


def under_torchrun() -> bool:
    return all(name in os.environ for name in ("WORLD_SIZE", "RANK", "MASTER_ADDR", "MASTER_PORT"))


# === Started here ===============================================================================================


def _serve(rank: int, size: int, meeting: str, pipe: Connection) -> None:
    """One rank's process: a function after the other until None comes."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    # Ctrl-C is for the process that started the ranks; it ends them.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    store, limit = dist.FileStore(meeting, size), timedelta(seconds=COLLECTIVE_S)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=limit)
    pipe.send((True, None))
    with contextlib.suppress(EOFError, BrokenPipeError):  # the starting process is gone
        while (task := pipe.recv()) is not None:
            pipe.send(_outcome(*task))
    dist.destroy_process_group()


def _outcome(function: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[bool, Any]:
    try:
        return True, function(*arguments)
    except Exception:
        return False, traceback.format_exc()


class Started:
    """Processes started by the first call."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._ranks: list[tuple[Any, Connection]] = []
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def call(self, function: Callable[..., Any], *arguments: Any, timeout_s: float) -> list[Any]:
        if not self._ranks:
            self._start()
        for _, pipe in self._ranks:
            with contextlib.suppress(OSError):  # a rank that died since; the answers tell
                pipe.send((function, arguments))
        return self._answers(function.__name__, timeout_s)

    def close(self) -> None:
        for _, pipe in self._ranks:
            with contextlib.suppress(OSError):
                pipe.send(None)
        for process, _ in self._ranks:
            process.join(5)
        self._end()

    def _start(self) -> None:
        import torch.multiprocessing as mp

        context = mp.get_context("spawn")
        self._folder = tempfile.TemporaryDirectory(prefix="packpass-ranks-", ignore_cleanup_errors=True)
        meeting = str(Path(self._folder.name) / "store")
        # Ranks of one node share a compile cache; this one starts empty.
        cache = str(Path(self._folder.name) / "inductor")
        with _environment({**RANK_ENVIRONMENT, "TORCHINDUCTOR_CACHE_DIR": cache}):
            for rank in range(self.size):
                here, there = context.Pipe()
                process = context.Process(target=_serve, args=(rank, self.size, meeting, there), daemon=True)
                process.start()
                there.close()
                self._ranks.append((process, here))
        self._answers("init_process_group", START_S)

    def _answers(self, what: str, timeout_s: float) -> list[Any]:
        deadline = monotonic() + timeout_s
        answers: list[Any] = []
        faults: list[str] = []
        silent = 0
        for rank, (_, pipe) in enumerate(self._ranks):
            try:
                if not pipe.poll(max(0.0, deadline - monotonic())):
                    faults.append(f"rank {rank}: no answer within {timeout_s:.0f} s")
                    silent += 1
                    continue
                succeeded, answer = pipe.recv()
            except (EOFError, OSError):
                succeeded, answer = False, "died"
            answers.append(answer)
            if not succeeded:
                faults.append(f"rank {rank}: {answer}")
                # It leaves the others in a collective: they are not worth the whole time-out.
                deadline = min(deadline, monotonic() + 5)
        if faults:
            self._end()
            raise RanksFailed(f"{what} on {self.size} ranks: " + "\n".join(faults), silent == len(faults))
        return answers

    def _end(self) -> None:
        for process, pipe in self._ranks:
            if process.is_alive():
                process.kill()
            process.join(5)
            pipe.close()
        self._ranks = []
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None


@contextlib.contextmanager
def _environment(wanted: dict[str, str]) -> Iterator[None]:
    """Variables for the processes started inside the block."""
    previous = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in previous.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


# === Started by torchrun ========================================================================================


class StartedByTorchrun:
    """The processes of torchrun, this one the first of them."""

    def __init__(self) -> None:
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        if not dist.is_initialized():
            dist.init_process_group("gloo", timeout=timedelta(seconds=COLLECTIVE_S))
        self.size = dist.get_world_size()
        if dist.get_rank() != 0:
            self._follow()

    def call(self, function: Callable[..., Any], *arguments: Any, timeout_s: float) -> list[Any]:
        import torch.distributed as dist

        dist.broadcast_object_list([(function, arguments)], src=0)
        outcomes = self._gathered(_outcome(function, arguments))
        faults = [f"rank {rank}: {answer}" for rank, (succeeded, answer) in enumerate(outcomes) if not succeeded]
        if faults:
            raise RanksFailed(f"{function.__name__} on {self.size} ranks: " + "\n".join(faults), False)
        return [answer for _, answer in outcomes]

    def close(self) -> None:
        import torch.distributed as dist

        if dist.is_initialized():
            with contextlib.suppress(RuntimeError):  # a rank that is gone needs no good-bye
                dist.broadcast_object_list([None], src=0)
            dist.destroy_process_group()

    def _follow(self) -> None:
        import torch.distributed as dist

        while True:
            task: list[Any] = [None]
            dist.broadcast_object_list(task, src=0)
            if task[0] is None:
                dist.destroy_process_group()
                sys.exit(0)
            self._gathered(_outcome(*task[0]))

    def _gathered(self, outcome: tuple[bool, Any]) -> list[tuple[bool, Any]]:
        import torch.distributed as dist

        outcomes: list[Any] = [None] * self.size
        dist.all_gather_object(outcomes, outcome)
        return outcomes
