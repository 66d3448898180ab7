"""Functions of Python on real numbers that are given a number of a document: ``math.log(n)``, ``math.cos(i / period)``.

Stock torch traces few of them where the data alone says what the number is; `packpass.markers.reals` stands for the
call, and what Python raises an error for becomes a check of the loop's.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

from packpass import markers
from packpass._compat import free_unbacked_symbols
from packpass.capture.dynamo import ConstantVariable, SymNodeVariable, emit
from packpass.capture.state import active
from packpass.markers.reals import REAL
from packpass.semantics.reals import DEFINED, FUNCTIONS


def _base(base: Any) -> Any:
    """The base of a logarithm; a number that there is none for, if the program works it out."""
    known = base.realize() if base is not None else None
    if known is None:
        return None
    value = known.as_python_constant() if isinstance(known, ConstantVariable) else 1
    return value if type(value) in (int, float) else 1


def called(name: str) -> Callable[..., Any]:
    """What stands for a call of ``math.name``."""

    def replacement(tx: Any, value: Any, base: Any = None) -> Any:
        value = value.realize()
        if not active.regions or not isinstance(value, SymNodeVariable) or not free_unbacked_symbols(value.sym_num):
            return None
        below = _base(base)
        if below is not None and (not below > 0 or below == 1):
            return None  # of Python's own errors, this one comes for every document
        proxy = value.as_proxy()
        if name in DEFINED:
            compared, limit = DEFINED[name]
            region = active.regions[-1]
            message = f"math.{name} of a number that it is not defined for, in the loop at {region.location}"
            args = (emit(tx, compared, proxy, limit).as_proxy(), message, region.id, region.iteration)
            tx.output.create_proxy("call_function", markers.LOOP_CHECK, args, {})
        made = emit(tx, REAL, proxy, name)
        return made if below is None else emit(tx, operator.truediv, made.as_proxy(), math.log(below))

    return replacement


REPLACED: dict[Any, Callable[..., Any]] = {getattr(math, name): called(name) for name in FUNCTIONS}
"""Function of Python -> ``replacement(tx, value)``."""
