"""``packpass.disable`` and ``packpass.verify`` for every pass that exchanges data between ranks."""

from __future__ import annotations

import pytest

from tests.dist.every_pass_programs import PROGRAMS, judge
from tests.dist.ranks import Ranks

pytestmark = pytest.mark.dist

NOT_TWICE = {"fuse_boundary_exchange"}
"""A loop that sends messages is not run a second time beside its rewrite: whoever is sent to would have to know."""


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_disabled_pass_rewrites_nothing(ranks: Ranks, name: str) -> None:
    assert ranks.call(judge, name, timeout_s=300) == [(True, True, "")] * 4
    assert ranks.call(_disabled, name, timeout_s=300) == [(False, True, "")] * 4


@pytest.mark.parametrize("name", sorted(set(PROGRAMS) - NOT_TWICE))
def test_verify(ranks: Ranks, name: str) -> None:
    assert ranks.call(_verified, name, False, timeout_s=300) == [(True, True, "")] * 4
    for _, _, said in ranks.call(_verified, name, True, timeout_s=300):
        assert said.startswith(f"packpass.verify: {name} at ")
        assert "changed" in said


@pytest.mark.parametrize("name", sorted(NOT_TWICE))
def test_verify_says_what_it_cannot_judge(ranks: Ranks, name: str) -> None:
    for found, right, said in ranks.call(_verified, name, False, timeout_s=300):
        assert found
        assert right
        assert said.startswith(f"packpass.verify: {name} at ")
        assert "cannot be verified: the loop sends messages to other ranks" in said


def _disabled(name: str) -> tuple[bool, bool, str]:
    return judge(name, disable=[name])


def _verified(name: str, wrong: bool) -> tuple[bool, bool, str]:
    return judge(name, wrong, verify=True)
