"""``{"packpass.verify": True}``: run the original graph beside the rewritten one and compare, bit for bit.

Both run eagerly on copies of the inputs, so that a difference is packpass's own and not a compiler's rounding; what the
caller gets is the compiled result. Passes that change results on purpose (naive shifts made boundary-aware) are not
compared, what the others do before and after them is. A model that runs on its real tokens is compared at these, to
rounding: what it returns at padding is 0, on purpose. Passes over Inductor's own graphs compare there, forward and
backward (`packpass.ops._must_equal`).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_flatten

from packpass.decisions.records import Rewrite
from packpass.decisions.records import VerificationError as VerificationError
from packpass.engine.replay import NotReplayable, has_loops
from packpass.engine.replay_ways import reference

log = logging.getLogger("packpass.verify")


def verified(
    original: fx.GraphModule,
    rewritten: fx.GraphModule,
    compiled: Callable[..., Any],
    rewrites: Sequence[Rewrite],
    doubt: str = "",
) -> Callable[..., Any]:
    """``compiled`` with a comparison of the two graphs before every call; ``doubt`` is that of `replay`."""
    names = "; ".join(f"{r.rule} at {r.location}" for r in rewrites) or "no rewrite"
    reordered = any(r.claims.reordered for r in rewrites)
    try:
        wanted = reference(original, doubt)
        made = reference(rewritten, doubt) if has_loops(rewritten) else rewritten.forward
    except NotReplayable as reason:
        log.warning("packpass.verify: %s cannot be verified: %s", names, reason)
        return compiled

    def run(*inputs: Any) -> Any:
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            want = _outcome(wanted, inputs)
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            got = _outcome(made, inputs)
        _compare(want, got, names, reordered)
        return compiled(*inputs)

    return run


def _outcome(fn: Callable[..., Any], inputs: Sequence[Any]) -> list[tuple[str, Any]]:
    """Results and inputs after the call, on copies; in-place writes to inputs count as results."""
    copies = [x.detach().clone() if isinstance(x, torch.Tensor) else x for x in inputs]
    with torch.no_grad():
        result = fn(*copies)
    outcome = [(f"output {i}", value) for i, value in enumerate(tree_flatten(result)[0])]
    return outcome + [(f"input {i} (changed in place)", value) for i, value in enumerate(copies)]


def same_tokens(
    padded: fx.GraphModule, packed: fx.GraphModule, results: Sequence[Dims | None], names: str
) -> Callable[[torch.Tensor, Sequence[Any], Sequence[Any]], None]:
    """A comparison of a padded graph with its packed form, for one batch: ``keep`` (``[B, S]``, True at real tokens),
    the inputs and the plan. ``results``: what the dimensions of a result count that says nothing at padding."""

    def compare(keep: torch.Tensor, inputs: Sequence[Any], plan: Sequence[Any]) -> None:
        want = _outcome(padded.forward, inputs)
        got = _outcome(lambda *copies: packed(*copies, *plan), inputs)
        places = [None if dims is None else _at_tokens(keep, dims) for dims in results]
        _compare(want, got, names, True, places)

    return compare


Dims = tuple[tuple[Any, ...], ...]
"""What the slots of every dimension count: "B", "S" or a number of features."""


def _at_tokens(keep: torch.Tensor, dims: Dims) -> torch.Tensor:
    """Where a tensor with these dimensions has real tokens."""
    sizes: dict[Any, int] = {"B": keep.shape[0], "S": keep.shape[1]}

    def size(part: Any) -> int:
        return sizes[part] if part in sizes else int(part)

    labels = [part for parts in dims for part in (parts or (1,))]
    rows = keep if labels.index("B") < labels.index("S") else keep.t()
    rows = rows.reshape([size(part) if part in sizes else 1 for part in labels])
    return rows.expand([size(p) for p in labels]).reshape([math.prod(size(p) for p in parts) for parts in dims])


def _compare(
    want: list[tuple[str, Any]],
    got: list[tuple[str, Any]],
    names: str,
    reordered: bool,
    places: Sequence[torch.Tensor | None] = (),
) -> None:
    """``places``: per value where it counts; None, or nothing, for everywhere."""
    if len(want) != len(got):
        raise VerificationError(f"packpass.verify: {names} returns {len(got)} values instead of {len(want)}")
    counted = [*places, *[None] * (len(want) - len(places))]
    for (what, a), (_, b), place in zip(want, got, counted, strict=True):
        if not isinstance(a, torch.Tensor):
            continue
        if a.shape != b.shape or a.dtype != b.dtype:
            raise VerificationError(
                f"packpass.verify: {names} changed {what}: {tuple(a.shape)} {a.dtype} became {tuple(b.shape)} {b.dtype}"
            )
        if place is not None:
            a, b = (torch.where(place, x, torch.zeros_like(x)) for x in (a, b))
        same = _same(a, b, reordered)
        if not bool(same.all()):
            wrong = (~same).nonzero()
            first = tuple(int(i) for i in wrong[0])
            raise VerificationError(
                f"packpass.verify: {names} changed {what} at {len(wrong)} of {a.numel()} places, first at {first}: "
                f"{a[first].item()} became {b[first].item()}. Please report this program; "
                'options={"packpass.disable": ["<rule>"]} avoids the rewrite.'
            )


def _same(a: torch.Tensor, b: torch.Tensor, reordered: bool) -> torch.Tensor:
    """Elementwise: equal bit for bit, or as far apart as torch's own kernels put one value.

    On the CPU, sigmoid, silu, softplus, gelu and rsqrt give other last bits for the same number on a segment than on a
    whole row, depending on where it falls in a vector. Four units in the last place cover that and hide nothing else.
    With ``reordered`` a rewrite said that it adds up in another order: such a sum is as exact as its largest terms, so
    units are those of the largest number in the tensor, and what is computed from sums multiplies the difference.
    """
    equal = torch.eq(a, b)
    if not (a.is_floating_point() or a.is_complex()):
        return equal
    size, eps = torch.maximum(a.abs(), b.abs()), torch.finfo(a.dtype).eps
    slack = 4 * eps * size
    if reordered:
        finite = torch.where(torch.isfinite(size), size, torch.zeros_like(size))
        largest = finite.max() if finite.numel() else finite.sum()
        slack = (256 if eps < 1e-5 else 8) * eps * (size + largest / 16)
    return equal | ((a - b).abs() <= slack) | (a.isnan() & b.isnan())
