"""C++ functions that lie beside the ops: compiled by Inductor's compiler on first use, and kept in its cache.

Where they cannot be compiled a warning is logged, once, and the ops fall back on torch.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable
from functools import cache
from importlib import resources
from typing import Any

from torch import Tensor

from packpass._compat import compile_cpp

_INCLUDE = re.compile(r'^#include "(.+)"$', re.MULTILINE)


def source(name: str) -> str:
    """A file with its own headers in it: one text, which may come out of a zip file, and which all of its content names
    to the cache."""
    text = resources.files("packpass.ops").joinpath(name).read_text().replace("#pragma once", "")
    return _INCLUDE.sub(lambda found: source(found[1]), text)


@cache
def native(name: str, function: str, arguments: str) -> Callable[..., Any] | None:
    """A function of a C++ file, or None where it cannot be compiled; ``arguments`` as of `compile_cpp`."""
    return compile_cpp(source(name), function, arguments)


def address_of(argument: Any) -> Any:
    """Where the numbers of an array or a tensor lie; anything else as it is."""
    if isinstance(argument, array):
        return argument.buffer_info()[0]
    return argument.data_ptr() if isinstance(argument, Tensor) else argument
