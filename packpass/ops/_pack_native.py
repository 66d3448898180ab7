"""The C++ functions of ``_pack_rows.cpp``, compiled on first use; without a compiler the ops fall back on torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from packpass.ops import _native

ARGUMENTS = {
    "packpass_move_rows": "ppppppp" + "i" * 7,
    "packpass_pack_boundaries": "pppiii",
    "packpass_pack_plan": "ppppppiii",
}


def native(name: str) -> Callable[..., Any] | None:
    """The C function of this name, or None where it cannot be compiled."""
    return _native.native("_pack_rows.cpp", name, ARGUMENTS[name])
