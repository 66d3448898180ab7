"""The documents of values that the grid does not lie in: chunks of a row, single steps, states of a recurrence.

Between a row that is cut up and the row that is put together again, the label of every element follows the operations:
what only moves slots is done to the labels as well; slot by slot, the later document wins, so that a state which still
holds an earlier one is found; everything else keeps labels only where its result has the form of what it is made of.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from packpass.leaks.calls import tensors_in, with_tensors
from packpass.semantics.mixing_by_name import copies, is_slot_by_slot, joins_operands, moves_slots, pads

LabelsOf = Callable[[torch.Tensor], "torch.Tensor | None"]


def labels_after(
    name: str, func: Any, args: Any, kwargs: dict[str, Any], results: list[torch.Tensor], labels_of: LabelsOf
) -> list[torch.Tensor | None]:
    """Labels for every tensor among the results of a call, each broadcastable to it; None where they are lost."""
    operands = list(tensors_in((args, kwargs)))
    known = [labels for operand in operands if (labels := labels_of(operand)) is not None]
    if not known:
        return [None] * len(results)
    try:
        if moves_slots(name):
            return _moved(name, func, args, kwargs, results, labels_of)
        return [_combined(name, known, result) for result in results]
    except (RuntimeError, TypeError, IndexError, ValueError):  # no such operation on integers, no common form
        return [None] * len(results)


def _moved(
    name: str, func: Any, args: Any, kwargs: dict[str, Any], results: list[torch.Tensor], labels_of: LabelsOf
) -> list[torch.Tensor | None]:
    """The same done to the labels. Of an indexing the first operand is moved, the others say where to."""
    first = next(iter(tensors_in((args, kwargs))))
    together = joins_operands(name)

    def as_labels(tensor: torch.Tensor) -> torch.Tensor:
        if tensor is not first and not together:
            return tensor
        labels = labels_of(tensor)
        zero = torch.zeros((), dtype=torch.int32, device=tensor.device)
        return (zero if labels is None else labels.to(tensor.device, torch.int32)).expand(tensor.shape)

    if pads(name):  # whatever it is filled with belongs to nobody
        args, kwargs = tuple(args[:3]), {k: v for k, v in kwargs.items() if k != "value"}
    if copies(name):
        return [as_labels(first)]
    moved = list(tensors_in(func(*with_tensors(args, as_labels), **with_tensors(kwargs, as_labels))))
    if [m.shape for m in moved] != [r.shape for r in results]:
        return [None] * len(results)
    return list(moved)


def _combined(name: str, known: list[torch.Tensor], result: torch.Tensor) -> torch.Tensor | None:
    shape = result.shape
    if is_slot_by_slot(name):
        return _latest(known).expand(shape)
    same = [labels for labels in known if labels.shape == shape or _spread(labels, shape)]
    if same:
        return _latest(same).expand(shape)
    uniform = [labels for labels in known if labels.numel() and bool((labels == labels.flatten()[0]).all())]
    if len(uniform) == len(known):
        return torch.stack([labels.flatten()[0] for labels in uniform]).amax().expand(shape)
    rows = [labels for labels in known if labels.shape[:-1] == shape[:-1] and _alike_along_last(labels)]
    if len(rows) == len(known) and len(shape) > 1:
        return _latest([labels[..., :1] for labels in rows]).expand(shape)
    return None


def _latest(known: list[torch.Tensor]) -> torch.Tensor:
    out = known[0]
    for labels in known[1:]:
        out = torch.maximum(out, labels.to(out.device, out.dtype))
    return out


def _spread(labels: torch.Tensor, shape: torch.Size) -> bool:
    return labels.dim() == len(shape) and all(a in (1, b) for a, b in zip(labels.shape, shape, strict=True))


def _alike_along_last(labels: torch.Tensor) -> bool:
    return labels.shape[-1] == 0 or bool((labels == labels[..., :1]).all())
