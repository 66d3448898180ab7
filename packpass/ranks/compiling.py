"""Which ranks compile at present, in the store of the default group: whoever waits for them has patience then.

A rank may compile for minutes what others find in a cache, and a rank that is lost does not compile: so the time-out of
an agreement need not be as long as compiling takes.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch

from packpass._compat import group_store

KEY = "packpass/compiling"


def begins() -> None:
    """This rank traces and compiles a frame."""
    _note("1")


def ends() -> None:
    _note("0")


def at_work(rank: int) -> bool:
    """Whether a rank of the default group compiles."""
    with contextlib.suppress(Exception):  # a store that is gone is told by those who need it
        store, key = _store(), f"{KEY}/{rank}"
        return store is not None and bool(store.check([key])) and store.get(key) == b"1"
    return False


def _note(value: str) -> None:
    with contextlib.suppress(Exception):
        store = _store()
        if store is not None:
            store.set(f"{KEY}/{torch.distributed.get_rank()}", value)


def _store() -> Any:
    """None where there is nobody to tell."""
    dist = torch.distributed
    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return None
    if dist.get_backend() == "fake":
        return None
    return group_store(dist.group.WORLD)
