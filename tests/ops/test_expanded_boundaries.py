"""``expanded_boundaries`` against its docstring, and the check of declared rows."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
import torch
from torch import Tensor

import packpass.ops  # noqa: F401  (registers the ops)

OP = torch.ops.packpass.expanded_boundaries.default
CHECK = torch.ops.packpass.check_expansion.default


def reference(
    cu: list[int], widths: list[int], expanded: int, padded: list[int] | None, exact: bool, sure: bool
) -> list[int]:
    total, row = len(widths), cu if padded is None else padded
    ordered = all(0 <= a <= b <= total for a, b in pairwise([0, *row]))
    if padded is not None:
        room = all(b - a <= q - p for (a, b), (p, q) in zip(pairwise(cu), pairwise(padded), strict=True))
        ordered = ordered and room and all(0 <= a <= b <= total for a, b in pairwise([0, *cu]))
    collapsed = ordered and all(w >= 0 for w in widths) and sum(widths) <= expanded
    if exact:
        starts = [sum(widths[:t]) for t in range(total)]
        wide = any(w != 1 for w, start in zip(widths, starts, strict=True) if start >= row[-1])
        other = all(boundary in [*starts, sum(widths)] for boundary in row) and not wide
        collapsed = collapsed and row[-1] == total != expanded and not other
    if not collapsed:
        doubtful = row[-1] <= total and any(w != 1 for w in widths)
        return [0, *[expanded] * (len(cu) - 1)] if sure and doubtful else cu
    if padded is None:
        return [sum(widths[:boundary]) for boundary in cu]
    out = [cu[0]]
    for (a, b), start in zip(pairwise(cu), padded[:-1], strict=True):
        out.append(out[-1] + sum(widths[start : start + b - a]))
    return out


def call(
    cu: list[int], widths: list[int], expanded: int, padded: list[int] | None, exact: bool, sure: bool = False
) -> list[int]:
    second = torch.tensor(padded, dtype=torch.int32) if padded is not None else None
    out: Tensor = OP(torch.tensor(cu, dtype=torch.int32), torch.tensor(widths), expanded, second, exact, sure)
    assert out.dtype is torch.int32
    return out.tolist()


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("sure", [False, True])
def test_reference(exact: bool, padded: bool, sure: bool) -> None:
    rng = random.Random(0)
    changed = 0
    for _ in range(300):
        widths = [rng.choice((1, 1, 1, 0, 2, 5)) for _ in range(rng.randint(1, 12))]
        if rng.random() < 0.1:
            widths[-1] = -1
        total = len(widths)
        slots = [0, *sorted(rng.randint(0, total) for _ in range(rng.randint(0, 3))), rng.choice((total, total - 1))]
        cu = slots
        if padded:
            cu = [0]
            for a, b in pairwise(slots):
                cu.append(cu[-1] + rng.randint(0, max(b - a, 0)))
        expanded = sum(widths) + rng.choice((0, 0, 0, 2, -1))
        arguments = cu, widths, expanded, slots if padded else None, exact, sure
        out = call(*arguments)
        assert out == reference(*arguments)
        changed += out != cu
    assert changed > 30


@pytest.mark.parametrize(
    ("cu", "exact"),
    [
        ([0, 8], False),  # behind the row: they count what it becomes
        ([0, 3, 2], False),  # no boundaries
        ([0, 3], True),  # a tail
        ([0, 1, 4, 8], True),
    ],
)
def test_left_alone(cu: list[int], exact: bool) -> None:
    assert call(cu, [1, 5, 1, 1], 8, None, exact) == cu


def test_a_tail_as_long_as_what_an_image_adds() -> None:
    """Boundaries of both rows end at T; only an image in the tail, or a boundary inside one, tells them apart."""
    widths = [1, 3, 1, 1, 1, 1]
    assert call([0, 4, 6], widths, 8, None, True) == [0, 4, 6]
    assert call([0, 2, 6], widths, 8, None, True) == [0, 4, 8]  # 2 would lie inside the image
    assert call([0, 5, 6], [1, 1, 1, 1, 1, 3], 8, None, True) == [0, 5, 8]


def test_opcheck() -> None:
    arguments = torch.tensor([0, 2, 4]), torch.tensor([1, 5, 1, 1]), 8, None, True
    torch.library.opcheck(OP, arguments)


def test_check_names_numbers() -> None:
    CHECK(torch.tensor([1, 5, 1]), 7)
    CHECK(torch.tensor([True, False, True]), 2)
    with pytest.raises(ValueError, match="3 tokens expand to 7 slots, 5 of them for 1 placeholders, but the row has 6"):
        CHECK(torch.tensor([1, 5, 1]), 6)
    with pytest.raises(ValueError, match="token 2 expands to -1 slots"):
        CHECK(torch.tensor([1, 5, -1]), 6)
