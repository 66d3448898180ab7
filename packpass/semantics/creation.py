"""Operations that make tensors from numbers: what they hold does not depend on any tensor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from packpass.semantics.binding import example
from packpass.semantics.call import Call
from packpass.semantics.meaning import Axis, Entry, Iota, Meaning, Relating, Traits, Uniform, Uninitialised, meaning

FAMILY = "creation"
_NUMBERS = {"zeros": 0, "ones": 1}
_RANDOM = frozenset({"rand", "randn", "randint", "randperm", "normal", "bernoulli"})


def uniform(op: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """The number that ``zeros``, ``new_full``, ``ones_like`` ... of these arguments holds everywhere; None if there is
    none, or ``op`` makes nothing of the kind."""
    kind = op.removeprefix("new_").removesuffix("_like")
    if kind in _NUMBERS or kind != "full":
        return _NUMBERS.get(kind)
    at = 2 if op.startswith("new_") else 1
    return args[at] if len(args) > at else kwargs.get("fill_value")


def _filled(call: Call) -> Meaning | None:
    """``zeros``, ``new_full``, ``rand_like`` ...: a tensor given for its shape has its slots where the result has them;
    one given for its dtype lines up with nothing."""
    kind = call.op.removeprefix("new_").removesuffix("_like").removesuffix("_permuted").removesuffix("_strided")
    relating = Relating(call)
    relating.from_result()
    for k, operand in enumerate(call.operands):
        if operand.argument == "input" and call.op.endswith("_like"):
            relating.axes[k] = tuple(Axis(loops) for loops in relating.result)
        elif operand.argument == "fill_value":
            relating.axes[k] = ()
    value = _NUMBERS.get(kind, call.get("fill_value"))
    contents: Any = Uninitialised() if kind == "empty" else None
    if value is not None and not isinstance(example(value), torch.Tensor):
        contents = Uniform(value)
    return meaning(FAMILY, relating.done(), Traits(random=kind in _RANDOM), contents)


def _counted(call: Call) -> Meaning | None:
    """``arange``"""
    relating = Relating(call)
    relating.from_result()
    start: Any = call.get("start", default=0)
    return meaning(FAMILY, relating.done(), Traits(), Iota(start, call.get("step", default=1)))


def _plain(call: Call) -> Meaning | None:
    """Made from numbers."""
    relating = Relating(call)
    relating.from_result()
    return meaning(FAMILY, relating.done(), Traits(random=call.op in _RANDOM))


def _number(call: Call) -> Meaning | None:
    """A tensor without axes, made from a number."""
    value = call.get("s", "t")
    if not isinstance(value, (bool, int, float)) or call.results[0].dim():
        return None
    relating = Relating(call)
    return meaning(FAMILY, relating.done(), contents=Uniform(value))


_FILLS = (*_NUMBERS, "full", "empty")
LENT = frozenset(f"new_{k}" for k in _FILLS)
"""A tensor of the sizes that are given, with the dtype and on the device of another one."""
SIZED = LENT.union(_FILLS)
"""A tensor of the sizes that are given, with one number everywhere or nothing yet."""
LIKE = frozenset(f"{k}_like" for k in _FILLS)
"""The same, of another tensor's sizes."""
WITHOUT_GRADIENT = LENT | LIKE | {"detach"}
"""Results have none of what their operands have."""
_KINDS = (*_FILLS, "rand", "randn", "randint")
ENTRIES: dict[str, Entry] = {
    **dict.fromkeys([*_KINDS, *(f"{k}_like" for k in _KINDS), "empty_strided", "empty_permuted"], _filled),
    **dict.fromkeys((*SIZED, "new_empty_strided"), _filled),
    "arange": _counted,
    **dict.fromkeys(("linspace", "logspace", "eye", "randperm", "tril_indices", "triu_indices"), _plain),
    **dict.fromkeys(("scalar_tensor", "tensor"), _number),
    **dict.fromkeys(("hann_window", "hamming_window", "blackman_window", "bartlett_window"), _plain),
}
