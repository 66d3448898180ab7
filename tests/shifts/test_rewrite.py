"""Every naive shift of the corpus becomes boundary-aware: results and gradients of the documents run one by one."""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.utils import counters

from tests.shifts import batches, codebases, models, positions, spellings, turned  # noqa: F401  (they register their programs)
from tests.shifts.harness import (
    REWRITE,
    TAILS,
    Program,
    compiled,
    cotangents,
    differences,
    explained,
    inputs,
    one_by_one,
    run,
)

PROGRAMS = list(REWRITE.values())


@pytest.mark.parametrize("prog", PROGRAMS, ids=str)
def test_equals_documents_one_by_one(prog: Program) -> None:
    rows = (*prog.rows, *(TAILS if prog.tails else ()))
    torch._dynamo.reset()
    counters.clear()
    module = prog.instance()
    fn = compiled(module)
    for row in rows:
        got = run(fn, inputs(prog, row), module, cotangents(row))
        assert differences(one_by_one(prog, row, got), got, row) == [], row
    assert counters["stats"]["unique_graphs"] <= 2


@pytest.mark.parametrize("prog", PROGRAMS, ids=str)
def test_is_reported(prog: Program) -> None:
    report = explained(prog, prog.rows[0])
    found = [r for r in report.rewrites if r.rule == "pack_shifts"]
    assert len(found) == prog.rewrites
    for rewrite in found:
        assert prog.source in rewrite.details["source"]
        assert rewrite.location.startswith("tests/shifts/"), rewrite.location
    assert report.boundary_sources


@pytest.mark.parametrize("prog", PROGRAMS, ids=str)
def test_the_documents_matter(prog: Program) -> None:
    """Without packpass the result is another one: the comparison above can fail."""
    row = prog.rows[0]
    module = prog.instance()
    naive = run(module, inputs(prog, row), module, cotangents(row))
    assert differences(one_by_one(prog, row, naive), naive, row) != []
