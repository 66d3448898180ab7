"""A mistake in packpass's own code must not fail a model: it runs as in stock torch, and somebody is told."""

from __future__ import annotations

from unittest import mock

import torch
from torch import Tensor

import packpass
from packpass.capture import sequences


def loop(x: Tensor, cu: Tensor) -> Tensor:
    return torch.cat([x[s:e].flip(0) for s, e in torch.stack((cu[:-1], cu[1:]), 1).tolist()])


def test_the_model_runs_all_the_same() -> None:
    torch._dynamo.reset()
    x, cu = torch.randn(9), torch.tensor([0, 4, 9])
    with mock.patch.object(sequences, "columns_of", None):  # which is called
        report = packpass.explain(loop)(x, cu)
        torch.testing.assert_close(torch.compile(loop, backend=packpass.backend)(x, cu), loop(x, cu))
    assert [refusal.code for refusal in report.refusals if refusal.code == "internal-error"]
