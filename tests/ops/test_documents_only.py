"""documents_only, put_back and covered_length: what torch.cat of the documents gives, and back."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import packpass.ops  # noqa: F401  (registers the ops)

OPS = torch.ops.packpass
BOUNDARIES = ([0, 3, 7, 12], [2, 2, 5, 9], [0, 0], [4, 4, 4], [0, 12], [11, 12])


@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("cu", BOUNDARIES, ids=str)
def test_equals_the_reference(cu: list[int], dim: int) -> None:
    x = torch.randn(12, 12)
    got = OPS.documents_only(x, torch.tensor(cu), dim)
    want = x.narrow(dim, cu[0], cu[-1] - cu[0])
    assert torch.equal(got, want)
    assert got.is_contiguous()
    back = OPS.put_back(got, torch.tensor(cu), dim, 12)
    zeros = torch.zeros_like(x)
    zeros.narrow(dim, cu[0], cu[-1] - cu[0]).copy_(want)
    assert torch.equal(back, zeros)
    assert OPS.covered_length(torch.tensor(cu, dtype=torch.int32)) == cu[-1] - cu[0]


@pytest.mark.parametrize("cu", BOUNDARIES, ids=str)
def test_gradients(cu: list[int]) -> None:
    x = torch.randn(2, 12, dtype=torch.float64, requires_grad=True)
    boundaries = torch.tensor(cu)
    assert torch.autograd.gradcheck(lambda x: OPS.documents_only(x, boundaries, 1), (x,))
    if cu[-1] > cu[0]:
        assert torch.autograd.gradgradcheck(lambda x: OPS.documents_only(x, boundaries, 1), (x,))


def test_the_result_does_not_share_memory() -> None:
    x = torch.zeros(12)
    OPS.documents_only(x, torch.tensor([0, 12]), 0).add_(1)
    assert not x.any()


def test_put_back_reads_nothing_on_the_host() -> None:
    """The backward knows every length from the shapes; on the meta device nothing could be read."""
    with FakeTensorMode():
        grad, cu = torch.empty(2, 5), torch.empty(4, dtype=torch.int32)
        assert OPS.put_back(grad, cu, 1, 12).shape == (2, 12)
