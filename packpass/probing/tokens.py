"""The tensors that are given: which of them hold tokens, and how one document's tokens become others."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping

import torch

from packpass.probing.documents import Documents

_NUMBERS = ("seq_idx", "segment_id", "document_id", "doc_id", "sequence_id")


@dataclasses.dataclass(frozen=True)
class Input:
    """A tensor that is given: its name, or its path, and where it is among the leaves. ``dim``: along which dimension
    the row lies, where that is known."""

    name: str
    path: str
    value: torch.Tensor
    dim: int | None = None

    @property
    def along(self) -> tuple[int, ...]:
        return () if self.dim is None else (self.dim,)


def name_has(name: str, *parts: str) -> bool:
    """Does the last word of a name contain any of these?"""
    words = re.findall(r"[A-Za-z_]\w*", name)
    return bool(words) and any(part in words[-1].lower() for part in parts)


def is_mask(entry: Input) -> bool:
    """Is this a mask of real tokens: by its type, or by a name and values of 0 and 1?"""
    value = entry.value
    if value.dtype == torch.bool:
        return True
    if not name_has(entry.name, "mask"):
        return False
    return bool(((value == 0) | (value == 1)).all()) or (value.is_floating_point() and bool((value <= 0).all()))


def restarting(rows: torch.Tensor) -> bool:
    """Are these positions that go up by one, or start again at 0?"""
    step = rows[:, 1:] - rows[:, :-1]
    return bool(((step == 1) | (rows[:, 1:] == 0)).all()) and bool((rows[:, 0] == 0).all())


def numbers_documents(entry: Input) -> bool:
    """Does this tensor say for every slot to which document it belongs?"""
    return name_has(entry.name, *_NUMBERS) and not entry.value.is_floating_point()


@dataclasses.dataclass(frozen=True)
class Changes:
    """Which arguments are changed, and which stay as they are, with the reason."""

    changed: tuple[Input, ...]
    held: tuple[tuple[str, str], ...]

    def exchange(self, at: Mapping[str, torch.Tensor], documents: Documents, label: int) -> None:
        """Make the tokens of one document others, in the tensors of a copy by path: integers are exchanged for others
        of the same tensor, floating-point numbers get noise of their own size added."""
        done: set[tuple[object, ...]] = set()
        with torch.no_grad():
            for entry in self.changed:
                value = at[entry.path]
                place = (value.data_ptr(), value.dtype, value.shape, value.stride())
                if place in done:
                    continue  # one tensor given twice, as tokens and as labels
                done.add(place)
                mask = documents.own(value.shape, label, entry.along)
                if mask is not None:
                    mask = mask.to(value.device).expand(value.shape)
                    value.detach().copy_(torch.where(mask, _other_values(value), value))


def plan(inputs: list[Input], documents: Documents) -> Changes:
    """What can be changed in a call."""
    changed, held = [], []
    for entry in inputs:
        if not documents.placements(entry.value.shape):
            continue
        reason = _structural(entry, documents)
        if not reason and not entry.along and len(documents.placements(entry.value.shape)) > 1:
            reason = "several of its dimensions could be the row"
        if not reason and not entry.value.is_floating_point() and len(_pool(entry.value)) < 2:
            reason = "it holds one token only, so there is none to exchange it for"
        if reason:
            held.append((entry.name, reason))
        else:
            changed.append(entry)
    return Changes(tuple(changed), tuple(held))


def _structural(entry: Input, documents: Documents) -> str:
    """Why a tensor says where documents are rather than what is in them, or ""."""
    value = entry.value
    if is_mask(entry):
        return "a mask"
    if value.is_complex():
        return "complex numbers"
    if value.is_floating_point():
        return ""
    if name_has(entry.name, "position", "pos_ids") or numbers_documents(entry):
        return "positions or numbers of documents"
    rows = value.reshape(-1, value.shape[-1]).cpu()
    if value.numel() > 1 and restarting(rows):
        return "positions"
    labels = documents.labels_of(value.shape)
    if labels is not None and documents.numbers:
        shift = value.cpu().long() - labels
        if len(shift.unique()) == 1:
            return "numbers of documents"
    return ""


def _pool(value: torch.Tensor) -> torch.Tensor:
    """Tokens that occur; negative ones mark what is ignored."""
    known = value.unique()
    return known[known >= 0]


def _other_values(value: torch.Tensor) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    if value.is_floating_point():
        spread = float(value.detach().float().std()) if value.numel() > 1 else 0.0
        noise = torch.randn(value.shape, generator=generator).to(value.device)
        return value.detach() + (noise * (spread or 1.0)).to(value.dtype)
    pool = _pool(value)
    rank = torch.searchsorted(pool, value.contiguous().clamp(min=0))
    step = torch.randint(1, max(2, len(pool)), value.shape, generator=generator).to(value.device)
    return torch.where(value < 0, value, pool[(rank + step) % len(pool)])
