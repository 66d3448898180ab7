"""Every case against what it declares: eager's values and gradients, the rewrites, the refusals, graphs and breaks."""

from __future__ import annotations

import pytest

from tests.wild import groups
from tests.wild.case import Case
from tests.wild.measure import Outcome


def parameters() -> list[object]:
    return [
        pytest.param(one, id=one.name, marks=[pytest.mark.wild, pytest.mark.xdist_group(one.group)])
        for one in groups.cases()
    ]


@pytest.fixture
def outcome(request: pytest.FixtureRequest, outcomes: dict[str, dict[str, Outcome]]) -> Outcome:
    one: Case = request.getfixturevalue("one")
    missing = groups.missing(one)
    if missing:
        pytest.skip(f"{', '.join(missing)} is not installed; `make test-wild` does that")
    if one.group not in outcomes:
        outcomes[one.group] = groups.run(one.group)
    return outcomes[one.group][one.name]


@pytest.mark.parametrize("one", parameters())
def test_as_declared(one: Case, outcome: Outcome) -> None:
    assert not outcome.error
    assert outcome.verdict == one.verdict.value, (outcome.refusals, outcome.break_reasons)
    assert outcome.codes == one.codes, outcome.refusals
    assert outcome.graphs <= one.graphs, outcome.new_graphs
    assert outcome.breaks <= one.breaks, outcome.break_reasons
    assert not outcome.lost, "rewritten for one batch, lost at a recompile for another, without a word"
    if one.loops:
        assert outcome.rewrites or outcome.refusals, "loops over documents that end without a rewrite or a refusal"
    if not outcome.stock_error:
        assert outcome.graphs <= max(outcome.stock_graphs, one.graphs if outcome.rewrites else 0)
    for code, location, reason in outcome.refusals:
        assert location and ":" in location, (code, reason)
        assert len(reason.split()) > 3, (code, location)
