"""Losses: slot by slot, and then perhaps summed or averaged. Their operands belong together either way."""

from __future__ import annotations

from typing import Any

from packpass.semantics.call import Call
from packpass.semantics.meaning import (
    Axis,
    Contracted,
    Entry,
    Meaning,
    Reduced,
    Relating,
    Traits,
    is_one,
    meaning,
)

FAMILY = "losses"
OF_CLASSES = frozenset({"cross_entropy", "nll_loss"})
"""Losses of scores for classes."""
_NAMES = {0: "none", 1: "mean", 2: "sum"}
REORDERING = frozenset({"cross_entropy", "binary_cross_entropy_with_logits", "cosine_similarity", "pairwise_distance"})
"""Losses of one slot whose last bits depend on how many slots there are beside."""
_PROBABILITIES = frozenset({"binary_cross_entropy"})


def reduction_of(call: Call | None) -> str | None:
    """How a loss puts slots together; None for what is not understood."""
    if call is None or any(call.get(old) is not None for old in ("size_average", "reduce")):
        return None
    given = call.get("reduction", default="mean")
    return _NAMES.get(given, given if given in ("none", "mean", "sum", "batchmean") else None)


def _reduce(relating: Relating, reduction: str) -> None:
    """All loops of the result, and it, are gone."""
    if reduction == "none":
        return
    for loops in relating.result:
        for loop in loops:
            relating.roles[loop] = Reduced(reduction, None, reduction != "sum")
    relating.result = []


def _slot_by_slot(call: Call) -> Meaning | None:
    """Operands line up from the right; then perhaps all slots are put together."""
    reduction = reduction_of(call)
    if reduction is None:
        return None
    relating = Relating(call)
    relating.from_result(_wide([o.value.shape for o in call.operands]))
    for k in range(len(call.operands)):
        relating.aligned(k)
    _reduce(relating, reduction)
    if len(relating.result) != call.results[0].dim():
        return None
    raises = frozenset({"input", "target"}) if call.op in _PROBABILITIES else frozenset()
    return meaning(FAMILY, relating.done(), Traits(raises=raises, reorders=reduction != "none"))


def _wide(shapes: list[Any]) -> list[Any]:
    """The shape that all of these are broadcast to."""
    rank = max((len(shape) for shape in shapes), default=0)
    padded = [[1] * (rank - len(shape)) + list(shape) for shape in shapes]
    return [next((s for s in sizes if not is_one(s)), 1) for sizes in zip(*padded, strict=True)]


def _of_classes(call: Call) -> Meaning | None:
    """``cross_entropy`` and ``nll_loss``: scores ``[C]``, ``[N, C]`` or ``[N, C, ...]``, and a class for each row (or a
    distribution over classes)."""
    reduction = reduction_of(call)
    scores, target = call.of("input"), call.of("target")
    if reduction is None or scores is None or target is None or call.several:
        return None
    at, shape = (1 if scores.rank > 1 else 0), list(scores.value.shape)
    relating = Relating(call)
    relating.from_result(shape)
    classes = relating.result[at]
    for loop in classes:
        relating.roles[loop] = Contracted(call.op)
    whole, rows = list(relating.result), relating.result[:at] + relating.result[at + 1 :]
    probabilities = target.value.is_floating_point()
    for k, operand in enumerate(call.operands):
        if operand is scores:
            relating.axes[k] = tuple(Axis(loops) for loops in whole)
        elif operand is target:
            along = whole if probabilities else rows
            if operand.rank != len(along):
                return None
            relating.axes[k] = tuple(relating.along(s, to) for s, to in zip(operand.value.shape, along, strict=True))
        elif operand.rank == 1:  # weights of the classes
            relating.axes[k] = (relating.along(operand.value.shape[0], classes),)
        else:
            return None
    relating.result = rows
    _reduce(relating, reduction)
    if len(relating.result) != call.results[0].dim():
        return None
    raises = frozenset() if probabilities else frozenset({"target"})
    return meaning(FAMILY, relating.done(), Traits(raises=raises, reorders=True))


def _distance(call: Call) -> Meaning | None:
    """``cosine_similarity`` and ``pairwise_distance``: broadcast, then along one axis."""
    if len(call.operands) != 2:
        return None
    shape = _wide([o.value.shape for o in call.operands])
    dim = call.get("dim", default=1) if call.op == "cosine_similarity" else -1
    if not shape or not isinstance(dim, int) or not -len(shape) <= dim < len(shape):
        return None
    dim %= len(shape)
    relating = Relating(call)
    relating.from_result(shape)
    for k in range(2):
        relating.aligned(k)
    for loop in relating.result[dim]:
        relating.roles[loop] = Contracted(call.op)
    relating.result[dim : dim + 1] = [()] if call.get("keepdim") else []
    if len(relating.result) != call.results[0].dim():
        return None
    return meaning(FAMILY, relating.done(), Traits(reorders=True))


PAIRED = frozenset(
    {"l1_loss", "mse_loss", "smooth_l1_loss", "huber_loss", "soft_margin_loss", "kl_div", "poisson_nll_loss"}
    | {"binary_cross_entropy", "binary_cross_entropy_with_logits", "hinge_embedding_loss"}
)
"""Losses of slots of the input, each against the slot of the target in its place."""
ENTRIES: dict[str, Entry] = {
    **dict.fromkeys((*PAIRED, "margin_ranking_loss"), _slot_by_slot),
    **dict.fromkeys(OF_CLASSES, _of_classes),
    **dict.fromkeys(("cosine_similarity", "pairwise_distance"), _distance),
}
