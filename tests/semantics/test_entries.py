"""Every entry against torch, on torch's own samples of its operators."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from tests.semantics.opinfos import calls, operators
from tests.semantics.validator import check

OPERATORS = {f"{op.name}{'.' if op.variant_test_name else ''}{op.variant_test_name}": op for op in operators()}


def problems_of(op: Any, samples: int) -> list[str]:
    """What is wrong with the meanings of the calls that the samples of an operator make."""
    found = []
    for function, method, args, kwargs in calls(op, samples):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            shapes = [tuple(a.shape) if hasattr(a, "shape") else a for a in args]
            found += [f"{shapes} {kwargs}: {text}" for text in check(function, *args, method=method, **kwargs) or ()]
    return found


@pytest.mark.parametrize("name", [name for name, op in OPERATORS.items() if not name.startswith("jiterator")])
def test_entry(name: str) -> None:
    assert not problems_of(OPERATORS[name], 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, op in OPERATORS.items() if not name.startswith("jiterator")])
def test_entry_on_many_samples(name: str) -> None:
    assert not problems_of(OPERATORS[name], 40)
