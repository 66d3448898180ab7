"""How many bits hold the whole numbers of documents: those of Python have no end, those of tensors have 64 bits.

A number that is read from a tensor goes on as Python's. It is kept in 64 bits, which is the same only where what it is
added to and multiplied by leaves it there. Where something is in a document, and how many there are of it, is no larger
than the document is long.
"""

from __future__ import annotations

from typing import Any

import torch

from packpass.semantics import example
from packpass.semantics.indexing import TAKING
from packpass.semantics.integers import ROW_BITS
from packpass.semantics.names import base_name, name_of_target
from packpass.semantics.pointwise import COMPARISONS, COPIES, WHOLE_ARITHMETIC
from packpass.semantics.views import EXPANDING, PERMUTING, REGROUPING
from passes.document_loops.integers import Affine
from passes.document_loops.terms import (
    Apply,
    ArgReduce,
    DocAssign,
    DocGuard,
    DocRow,
    DocVector,
    Fill,
    Flip,
    Guard,
    Positions,
    Reduce,
    Row,
    Scan,
    Spread,
    Take,
    Term,
)

MOST = 63
"""What 64 bits hold beside the sign."""
_SAME = COPIES | PERMUTING | REGROUPING | EXPANDING
"""What gives the numbers that it got."""


def of_affine(value: Affine) -> int:
    """Bits of a sum of lengths and boundaries."""
    return ROW_BITS + max((abs(c).bit_length() for _, c in value.atoms), default=0)


def of_arithmetic(name: str, bits: list[int]) -> int:
    """Bits of what arithmetic makes of numbers that have so many."""
    return sum(bits) if name in ("mul", "pow") else max(bits) + (name in ("add", "sub"))


def of_tensor(term: Term, dtype: torch.dtype) -> int:
    """Bits of the numbers of a term, which is of that dtype."""
    return min(_of_dtype(dtype), _of_term(term))


def _of_dtype(dtype: torch.dtype) -> int:
    if dtype is torch.bool:
        return 1
    if dtype.is_floating_point or dtype.is_complex:
        return MOST
    info = torch.iinfo(dtype)
    return info.bits - (info.min < 0)


def _of_term(term: Any) -> int:
    """`MOST` where nothing is known."""
    if isinstance(term, (bool, int)):
        return int(term).bit_length()
    if isinstance(term, (ArgReduce, Positions)):
        return ROW_BITS
    if isinstance(term, DocVector):
        return of_affine(term.value)
    if isinstance(term, (Row, DocRow)):
        return _of_dtype(example(term.node).dtype)
    if isinstance(term, (Flip, Spread, Take, DocGuard, Guard)):
        return max(_of_term(term.of), 1)
    if isinstance(term, Fill):
        return max(_of_term(term.of), _of_term(term.number))
    if isinstance(term, DocAssign):
        return max(_of_term(term.base), _of_term(term.value))
    if isinstance(term, (Reduce, Scan)):
        return _of_slots(term.op, _of_term(term.of), getattr(term, "others", ()))
    return _of_call(term) if isinstance(term, Apply) else MOST


def _of_slots(op: str, bits: int, others: tuple[int, ...]) -> int:
    """Bits of what all slots of a document are put together to; ``others``: further dimensions of theirs."""
    if op.removeprefix("a") in ("max", "min"):
        return bits
    return min(MOST, ROW_BITS + bits) if op == "sum" and not others else MOST


def _of_call(term: Apply) -> int:
    name = base_name(term.target if term.method else name_of_target(term.target))
    if name in COMPARISONS or name.startswith("logical_"):
        return 1
    if name.startswith("bitwise_") and "shift" not in name:
        return max(_of_term(arg) for arg in term.args)
    if name in TAKING:
        return _of_term(term.args[0])
    if name in ("argmax", "argmin"):
        return ROW_BITS
    dim = dict(term.kwargs).get("dim", term.args[1] if len(term.args) > 1 else None)
    if name in ("sum", "count_nonzero") and (type(dim) is int or (isinstance(dim, tuple) and len(dim) == 1)):
        return min(MOST, ROW_BITS + (_of_term(term.args[0]) if name == "sum" else 0))
    if name in _SAME:
        dtypes = [arg for arg in term.args[1:] if isinstance(arg, torch.dtype)]
        if name in COPIES and len(dtypes) != 1:
            return MOST if name in ("to", "_to_copy") else _of_term(term.args[0])
        bits = _of_term(term.args[0])
        # What may be negative, or too large, is another number in fewer bits.
        return max([bits, *(_of_dtype(dtype) for dtype in dtypes if _of_dtype(dtype) < MOST)])
    if name in WHOLE_ARITHMETIC and len(term.args) == 2 and not term.kwargs:
        return min(MOST, of_arithmetic(name, [_of_term(arg) for arg in term.args]))
    return MOST
