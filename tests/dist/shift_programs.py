"""Naive shifts of zigzag shards that are declared with their group, as people write them for whole rows.

Each is ``f(fields, cu, group) -> outputs``; the reference of the same name works on whole rows, document by document.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import packpass
from packpass.ops import cp_packed_roll
from tests.ops import reference

Fields = list[Tensor]


def _declared(fields: Fields, cu: Tensor, group: Any, dim: int = -1) -> Fields:
    return [packpass.packed(x, cu, dim, cp_group=group) for x in fields]


def labels(fields: Fields, cu: Tensor, group: Any) -> Fields:
    (ids,) = _declared(fields[:1], cu, group)
    out = torch.roll(ids, -1, dims=-1)
    out[..., -1] = -100
    return [out]


def cut_and_padded(fields: Fields, cu: Tensor, group: Any) -> Fields:
    (ids,) = _declared(fields[:1], cu, group)
    return [F.pad(ids[:, 2:], (0, 2), value=-1)]


def previous(fields: Fields, cu: Tensor, group: Any) -> Fields:
    (ids,) = _declared(fields[:1], cu, group)
    return [torch.cat([ids.new_full((ids.shape[0], 1), 7), ids[:, :-1]], dim=1)]


def masked_together(fields: Fields, cu: Tensor, group: Any) -> Fields:
    ids, mask = _declared([fields[0], fields[1] > 0], cu, group)
    out, keep = torch.roll(ids, -1, 1), torch.roll(mask, -1, 1)
    return [out.masked_fill(~keep, -100)]


def depths(fields: Fields, cu: Tensor, group: Any) -> Fields:
    """Three fields, each depth shifted from the one before: what multi-token prediction does."""
    rows = _declared(fields, cu, group)
    outs = []
    for _ in range(3):
        rows = [torch.roll(x, -1, dims=-1) for x in rows]
        for x, fill in zip(rows, (0, -100, 0.0), strict=True):
            x[..., -1] = fill
        outs += rows
    return outs


def hidden(fields: Fields, cu: Tensor, group: Any) -> Fields:
    """With a gradient: hidden states ``[T / cp, 1, H]`` beside token ids, one declaration for both."""
    ids = packpass.packed(fields[0][:1], cu, cp_group=group)
    states = packpass.packed(fields[2].t().unsqueeze(1), cu, 0, cp_group=group)
    following = torch.roll(states, -1, 0)
    following[-1] = 0
    target = torch.roll(ids, -1, -1)
    target[:, -1] = -100
    return [states * following, target]


def public_ops(fields: Fields, cu: Tensor, group: Any) -> Fields:
    """Calls of the op itself: fields and depths."""
    first = [cp_packed_roll(x, cu, group, fill=3) for x in fields]
    return [*first, *(cp_packed_roll(x, cu, group, -2, fill=3) for x in first)]


def _rolled(x: Tensor, cu: Tensor, shift: int, fill: Any, dim: int = -1) -> Tensor:
    return reference.roll(x, cu, shift, dim, fill)


def _masked_reference(f: Fields, cu: Tensor) -> Fields:
    out, keep = _rolled(f[0], cu, -1, None), _rolled(f[1] > 0, cu, -1, None)
    return [out.masked_fill(~keep, -100)]


def _hidden_reference(f: Fields, cu: Tensor) -> Fields:
    states = f[2].t().unsqueeze(1)
    return [states * _rolled(states, cu, -1, 0, 0), _rolled(f[0][:1], cu, -1, -100)]


Program = Callable[[Fields, Tensor, Any], Fields]
Reference = Callable[[Fields, Tensor], Fields]
FILLS = (0, -100, 0.0)
PROGRAMS: dict[str, tuple[Program, Reference]] = {
    "labels": (labels, lambda f, cu: [_rolled(f[0], cu, -1, -100)]),
    "cut and padded": (cut_and_padded, lambda f, cu: [_rolled(f[0], cu, -2, -1)]),
    "previous": (previous, lambda f, cu: [_rolled(f[0], cu, 1, 7)]),
    "masked together": (masked_together, _masked_reference),
    "depths": (
        depths,
        lambda f, cu: [_rolled(x, cu, -d, fill) for d in (1, 2, 3) for x, fill in zip(f, FILLS, strict=True)],
    ),
    "hidden": (hidden, _hidden_reference),
    "public ops": (public_ops, lambda f, cu: [_rolled(x, cu, -d, 3) for d in (1, 3) for x in f]),
}


# === Gradients ===================================================================================================


def _following(states: Tensor) -> Tensor:
    out = torch.roll(states, -1, -1)
    out[..., -1] = 0
    return out


def beside_its_source(states: Tensor, roll: Callable[[Tensor], Tensor]) -> Tensor:
    """In one exchange with a row that has a gradient."""
    return roll(states.detach()) + roll(states)


def of_one_without(states: Tensor, roll: Callable[[Tensor], Tensor]) -> Tensor:
    with torch.no_grad():
        shifted = roll(states)
    return roll(shifted) * states


def looked_at_first_without(states: Tensor, roll: Callable[[Tensor], Tensor]) -> Tensor:
    shifted = roll(states)
    with torch.no_grad():
        positive = (shifted > 0).float()
    return shifted * positive


GRADIENTS = {f.__name__: f for f in (beside_its_source, of_one_without, looked_at_first_without)}
"""``f(states, roll) -> one output``."""


def with_gradient(name: str) -> Callable[[Tensor, Tensor, Any], Tensor]:
    """``f(states, cu, group)``, of this rank's shard of the states, as people write it."""

    def program(states: Tensor, cu: Tensor, group: Any) -> Tensor:
        return GRADIENTS[name](packpass.packed(states, cu, cp_group=group), _following)

    return program


def reference_with_gradient(name: str, states: Tensor, cu: Tensor) -> Tensor:
    """The same of the whole row."""
    return GRADIENTS[name](states, lambda row: _rolled(row, cu, -1, 0.0))


# === Left alone ==================================================================================================


def targets_cut(fields: Fields, cu: Tensor, group: Any) -> Fields:
    """The last token of the shard loses its target, which is on another rank."""
    ids = packpass.packed(fields[0][:1].abs() % 5, cu, cp_group=group)
    scores = torch.stack([ids * k for k in range(5)], -1).float()
    return [F.cross_entropy(scores[:, :-1].flatten(0, 1), ids[:, 1:].flatten())]


def targets_cut_and_masked(fields: Fields, cu: Tensor, group: Any) -> Fields:
    ids, mask = _declared([fields[0][:1].abs() % 5, fields[1][:1]], cu, group)
    scores = torch.stack([ids * k for k in range(5)], -1).float()
    targets = ids[:, 1:].clone()
    targets[mask[:, 1:] == 0] = -100
    return [F.cross_entropy(scores[:, :-1].flatten(0, 1), targets.flatten())]


def padded_documents(fields: Fields, cu: Tensor, group: Any) -> Fields:
    ids = packpass.packed(fields[0], cu, cu_seqlens_padded=cu + 0, cp_group=group)
    out = torch.roll(ids, -1, dims=-1)
    out[..., -1] = -100
    return [out]


def too_far(fields: Fields, cu: Tensor, group: Any) -> Fields:
    (ids,) = _declared([fields[0].repeat(1, 100)], cu * 100, group)
    return [F.pad(ids[:, 1025:], (0, 1025), value=-1)]


def wraps(fields: Fields, cu: Tensor, group: Any) -> Fields:
    (ids,) = _declared(fields[:1], cu, group)
    return [torch.roll(ids, -1, dims=-1)]


def compared(fields: Fields, cu: Tensor, group: Any) -> Fields:
    (ids,) = _declared(fields[:1], cu, group)
    out = torch.roll(ids, -1, dims=-1)
    out[..., -1] = -100
    return [out == ids]


LEAVE: dict[str, tuple[Program, str]] = {
    "targets cut": (targets_cut, "sharded-row"),
    "targets cut and masked": (targets_cut_and_masked, "sharded-row"),
    "padded documents": (padded_documents, "sharded-row"),
    "too far": (too_far, "sharded-row"),
    "wraps": (wraps, "no-fill"),
    "compared": (compared, "look-ahead"),
}
