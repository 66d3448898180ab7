"""torch's own operator samples, run document by document in a loop: what becomes of them, and that it is right.

A few are always tested; all of them (`python -m tests.semantics.op_programs`) with the slow tests.
"""

from __future__ import annotations

import collections

import pytest
from torch.testing._internal.common_methods_invocations import op_db

from tests.stock import everyday_torch

from . import op_programs
from .op_programs import Verdict, judge, programs
from .op_samples import LeftOut, OpProgram, programs_of, without_seeds

PARTS = 6
FLOOR = 0.75
"""Of every part; all parts together have more than 85 %, and no part less than 78 % (see the command)."""

REWRITTEN = [
    "binary_cross_entropy",
    "bitwise_left_shift",
    "cholesky",
    "conv1d",
    "cosine_embedding_loss",
    "cosine_similarity",
    "cross_entropy",
    "diag_embed",
    "gcd",
    "group_norm",
    "i0",
    "isin",
    "kthvalue",
    "masked.normalize",
    "max_pool2d",
    "multi_margin_loss",
    "multilabel_soft_margin_loss",
    "nanmean",
    "nansum",
    "softmin",
    "topk",
    "view_as_complex",
]
"""Rewritten: pointwise ops, ops without a rule of their own, losses, kernels that keep samples, linear algebra."""

LEFT_ALONE = {
    "batch_norm": ("no-rule", "batch_norm"),
    "block_diag": ("body-not-traceable", ""),
    "chunk": ("no-rule", "chunk"),
    "cov": ("body-not-traceable", ""),
    "cross": ("no-rule", "cross"),  # its dimension is the first of size 3, which the document's length may be
    "cummax": ("list-append", ""),
    "diag": ("no-rule", "diag"),
    "diagonal": ("no-rule", "diagonal"),
    "diff": ("no-rule", "diff"),
    "gradient": ("body-not-traceable", ""),
    "instance_norm": ("no-rule", "instance_norm"),
    "istft": ("no-rule", "istft"),
    "masked_scatter": ("no-rule", "masked_scatter"),
    "masked_select": ("body-not-traceable", ""),
    "median": ("no-rule", "median"),
    "geqrf": ("body-not-traceable", ""),
    "quantile": ("no-rule", "quantile"),
}
"""Left alone: what mixes slots along a document in a way that has no packed form, or has sizes that depend on data."""


def first_program(name: str) -> OpProgram:
    op = next(op for op in op_db if op.name.removeprefix("nn.functional.") == name)
    with without_seeds():
        found = next(program for program in programs_of(op) if isinstance(program, OpProgram))
    return found


@pytest.mark.parametrize("name", REWRITTEN)
def test_rewrites(name: str) -> None:
    verdict = judge(first_program(name))
    if verdict.code == "frame-not-compiled" and "Could not guard" in verdict.reason and not everyday_torch():
        pytest.skip(f"this torch asks for sizes of documents in {name}")
    assert verdict.status == "vectorised", verdict


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_leaves_alone(name: str) -> None:
    code, named = LEFT_ALONE[name]
    verdict = judge(first_program(name))
    assert (verdict.status, verdict.code) == ("refused", code), verdict
    assert named in verdict.reason


def test_random_numbers_stay_in_their_order() -> None:
    with without_seeds():
        assert judge(first_program("uniform")).status == "random"


def test_a_wrong_result_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The judge compares: a pass that loses what follows the first document would not get by."""
    real = op_programs.outcome
    program = first_program("cumsum")
    monkeypatch.setattr(op_programs, "outcome", lambda fn, p, layout, *a, **k: real(fn, p, _shifted(fn, p, layout)))
    assert op_programs.judge(program).status == "wrong"


def _shifted(fn: object, program: OpProgram, layout: tuple[int, ...]) -> tuple[int, ...]:
    """Other documents for the compiled function than for eager."""
    return layout if fn is program.fn else (0, *(end - 1 for end in layout[1:-1]), layout[-1])


@pytest.mark.slow
@pytest.mark.parametrize("part", range(1, PARTS + 1))
def test_every_sample(part: int) -> None:
    verdicts: list[Verdict] = []
    for program in programs(part=(part, PARTS)):
        if not isinstance(program, LeftOut):
            verdicts.append(judge(program))
    assert not [v for v in verdicts if v.status in ("wrong", "raised")]
    counted = collections.Counter(v.status for v in verdicts)
    assert len(verdicts) > 80
    assert counted["vectorised"] >= FLOOR * (len(verdicts) - counted["random"]), counted
