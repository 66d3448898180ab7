"""Functions of Python on real numbers that are given a number of a document: ``math.log(n)``, ``math.cos(i / period)``.

Stock torch traces few of them where the data alone says what the number is; `packpass.markers.reals` stands for the
call, and what Python raises an error for becomes a check of the loop's.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

from packpass._compat import free_unbacked_symbols
from packpass.capture.dynamo import ConstantVariable, SymNodeVariable, emit
from packpass.capture.loop_checks import must_hold
from packpass.capture.state import active
from packpass.markers.reals import REAL
from packpass.semantics.reals import DEFINED, FUNCTIONS


def called(name: str) -> Callable[..., Any]:
    """What stands for a call of ``math.name``."""

    def replacement(tx: Any, value: Any, base: Any = None) -> Any:
        value, base = value.realize(), None if base is None else base.realize()
        if not active.regions or not isinstance(value, SymNodeVariable) or not free_unbacked_symbols(value.sym_num):
            return None
        if base is not None and not _is_base(base):
            return None
        proxy = value.as_proxy()
        if name in DEFINED:
            compared, limit = DEFINED[name]
            region = active.regions[-1]
            message = f"math.{name} of a number that it is not defined for, in the loop at {region.location}"
            must_hold(tx, region, emit(tx, compared, proxy, limit).as_proxy(), message)
        made = emit(tx, REAL, proxy, name)
        return (
            made if base is None else emit(tx, operator.truediv, made.as_proxy(), math.log(base.as_python_constant()))
        )

    return replacement


def _is_base(value: Any) -> bool:
    """Is there a logarithm to it? Of Python's own errors, this one comes for every document."""
    base = value.as_python_constant() if isinstance(value, ConstantVariable) else None
    return isinstance(base, (int, float)) and not isinstance(base, bool) and base > 0 and base != 1


REPLACED: dict[Any, Callable[..., Any]] = {getattr(math, name): called(name) for name in FUNCTIONS}
"""Function of Python -> ``replacement(tx, value)``."""
