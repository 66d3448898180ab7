"""Whether the process of another rank has ended, as far as this machine knows."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from pathlib import Path

PROC = Path("/proc")


def in_words() -> str:
    """This process, in words that tell it from all others."""
    return json.dumps([_machine(), os.getpid(), _started(os.getpid())])


def has_ended(words: str) -> bool:
    """False if it runs, or on another machine, of which nothing is known here."""
    machine, pid, started = json.loads(words)
    if machine != _machine() or started is None:
        return False
    return _started(pid) != started


def _machine() -> str:
    """Where numbers of processes mean the same."""
    with contextlib.suppress(OSError):
        return f"{socket.gethostname()} {(PROC / 'self/ns/pid').readlink()}"
    return ""


def _started(pid: int) -> str | None:
    """When a process started; None if there is none that runs, or nothing is known of processes."""
    try:
        fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]
