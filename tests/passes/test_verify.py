"""packpass.verify finds a wrong rewrite and names it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import packpass
from packpass.engine.verify import VerificationError

from .test_vectorize import CU, roll_and_fill

OPTIONS = {"packpass.verify": True, "packpass.inner_backend": "eager"}


@pytest.fixture(autouse=True)
def _reset() -> Any:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def test_right_rewrites_pass() -> None:
    fn = torch.compile(roll_and_fill, backend=packpass.backend, options=OPTIONS)
    x = torch.randn(2, 12, requires_grad=True)
    y = fn(x, CU)
    assert torch.equal(y, roll_and_fill(x, CU))
    y.sum().backward()
    assert x.grad is not None


def test_a_wrong_rewrite_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from passes.document_loops import emit

    right = emit.as_roll

    def wrong(emitter: Any, value: Any) -> Any:
        node = right(emitter, value)
        if node is not None:
            node.args = (*node.args[:2], -node.args[2], *node.args[3:])
        return node

    monkeypatch.setattr(emit, "as_roll", wrong)
    fn = torch.compile(roll_and_fill, backend=packpass.backend, options=OPTIONS)
    with pytest.raises(VerificationError, match=r"vectorize_segments at .*test_vectorize\.py:\d+ changed output 0"):
        fn(torch.randn(2, 12), CU)


def test_writes_to_inputs_are_compared_and_happen_once() -> None:
    def bump(x: Tensor, cu: Tensor) -> None:
        for s, e in zip(cu[:-1], cu[1:]):
            x[s:e] += 1

    x = torch.zeros(12)
    torch.compile(bump, backend=packpass.backend, options=OPTIONS)(x, CU)
    assert torch.equal(x, torch.ones(12))
