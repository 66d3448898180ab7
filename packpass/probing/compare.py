"""Whether a change of one document reaches others: runs with equal circumstances, compared value by value."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import torch

from packpass.probing.documents import EVERY, Documents, Hit, Label, differing, of_others

Given = TypeVar("Given", contravariant=True)
Along = Mapping[str, int]
"""The dimension of the row in values by path, where it is known; elsewhere it is found by its size."""
Marked = Mapping[str, torch.Tensor]
"""Labels of every element, broadcastable, of values by path that the grid does not lie in: a loss of T - 1 slots."""


class Runs(Protocol[Given]):
    """What can be run again and again under equal circumstances."""

    @property
    def state_after(self) -> torch.Tensor | None:
        """How the random numbers stood after the last run."""

    def run(self, given: Given | None = None, /) -> dict[str, Any]:
        """What is returned, by path, for these arguments or for its own."""


def placed(value: Any, documents: Documents) -> bool:
    """Has an output a value per token, or per document?"""
    return isinstance(value, torch.Tensor) and (
        bool(documents.placements(value.shape)) or per_document(value, documents) is not None
    )


def per_document(value: torch.Tensor, documents: Documents) -> torch.Tensor | None:
    """Labels of an output with a slot for every document in its first dimension, broadcastable to it."""
    count = len(documents.numbers)
    if documents.placements(value.shape) or value.dim() == 0 or value.shape[0] != count or count < 2:
        return None
    return torch.tensor(documents.numbers).reshape(-1, *[1] * (value.dim() - 1))


def hits(
    base: Mapping[str, Any],
    other: Mapping[str, Any],
    documents: Documents,
    label: Label,
    noise: float,
    along: Along | None = None,
    marked: Marked | None = None,
) -> dict[str, Hit]:
    """Outputs that differ at other documents than ``label``."""
    found: dict[str, Hit] = {}
    for path, value in base.items():
        changed = other.get(path)
        if not isinstance(value, torch.Tensor) or not isinstance(changed, torch.Tensor):
            continue
        if value.shape != changed.shape or value.dtype != changed.dtype:
            continue
        dims = (along[path],) if along is not None and path in along else ()
        rows = None if dims else per_document(value, documents)
        rows = marked[path] if marked is not None and path in marked else rows
        if rows is None:
            hit = documents.hit(value, changed, label, noise, dims)
        else:
            mask, size = differing(value, changed, of_others(rows, label).to(value.device), noise)
            numbers = () if mask is None else documents_of(rows, mask, value.shape)
            hit = None if mask is None else Hit(mask, numbers, torch.empty(0, dtype=torch.long), size)
        if hit is not None:
            found[path] = hit
    return found


def documents_of(labels: torch.Tensor, mask: torch.Tensor, shape: torch.Size) -> tuple[int, ...]:
    """The labels of the elements that a mask marks."""
    found = labels.expand(shape)[mask.to(labels.device).expand(shape)]
    return tuple(int(n) for n in found.unique().tolist())


def noise_between(one: Mapping[str, Any], two: Mapping[str, Any]) -> float:
    """The largest finite difference of two equal runs."""
    largest = 0.0
    for path, value in one.items():
        other = two.get(path)
        if isinstance(value, torch.Tensor) and isinstance(other, torch.Tensor) and value.shape == other.shape:
            if value.is_floating_point() and value.numel():
                distance = (value.double() - other.double()).abs().nan_to_num(0.0, posinf=0.0)
                largest = max(largest, float(distance.max()))
    return largest


def unequal(one: Any, two: Any) -> bool:
    """Do two outputs differ at all?"""
    if not isinstance(one, torch.Tensor) or not isinstance(two, torch.Tensor):
        return False
    if one.shape != two.shape:
        return True
    return not bool(((one == two) | ((one != one) & (two != two))).all())


def _other_forms(base: Mapping[str, Any], other: Mapping[str, Any]) -> set[str]:
    """What cannot be compared, because what it is depends on the tokens."""
    found = base.keys() ^ other.keys()
    for path, value in base.items():
        changed = other.get(path)
        if isinstance(value, torch.Tensor) and isinstance(changed, torch.Tensor):
            if value.shape != changed.shape or value.dtype != changed.dtype:
                found.add(path)
    return found


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What runs of the model alone say: for each document that was changed, the outputs that differ elsewhere."""

    noise: float
    dirty: dict[int, dict[str, Hit]]
    outputs: dict[int, dict[str, Any]]
    """What those runs returned."""
    other_forms: frozenset[str] = frozenset()
    """Outputs that have another shape for other tokens, and cannot be compared."""


def probes(documents: Documents, wanted: int) -> tuple[int, ...]:
    """Labels of so many documents: the first, the last, and others evenly between them."""
    there = documents.numbers
    if wanted >= len(there):
        return there
    last = len(there) - 1
    return tuple(dict.fromkeys(there[round(k * last / max(wanted - 1, 1))] for k in range(wanted)))


def compare(
    runs: Runs[Given],
    others: Callable[[int], Given],
    documents: Documents,
    changed: Sequence[int],
    step: Callable[[int, int, str], None] | None = None,
    along: Along | None = None,
    first: bool = False,
    marked: Marked | None = None,
) -> tuple[Verdict, dict[str, Any], dict[str, bool], list[str]]:
    """Run what is given as it is, and once for each document with other tokens there; as it is once more if anything
    differs that should not.

    Args:
        runs: what is run. others: the arguments in which a document is another.
        changed: labels of the documents to change.
        step: is told how far this is.
        first: whether the first document that another one sees is enough.
        marked: whose the elements of outputs are that the grid does not lie in.

    Returns the verdict, the base's outputs, which outputs differ between any two runs, and what to tell the reader.
    """
    total = len(changed) + 1
    step = step or (lambda done, total, text: None)
    step(0, total, "as it is")
    base = runs.run()
    state = runs.state_after
    noise: float | None = None
    dirty: dict[int, dict[str, Hit]] = {}
    outputs: dict[int, dict[str, Any]] = {}
    moved = dict.fromkeys(base, False)
    told: list[str] = []
    other_forms: set[str] = set()
    for k, label in enumerate(changed):
        step(k + 1, total, f"other tokens, document {label - 1}" if label else "other padding")
        other = runs.run(others(label))
        if state is not None and runs.state_after is not None and not torch.equal(state, runs.state_after):
            told.append("how many random numbers are drawn depends on the tokens, so differences may be random ones")
        other_forms |= _other_forms(base, other)
        for path in base:
            moved[path] = moved[path] or unequal(base[path], other.get(path))
        if noise is None:
            if not hits(base, other, documents, label, EVERY, along, marked):
                continue  # equal to the last bit: how far two equal runs are apart does not matter
            noise = noise_between(base, runs.run())
        found = hits(base, other, documents, label, noise, along, marked)
        if found:
            dirty[label], outputs[label] = found, other
            if first:
                break
        elif rounding := hits(base, other, documents, label, EVERY, along, marked):
            size = max(hit.size for hit in rounding.values())
            told.append(f"differences of at most {size:.1g} at other documents are rounding, and were not counted")
    told += [f"output {path} has another form for other tokens, and was not compared" for path in sorted(other_forms)]
    return Verdict(noise or 0.0, dirty, outputs, frozenset(other_forms)), base, moved, list(dict.fromkeys(told))
