"""Which slot belongs to which document, and where a value differs that must not.

The tokens of a call lie on a *grid*: one row ``(T,)``, or rows ``(B, S)``. Every slot of it has a label: the number of
its document from 1 on, or 0 for padding and for what lies behind the last document. The grid is looked for in a value
by its sizes. Where sizes coincide (a width that equals T, a score for every pair of slots) there are several ways to
lay it; then only what is foreign under all of them counts, so that a coincidence hides no leak and invents none.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

import torch

PADDING = 0
"""The label of slots that belong to no document."""

Label = int | frozenset[int]
"""A document, or several that are changed together."""


@dataclasses.dataclass(frozen=True)
class Hit:
    """Where a value differs outside the document that was changed.

    ``mask``: the elements, broadcastable to the value. ``documents``: their labels. ``slots``: their places on the
    grid in row-major order, empty where only labels are known. ``size``: the largest difference.
    """

    mask: torch.Tensor
    documents: tuple[int, ...]
    slots: torch.Tensor
    size: float
    dims: tuple[int, ...] = ()
    """Along which dimensions the grid lies in the value, as far as one can tell."""


class Documents:
    """The documents of one call.

    Args:
        labels: int64 ``[T]`` or ``[B, S]``; 0: no document.
        source: where the boundaries came from, for reports.
    """

    def __init__(self, labels: torch.Tensor, source: str) -> None:
        self.labels, self.source = labels, source
        self.grid = tuple(labels.shape)
        self.flat = labels.flatten()
        self.numbers = tuple(int(n) for n in self.flat.unique().tolist() if n != PADDING)
        self._elsewhere: dict[Label, list[tuple[int, int]]] = {}
        self._one_row_each = labels.dim() == 2 and all(
            len({int(n) for n in row.unique().tolist()} - {PADDING}) <= 1 for row in labels
        )

    @property
    def padded(self) -> bool:
        """Are there slots of no document?"""
        return bool((self.flat == PADDING).any())

    def slots(self, label: int) -> torch.Tensor:
        """Places of a document on the grid, in row-major order."""
        return (self.flat == label).nonzero()[:, 0]

    def placements(self, shape: Sequence[int]) -> list[tuple[int, ...]]:
        """Every way to lay the grid along dimensions of a value: ``(dim,)`` or ``(dim of rows, dim of slots)``; ``(dim,
        )`` of B slots is a value per row, of B * S slots a flattened batch."""
        if len(self.grid) == 1:
            return [(d,) for d, size in enumerate(shape) if size == self.grid[0]]
        rows, width = self.grid
        pairs: list[tuple[int, ...]] = [
            (i, j) for i, j in itertools.permutations(range(len(shape)), 2) if shape[i] == rows and shape[j] == width
        ]
        if pairs or rows == 1:
            return pairs
        flat: list[tuple[int, ...]] = [(d,) for d, size in enumerate(shape) if size == rows * width]
        if flat or not self._one_row_each:
            return flat
        return [(d,) for d, size in enumerate(shape) if size == rows]

    def laid(self, shape: Sequence[int], dims: tuple[int, ...]) -> torch.Tensor:
        """The labels along these dimensions: as many dimensions as the value, of one slot elsewhere."""
        labels = self.labels
        if len(dims) == 1:
            size = shape[dims[0]]
            labels = self.flat if size == self.flat.numel() else labels.amax(1)
            return labels.reshape([size if d == dims[0] else 1 for d in range(len(shape))])
        if dims[0] > dims[1]:
            labels = labels.T
        return labels.reshape([size if d in dims else 1 for d, size in enumerate(shape)])

    def labels_of(self, shape: Sequence[int]) -> torch.Tensor | None:
        """The label of every element, if there is one way to lay the grid only; broadcastable to the value."""
        found = self.placements(shape)
        return self.laid(shape, found[0]) if len(found) == 1 else None

    def foreign(self, shape: Sequence[int], label: Label, along: tuple[int, ...] = ()) -> torch.Tensor | None:
        """The elements of other documents than ``label``, broadcastable to the value; None if the grid lies nowhere.
        ``along``: where it lies, if that is known."""
        found: torch.Tensor | None = None
        for dims in [along] if along else self.placements(shape):
            labels = self.laid(shape, dims)
            other = of_others(labels, label)
            found = other if found is None else found & other
        return found

    def own(self, shape: Sequence[int], label: int, along: tuple[int, ...] = ()) -> torch.Tensor | None:
        """The elements of document ``label``, if there is one way to lay the grid only, or it is known (``along``)."""
        labels = self.laid(shape, along) if along else self.labels_of(shape)
        return None if labels is None else labels == label

    def hit(
        self, base: torch.Tensor, other: torch.Tensor, label: Label, noise: float = 0.0, along: tuple[int, ...] = ()
    ) -> Hit | None:
        """Where two values differ outside document ``label`` beyond rounding, or None."""
        if self.equal_elsewhere(base, other, label, along):
            return None
        foreign = self.foreign(base.shape, label, along)
        if foreign is None or not base.numel():
            return None
        mask, size = differing(base, other, foreign.to(base.device), noise)
        if mask is None:
            return None
        best: tuple[torch.Tensor, tuple[int, ...]] | None = None
        mask = mask.cpu()
        for dims in [along] if along else self.placements(base.shape):
            slots = self._slots_of(mask, base.shape, dims)
            if best is None or len(slots) < len(best[0]):
                best = slots, dims
        assert best is not None
        return Hit(mask, self._documents_at(best[0]), best[0], size, best[1])

    def equal_elsewhere(
        self, base: torch.Tensor, other: torch.Tensor, label: Label, along: tuple[int, ...] = ()
    ) -> bool | None:
        """Are two values the same to the last bit outside a document? Of a row that is soon seen, without a mask of all
        its elements; None: it is not known."""
        placements = [along] if along else self.placements(base.shape)
        if len(self.grid) != 1 or len(placements) != 1:
            return None
        if label not in self._elsewhere:
            marked = torch.cat([torch.zeros(1), of_others(self.flat, label).float().cpu(), torch.zeros(1)]).diff()
            starts, ends = (marked > 0).nonzero()[:, 0].tolist(), (marked < 0).nonzero()[:, 0].tolist()
            self._elsewhere[label] = list(zip(starts, ends, strict=True))
        dim = placements[0][0]
        parts = self._elsewhere[label]
        if len(parts) > MOST_PARTS:
            return None
        return all(torch.equal(base.narrow(dim, a, b - a), other.narrow(dim, a, b - a)) for a, b in parts)

    def _slots_of(self, mask: torch.Tensor, shape: Sequence[int], dims: tuple[int, ...]) -> torch.Tensor:
        """Places on the grid that a mask marks; of a value per row its first slots stand for all."""
        rest = [d for d in range(mask.dim()) if d not in dims]
        marked = mask.any(dim=rest) if rest else mask
        if len(dims) == 1:
            places = marked.nonzero()[:, 0]
            return places if shape[dims[0]] == self.flat.numel() else places * self.grid[1]
        if dims[0] > dims[1]:
            marked = marked.T
        return marked.flatten().nonzero()[:, 0]

    def _documents_at(self, slots: torch.Tensor) -> tuple[int, ...]:
        if len(self.grid) == 2 and self._one_row_each:
            labels = self.labels.amax(1)[slots // self.grid[1]]
        else:
            labels = self.flat[slots]
        return tuple(int(n) for n in labels.unique().tolist() if n != PADDING)


MOST_PARTS = 64
"""Stretches of a row that are compared one by one."""


def of_others(labels: torch.Tensor, label: Label) -> torch.Tensor:
    """Where labels are of other documents, and not of padding."""
    if isinstance(label, int):
        return (labels != label) & (labels != PADDING)
    these = torch.tensor(sorted({*label, PADDING}), device=labels.device, dtype=labels.dtype)
    return ~torch.isin(labels, these)


def differing(
    base: torch.Tensor, other: torch.Tensor, where: torch.Tensor, noise: float = 0.0
) -> tuple[torch.Tensor | None, float]:
    """The elements among ``where`` at which two values differ beyond rounding (broadcastable; None: nowhere), and by
    how much at most. NaN equals NaN; ``noise``: see `tolerance`."""
    unequal = base != other
    alike = [d for d in range(base.dim()) if where.shape[d] == 1 and base.shape[d] != 1]
    mask = (unequal.amax(dim=alike, keepdim=True) if alike else unequal) & where
    if not bool(mask.any()):
        return None, 0.0
    if base.is_floating_point() or base.is_complex():
        unequal &= ~(base.isnan() & other.isnan())
        mask = (unequal.amax(dim=alike, keepdim=True) if alike else unequal) & where
        if not bool(mask.any()):
            return None, 0.0
    if not base.is_floating_point():
        return mask, 1.0
    wide = torch.float64 if base.dtype == torch.float64 else torch.float32
    distance = (other.to(wide) - base.to(wide)).abs().nan_to_num(float("inf"), posinf=float("inf"))
    distance = torch.where(unequal, distance, 0.0)
    largest = distance.amax(dim=alike, keepdim=True) if alike else distance
    mask &= largest > tolerance(base, noise)
    if not bool(mask.any()):
        return None, 0.0
    return mask, float(largest[mask].max())


def tolerance(base: torch.Tensor, noise: float) -> float:
    """Differences up to this are rounding: of the type's precision at the value's largest finite magnitude, and
    several times what two equal runs differ by. A negative ``noise`` asks for every difference."""
    if noise < 0:
        return 0.0
    finite = base.detach().float()
    scale = float(finite.abs().nan_to_num(0.0, posinf=0.0, neginf=0.0).amax()) if base.numel() else 0.0
    ulps = 32.0 if base.dtype in (torch.float32, torch.float64) else 2.0
    return max(ulps * torch.finfo(base.dtype).eps * scale, 4.0 * noise)


EVERY = -1.0
"""In place of a noise: differences of any size count."""


def from_boundaries(cu_seqlens: torch.Tensor, total: int, padded: torch.Tensor | None = None) -> torch.Tensor:
    """Labels ``[total]`` of boundaries; ``padded``: the physical ones, of which each document fills the first slots."""
    ends = cu_seqlens.long().tolist()
    starts = ends[:-1] if padded is None else padded.long().tolist()[:-1]
    labels = torch.zeros(total, dtype=torch.long)
    for number, start in enumerate(starts, 1):
        labels[start : start + ends[number] - ends[number - 1]] = number
    return labels
