"""What torch.vmap does for all documents at once, and what it is not asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from tests.passes.test_documents_limits import CU, refused, rewritten
from tests.passes.test_kinds_of_operations import stacked


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def _square(d: Tensor) -> Tensor:
    return d.T @ d + 4 * torch.eye(4)


KNOWN: dict[str, Callable[[Tensor], Tensor]] = {
    "inverse": lambda d: torch.linalg.inv(_square(d)),
    "determinant": lambda d: torch.linalg.slogdet(_square(d)).logabsdet,
    "cholesky": lambda d: torch.linalg.cholesky(_square(d)),
    "singular_values": lambda d: torch.linalg.svd(_square(d).detach()).S,
    "triangles": lambda d: torch.tril(_square(d)) + _square(d).triu(1),
    "diagonal": lambda d: _square(d).diagonal() + torch.diag(_square(d)),
    "power": lambda d: torch.linalg.matrix_power(_square(d), 2),
    "all_pairs": lambda d: torch.kron(d.sum(0), d.sum(0)),
}
UNKNOWN: dict[str, Callable[[Tensor], Tensor]] = {
    "sample_by_sample": lambda d: torch.histc(d.sum(0).detach(), 3, -9, 9),
    "random": lambda d: torch.bernoulli(torch.sigmoid(d.sum(0)).detach()) * 0 + d.sum(0),
    "sizes_of_data": lambda d: (d.sum(0) > 0).nonzero().sum(),
    "other_bytes": lambda d: d.sum(0).view(torch.int32),
}


@pytest.mark.parametrize("name", KNOWN)
def test_is_one_batch(name: str) -> None:
    rewritten(stacked(KNOWN[name]), torch.randn(12, 4), CU)


@pytest.mark.parametrize("name", UNKNOWN)
def test_is_left(name: str) -> None:
    assert refused(stacked(UNKNOWN[name]), torch.randn(12, 4), CU)
