"""The tables of a roll over ranks: the C++ that the CPU runs against the tensor form that every device has."""

from __future__ import annotations

import random

import pytest
import torch

from packpass.ops import _cp_roll_slots as tables


@pytest.mark.parametrize("group_size", [2, 3, 8])
@pytest.mark.parametrize("shifts", [[-1], [1], [-3, -1, 2], [-9, 17]], ids=str)
def test_both_forms_agree(group_size: int, shifts: list[int]) -> None:
    """Empty documents, documents shorter than the shift, none with slots, tails at both ends."""
    assert tables._native() is not None
    numbers = random.Random(group_size)
    for count in (1, 4, 9):
        for most in (0, 3, 12):
            lengths = [2 * group_size * numbers.randint(0, most) for _ in range(count)]
            head, tail = numbers.randint(0, 2), numbers.randint(1, 3)
            cu = torch.tensor([head * group_size, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)
            local = int(cu[-1]) // group_size + tail
            for rank in (0, group_size - 1):
                for ends_sent in (False, True):
                    arguments = (cu, local, group_size, rank, sorted(shifts), ends_sent)
                    found, wanted = tables._cpu_kernel(*arguments), tables._kernel(*arguments)
                    assert len(found) == len(wanted) == 2 + 3 * len(shifts)
                    for one, other in zip(found, wanted, strict=True):
                        assert torch.equal(one, other), (lengths, rank, ends_sent)
                    sent, outside, *_ = found
                    assert int(sent.min()) >= 0
                    assert int(sent.max()) < local
                    assert outside.shape == sent.shape
