"""Models of transformers, unmodified: those that keep documents apart are clean, the others leak where they do."""

from __future__ import annotations

import os

import pytest

import packpass
from tests.leaks.zoo import CASES, CU, Case

transformers = pytest.importorskip("transformers")
FAST = {"llama with positions", "llama sdpa", "lfm2", "mixtral with positions", "gpt-neox", "qwen3 with positions"}


@pytest.mark.parametrize(
    "case", [pytest.param(c, marks=() if c.name in FAST else pytest.mark.slow) for c in CASES], ids=lambda c: c.name
)
def test_leaks_are_those_that_are_known(case: Case) -> None:
    model, args, kwargs = case.make()
    found = packpass.audit(model, CU)(*args, **kwargs)
    assert found.compared[:1] in (("logits",), ("last_hidden_state",))
    places = {(os.path.basename(leak.location).partition(":")[0], leak.operation) for leak in found.leaks}
    assert places == case.leaks, str(found)
    assert found.clean == (not case.leaks)
