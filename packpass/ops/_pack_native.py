"""The C++ functions of ``_pack_rows.cpp``, compiled on first use; without a compiler the ops fall back on torch."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import resources
from typing import Any

from packpass._compat import compile_cpp

ARGUMENTS = {
    "packpass_move_rows": "ppppppp" + "i" * 7,
    "packpass_pack_boundaries": "pppiii",
    "packpass_pack_plan": "ppppppiii",
}


@cache
def native(name: str) -> Callable[..., Any] | None:
    """The C function of this name, or None where it cannot be compiled."""
    source = resources.files("packpass.ops").joinpath("_pack_rows.cpp").read_text()
    return compile_cpp(source, name, ARGUMENTS[name])
