"""Torch's functional collectives: what the ranks of a group call alike, and what becomes of the sizes.

A collective of `ELEMENTWISE` gives every element of what all ranks hold in its place, whatever the shape. One of
`ALONG_FIRST` puts together, or divides, the first dimension and leaves the others alone. Each returns what may be read
after a wait only.
"""

from __future__ import annotations

from typing import Any

import torch

NAMESPACES = ("_c10d_functional", "_c10d_functional_autograd")
ELEMENTWISE = frozenset({"all_reduce", "broadcast"})
ALONG_FIRST = frozenset({"all_gather_into_tensor", "reduce_scatter_tensor"})
WAIT = "wait_tensor"


def collective_name(target: Any) -> str | None:
    """The name of a functional collective, or of the wait for one; None for anything else."""
    if isinstance(target, torch._ops.OpOverloadPacket):
        target = getattr(target, "default", None)
    if not isinstance(target, torch._ops.OpOverload) or target.namespace not in NAMESPACES:
        return None
    return str(target._opname)
