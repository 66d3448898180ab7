"""Torch's functional collectives: what the ranks of a group call alike, and what becomes of the sizes.

A collective of `ELEMENTWISE` gives every element of what all ranks hold in its place, whatever the shape. One of
`ALONG_FIRST` puts together, or divides, the first dimension and leaves the others alone. Each returns what may be read
after a wait only.
"""

from __future__ import annotations

from typing import Any

from packpass._compat import qualified_name

NAMESPACES = ("_c10d_functional", "_c10d_functional_autograd")
ELEMENTWISE = frozenset({"all_reduce", "broadcast"})
ALONG_FIRST = frozenset({"all_gather_into_tensor", "reduce_scatter_tensor"})
WAIT = "wait_tensor"


def collective_name(target: Any) -> str:
    """Name of a functional collective or of the wait for one (packet or overload), without its namespace; "" for
    anything else."""
    namespace, op = qualified_name(target)
    return op if namespace in NAMESPACES else ""
