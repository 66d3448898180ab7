"""megatron-core's MambaContextParallel under gloo, unmodified: five all-to-alls of ``pre_conv_ssm`` become one, forward
and backward, bit for bit."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest

from tests.clients import mamba_programs as programs
from tests.dist.ranks import Ranks

pytest.importorskip("einops")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("megatron.core.ssm.mamba_context_parallel")

pytestmark = pytest.mark.dist


@pytest.fixture(scope="module")
def two() -> Iterator[Ranks]:
    pool = Ranks(2)
    try:
        if not all(pool.call(programs.stock_gradients_are_right, 2, timeout_s=300)):
            pytest.skip("torch.compile itself loses the gradient of an exchange inside an autograd.Function here")
        yield pool
    finally:
        pool.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("groups", "inner"),
    # One group: its state is repeated.
    [(4, "aot_eager"), (1, "aot_eager"), (4, "inductor")],
)
def test_five_become_one(two: Ranks, groups: int, inner: str) -> None:
    for counts in two.call(programs.both_ways, 2, groups, inner, timeout_s=300):
        assert counts == {
            "pre_conv_ssm": ([5, 5], [1, 1], ["5 all_to_all_single"]),
            "post_conv_ssm": ([1, 1], [1, 1], []),
        }


@pytest.mark.slow
def test_a_layer(two: Ranks) -> None:
    """The exchange back depends on the five: it stays one of its own."""
    for eager, ours in two.call(programs.whole_layer, 2, "aot_eager", timeout_s=300):
        assert eager == [6, 6]
        assert ours == [2, 2]
