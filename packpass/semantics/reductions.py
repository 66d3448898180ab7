"""Operations along axes that they name: sums and their like, scans, sorts, softmax, norms of other axes."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch

from packpass.semantics.binding import example
from packpass.semantics.call import Call
from packpass.semantics.meaning import (
    ONE,
    Addressed,
    Axis,
    Entry,
    Meaning,
    Mixed,
    Reduced,
    Relating,
    Role,
    Scanned,
    Traits,
    axis_indices,
    is_one,
    meaning,
    same_size,
)
from packpass.semantics.pointwise import pointwise

FAMILY = "reductions"

OF_A_ROW = ("sum", "count_nonzero", "argmax", "argmin", "any")
"""What makes a number of a row of integers or truth values that is exact in any order."""
EXTREMES = frozenset({"amax", "amin", "aminmax"})
"""The largest value, the smallest, or both; not where they are."""
TRUTHS = frozenset({"any", "all", "count_nonzero"})
"""What asks of every slot only whether it is 0."""
SPREADS = frozenset({"var", "std", "var_mean", "std_mean"})
"""How far slots are from their mean."""
NORMS = frozenset({"norm", "linalg_vector_norm", "linalg_norm"})
"""Lengths of vectors: a root of the sum of powers."""
SCANS = {"cumsum": "sum", "cumprod": "prod", "cummax": "max", "cummin": "min", "logcumsumexp": "logsumexp"}
"""Scans, and what each gives slot i of the slots up to i."""
SOFTMAXES = frozenset({"softmax", "log_softmax", "softmin"})
"""Exponentials over their sum, or the logarithm of that."""
PLACED = frozenset({"max", "min", "argmax", "argmin"})
"""Of one dimension: the first of several slots that are equal, or where it is."""
NORMALISED = frozenset({"layer_norm", "rms_norm", "native_layer_norm", "_fused_rms_norm"})
"""What takes the mean, the spread or both out of the last axes, with weights of their shape."""
# Reductions and what changes nothing when it is put in beside.
_IDENTITY: dict[str, Any] = {
    **{"sum": 0, "nansum": 0, "prod": 1, "amax": -math.inf, "amin": math.inf, "any": False, "all": True},
    **{"logsumexp": -math.inf, "count_nonzero": 0, "norm": 0, "linalg_vector_norm": 0},
}
REDUCES_ONE_TO_ITSELF = frozenset({"sum", "mean", "prod", "amax", "amin", "max", "min"})
"""What these make of a single number is that number."""
_COUNTING = SPREADS | {"mean", "nanmean", "median", "nanmedian", "mode"}
_PLAIN = frozenset({"max", "min", "argmax", "argmin", "aminmax", "kthvalue", "quantile", "nanquantile"})
REDUCING = frozenset({*_IDENTITY, *_COUNTING, *_PLAIN})
OF_ALL: dict[str, Callable[..., Any]] = {
    "max": torch.amax,
    "min": torch.amin,
    "argmax": torch.argmax,
    "argmin": torch.argmin,
}
"""What is asked of all entries without a dimension -> the same along one."""
"""What puts the slots of the axes that it is given together, or those of all."""
_MIXING = {
    # With the dimension that is taken if none is given.
    **dict.fromkeys((*SOFTMAXES, "_safe_softmax")),
    **{"normalize": 1, "sort": -1, "argsort": -1, "topk": -1},
    **{"glu": -1, "msort": 0, "renorm": None, "diff": -1, "kthvalue": -1},
}
# Sums and selections: zero in, zero out, whatever the values are.
LINEAR = frozenset(
    {"sum", "mean", "nansum", "max", "min", "median", "nanmedian", "cumsum", "cummax", "cummin"}
    | {"sort", "topk", "diff", "msort", "kthvalue", "mode"}
)
# Sums in an order, or rounded in blocks, that depends on how many slots there are beside.
REORDERING = frozenset(
    {"sum", "mean", "prod", "var", "std", "var_mean", "std_mean", "norm", "linalg_vector_norm", "logsumexp", "nansum"}
    | {"nanmean", "softmax", "log_softmax", "softmin", "cumsum", "cumprod", "logcumsumexp", "normalize", "renorm"}
    | {"quantile", "nanquantile", "glu", "layer_norm", "rms_norm"}
)


@functools.cache
def takes_several_axes(op: str) -> bool:
    """May an operation be given several axes at once, as ``dim``?"""
    packet = getattr(torch.ops.aten, op, None)
    schemas = [] if packet is None else [getattr(packet, name)._schema for name in packet.overloads()]
    return any(a.name == "dim" and "List[int]" in str(a.type) for schema in schemas for a in schema.arguments)


def _traits(call: Call) -> Traits:
    zero = frozenset({"input"} if call.op in LINEAR else ())
    raises = frozenset({"q"}) if call.op in ("quantile", "nanquantile") else frozenset()
    return Traits(raises=raises, zero_gradient=zero, reorders=call.op in REORDERING)


def dims_of(call: Call, default: Any = None) -> tuple[int, ...] | None:
    """The axes that a call names, all of them for none; None if they are not constants."""
    operand = call.operands[0]
    given = call.get("dim", "dims", default=default)
    if given is None or (isinstance(given, (tuple, list)) and not given):
        return tuple(range(operand.rank))
    return axis_indices(given, operand.rank) if operand.rank else ()


def reduced(call: Call) -> Meaning | None:
    """The axes that are named go; ``keepdim`` leaves one slot of them."""
    operand = call.of("input")
    if operand is None or call.operands[0] is not operand:
        return None
    if call.op in ("max", "min") and call.of("other") is not None:
        return pointwise(call)
    if len(call.operands) > 1 and call.op not in ("quantile", "nanquantile"):
        return None
    dims = dims_of(call)
    if dims is None or call.get("p", "ord") == "nuc":  # the nuclear norm takes its matrix apart, and may fail
        return None
    role = Reduced(call.op, _IDENTITY.get(call.op), call.op in _COUNTING)
    relations = []
    for item, result in enumerate(call.results):
        relating = Relating(call, item)
        axes = _along(relating, operand.value, dims, role)
        rest = [loops.loops for d, loops in enumerate(axes) if d not in dims]
        extra = _quantiles(relating) if len(call.operands) > 1 else []
        if result.dim() == operand.rank + len(extra) and not (call.get("keepdim") is not True and dims):
            rest = [() if d in dims else axis.loops for d, axis in enumerate(axes)]
        relating.result = [*extra, *rest]
        relating.axes[0] = axes
        if len(relating.result) != result.dim():
            return None
        relations.append(relating.done())
    return meaning(FAMILY, relations, _traits(call))


def _quantiles(relating: Relating) -> list[tuple[int, ...]]:
    """``q`` has one slot, or gives the result an axis of its own in front."""
    q = relating.call.operands[1].value
    axes = tuple(relating.axis(size) for size in q.shape)
    relating.axes[1] = axes
    return [axis.loops for axis in axes]


def _along(relating: Relating, value: Any, dims: tuple[int, ...], role: Role) -> tuple[Axis, ...]:
    return tuple(relating.axis(size, role if d in dims else None) for d, size in enumerate(value.shape))


def mixed(call: Call) -> Meaning | None:
    """The axes that are named stay, perhaps with another number of slots; every slot of them may see every other."""
    operand = call.of("input")
    if operand is None or call.operands[0] is not operand or len(call.operands) != 1:
        return None
    default = _MIXING.get(call.op)
    if call.op == "msort":
        dims: tuple[int, ...] | None = (0,)
    elif call.op == "renorm":  # every slot of this axis by itself, over all others
        kept = dims_of(call)
        dims = None if kept is None else tuple(d for d in range(operand.rank) if d not in kept)
    elif call.op in _MIXING and call.get("dim", default=default) is None:
        return None  # torch chooses one by the rank
    else:
        dims = dims_of(call, default)
    role: Role = Scanned(call.op) if call.op in SCANS else Mixed(call.op)
    return along(call, dims, role, FAMILY, _traits(call))


def _differences(call: Call) -> Meaning | None:
    """Neighbours along one axis are mixed."""
    return mixed(call) if call.of("prepend") is None and call.of("append") is None else None


def along(call: Call, dims: tuple[int, ...] | None, role: Role, family: str, traits: Traits) -> Meaning | None:
    """Something happens along these axes of the first operand, and nothing along the others."""
    if dims is None:
        return None
    relations = []
    for item, result in enumerate(call.results):
        value = call.operands[0].value
        if not isinstance(result, torch.Tensor) or result.dim() != value.dim():
            return None
        relating = Relating(call, item)
        axes = []
        for d, (size, new) in enumerate(zip(value.shape, result.shape, strict=True)):
            if d not in dims:
                axes.append(relating.axis(size))
                relating.result.append(axes[-1].loops)
            elif same_size(size, new) and not is_one(size):
                axes.append(Axis((relating.loop(size, role),)))
                relating.result.append(axes[-1].loops)
            else:  # all of them, to as many others
                axes.append(ONE if is_one(size) else Axis((relating.loop(size, Mixed(role.op)),)))
                relating.result.append(() if is_one(new) else (relating.loop(new),))
        relating.axes[0] = tuple(axes)
        relations.append(relating.done())
    return meaning(family, relations, traits)


def _normalised(call: Call) -> Meaning | None:
    """``layer_norm`` and ``rms_norm``: over the last axes, with weights of their shape."""
    operand = call.of("input")
    shape = call.get("normalized_shape")
    if operand is None or call.operands[0] is not operand or not isinstance(shape, (tuple, list)):
        return None
    if any(not same_size(example(s), size) for s, size in zip(shape[::-1], operand.value.shape[::-1], strict=False)):
        return None
    dims = range(operand.rank - len(shape), operand.rank)
    relations = []
    for item, result in enumerate(call.results):
        relating = Relating(call, item)
        axes = _along(relating, operand.value, tuple(dims), Mixed(call.op))
        relating.axes[0] = axes
        if result is None or result.dim() != operand.rank:
            return None
        relating.result = [
            () if is_one(size) and d in dims else axis.loops
            for d, (axis, size) in enumerate(zip(axes, result.shape, strict=True))
        ]
        for k, weight in enumerate(call.operands[1:], 1):
            tail = axes[operand.rank - weight.rank :]
            relating.axes[k] = tail if weight.rank == len(shape) else ()
            if weight.rank != len(shape):
                return None
        relations.append(relating.done())
    return meaning(FAMILY, relations, Traits(reorders=True, singular=not _away_from_zero(call)))


def _away_from_zero(call: Call) -> bool:
    """Is what is added to a variance more than 0?"""
    eps = call.get("eps")
    return eps is None or (isinstance(eps, (int, float)) and eps > 0)


def _over_statistics(call: Call) -> Meaning | None:
    """``group_norm``, ``instance_norm``, ``batch_norm``: axis 0 stays as it is, unless statistics are taken over it."""
    operand = call.of("input")
    if operand is None or operand.rank < 2 or call.operands[0] is not operand or call.several:
        return None
    batch = call.op == "batch_norm"
    training = bool(call.get("training", "use_input_stats", default=True))
    given = call.of("running_mean") is not None
    writes = given and training
    if writes or (call.op == "instance_norm" and not training):
        return None  # running statistics are written
    relating = Relating(call)
    relating.from_result()
    for d, loops in enumerate(relating.result):
        still = d == 1 if batch else d == 0
        if loops and not still and not (batch and not training):
            if call.op == "instance_norm" and d == 1:
                continue
            relating.roles[loops[0]] = Mixed(call.op)
    relating.axes[0] = tuple(Axis(loops) for loops in relating.result)
    for k in range(1, len(call.operands)):
        if call.operands[k].rank != 1:
            return None
        relating.axes[k] = (relating.along(call.operands[k].value.shape[0], relating.result[1]),)
    return meaning(FAMILY, relating.done(), Traits(reorders=True, singular=not _away_from_zero(call)))


def _triangle(call: Call) -> Meaning | None:
    """``tril`` and ``triu``: chosen by place."""
    relating = Relating(call)
    relating.from_result()
    for loops in relating.result[-2:]:
        if loops:
            relating.roles[loops[0]] = Addressed(call.op)
    relating.axes[0] = tuple(Axis(loops) for loops in relating.result)
    return meaning(FAMILY, relating.done(), Traits(zero_gradient=frozenset({"input"})))


def _fourier(call: Call) -> Meaning | None:
    """Transforms along one axis (the last), or several (all, or the last two)."""
    operand = call.operands[0] if call.operands else None
    if operand is None or len(call.operands) != 1:
        return None
    default: Any = -1
    if call.op.endswith("2"):
        default = (-2, -1)
    elif call.op.endswith(("n", "shift")):
        given = call.get("s")
        default = None if not given else tuple(range(-len(given), 0))
    dims = axis_indices(call.get("dim") if call.get("dim") is not None else default, operand.rank)
    return along(call, dims, Mixed(call.op), FAMILY, Traits(reorders=True))


_FOURIER = ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")
ENTRIES: dict[str, Entry] = {
    **dict.fromkeys(REDUCING, reduced),
    **dict.fromkeys({*SCANS, *_MIXING} - {"kthvalue", "diff"}, mixed),
    "diff": _differences,
    **dict.fromkeys(NORMALISED, _normalised),
    **dict.fromkeys(("group_norm", "instance_norm", "batch_norm"), _over_statistics),
    **dict.fromkeys(("tril", "triu"), _triangle),
    **dict.fromkeys([f"fft_{n}{d}" for n in _FOURIER for d in ("", "2", "n")], _fourier),
    **dict.fromkeys(("fft_fftshift", "fft_ifftshift"), _fourier),
}
