"""``packpass.disable`` and ``packpass.verify`` for every pass that exchanges data between ranks."""

from __future__ import annotations

import pytest

from tests.dist.every_pass_programs import PROGRAMS, judge
from tests.dist.ranks import Ranks

pytestmark = pytest.mark.dist


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_disabled_pass_rewrites_nothing(ranks: Ranks, name: str) -> None:
    assert ranks.call(judge, name, timeout_s=300) == [(True, True, "")] * 4
    assert ranks.call(_disabled, name, timeout_s=300) == [(False, True, "")] * 4


@pytest.mark.parametrize("name", PROGRAMS)
def test_verify(ranks: Ranks, name: str) -> None:
    assert ranks.call(_verified, name, False, timeout_s=300) == [(True, True, "")] * 4
    for _, _, said in ranks.call(_verified, name, True, timeout_s=300):
        assert said.startswith(f"packpass.verify: {name} at ")
        assert "changed" in said


def _disabled(name: str) -> tuple[bool, bool, str]:
    return judge(name, disable=[name])


def _verified(name: str, wrong: bool) -> tuple[bool, bool, str]:
    return judge(name, wrong, verify=True)
