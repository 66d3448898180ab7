"""torch's own operator samples behind a declared shift and inside a padded model: right, and rewritten if they may be.

A few are always tested; all (`python -m tests.semantics.op_programs --mode shift`, or `padded`) with the slow tests.
"""

from __future__ import annotations

import collections
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db

from . import op_modes
from .op_programs import judge_in
from .op_samples import LeftOut, programs, programs_of, without_seeds

PARTS = 6
LEAST = {"shift": 0.5, "padded": 0.5}
"""Rewritten, of the programs of a part whose slots do not bear on each other."""

SHIFTED = ["gelu", "layer_norm", "lerp", "where"]
MIXED = ["cumsum", "flip", "softmax", "batch_norm"]
PADDED = ["clamp", "gelu", "lerp", "sinc"]
CROSS = ["cumsum", "flip", "softmax", "msort"]


def judged(mode: str, name: str) -> Any:
    op = next(op for op in op_db if op.name.removeprefix("nn.functional.") == name)
    make, judge = judge_in(mode)
    # Torch writes down the stack of whoever asks for a sample, which under pytest takes longer than the sample itself.
    with without_seeds(), ThreadPoolExecutor(1) as own_stack:
        made = own_stack.submit(lambda: list(programs_of(op, 1, make))).result()
    found = [p for p in made if not isinstance(p, LeftOut)]
    assert found, f"no program of {name}"
    return judge(found[0])


@pytest.mark.parametrize("name", SHIFTED)
def test_a_shift_behind_it_stops_at_documents(name: str) -> None:
    assert judged("shift", name).status == "rewritten"


@pytest.mark.parametrize("name", MIXED)
def test_a_shift_behind_it_is_left_alone(name: str) -> None:
    assert judged("shift", name).status == "mixes"


@pytest.mark.parametrize("name", PADDED)
def test_a_padded_model_runs_packed_with_it(name: str) -> None:
    assert judged("padded", name).status == "rewritten"


@pytest.mark.parametrize("name", CROSS)
def test_a_padded_model_stays_padded_with_it(name: str) -> None:
    verdict = judged("padded", name)
    assert (verdict.status, verdict.code) == ("mixes", "cross-token")


def test_slots_that_bear_on_others_are_seen() -> None:
    row = torch.randn(5, 2)
    assert not op_modes._bears_on_others(lambda x: x * 2, row)
    assert op_modes._bears_on_others(lambda x: x.cumsum(0), row) == "slot 0 of the row bears on slots [0, 1, 2, 3, 4]"


@pytest.mark.slow
@pytest.mark.parametrize("part", range(1, PARTS + 1))
@pytest.mark.parametrize("mode", ["shift", "padded"])
def test_every_sample(mode: str, part: int) -> None:
    make, judge = judge_in(mode)
    verdicts = [judge(p) for p in programs(part=(part, PARTS), make=make) if not isinstance(p, LeftOut)]
    assert not [v for v in verdicts if v.status in ("wrong", "raised")]
    counted = collections.Counter(v.status for v in verdicts)
    assert counted["rewritten"] >= LEAST[mode] * (len(verdicts) - counted["mixes"]), counted
