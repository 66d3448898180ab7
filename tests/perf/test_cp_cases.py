"""Races and tables of the context-parallel cases, without ranks; the layer; one rank of many."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from perf.__main__ import main
from perf.cases.cp_scale import Network
from perf.cp.programs import Setup
from perf.cp.race import UNCERTAIN_S, Races, details, overview, ratio, rewritten
from perf.cp.ranks import RanksFailed
from perf.cp.scale import EAGER, Counted
from perf.cp.scale import OPS as SCALE_OPS
from perf.cp.work import FLOOR, HAND, NAIVE, OPS, PACKPASS, STOCK, Found
from perf.models.gdn import CHUNK, causal_conv, gated_delta_rule, tokens_of
from perf.registry import Context
from perf.results import CaseResult

GOOD = Found(equal=True, close=True, first_call=1.0, graphs=1, collectives=2, rewrites=("fuse: a -> b",))


class Canned:
    """Stands in for ranks: what ``prepare`` finds by way, or the error it ends in; a way takes as long as its place."""

    size = 2

    def __init__(self, found: dict[str, Found | RanksFailed]) -> None:
        self.found = found
        self.prepared: list[str] = []

    def call(self, function: Callable[..., Any], *arguments: Any, timeout_s: float) -> list[Any]:
        if function.__name__ == "warm_up":
            return [None, None]
        if function.__name__ == "prepare":
            _, way = arguments
            self.prepared.append(way)
            found = self.found.get(way, GOOD)
            if isinstance(found, RanksFailed):
                raise found
            return [found, found]
        ways: Sequence[str] = arguments[1]
        samples = {name: [float(i + 1)] * 3 for i, name in enumerate((FLOOR, *ways))}
        return [(samples, samples)] * 2

    def close(self) -> None:
        pass


def race(found: dict[str, Found | RanksFailed], times: int = 1) -> tuple[Any, CaseResult, Canned]:
    result, ranks = CaseResult("c", "title"), Canned(found)
    races = Races(Context(quick=True), result, ranks)
    for _ in range(times):
        run = races.run(Setup("cp_to_hp", 2, 4), (NAIVE, HAND, PACKPASS, STOCK))
    return run, result, ranks


def test_ratios_of_what_is_right() -> None:
    run, result, _ = race({})
    assert rewritten(run) is run[PACKPASS]
    assert OPS not in run
    assert (ratio(run, NAIVE), ratio(run, PACKPASS, NAIVE)) == (2.0, 2.5)
    rows = {row[0]: row for row in details("t", run).rows}
    assert rows[FLOOR][1] == "floor"
    assert rows[NAIVE][1:5] == ["reference", "2 s ±0%", "2 s ±0%", "2.00"]
    assert rows[PACKPASS][1] == "equal"
    assert rows[PACKPASS][4:7] == ["5.00", "0.4x", "2"]
    assert overview("t", {"one": run}).rows[0] == [FLOOR, "1 s / 1 s"]
    assert not result.wrong


def test_a_wrong_result_is_no_ratio() -> None:
    run, result, _ = race({HAND: Found(equal=False, close=True, largest=0.5)})
    assert ratio(run, HAND) is None
    assert {row[0]: row[1] for row in overview("t", {"one": run}).rows}[HAND] == "WRONG"
    assert result.wrong == ["cp_to_hp, cp=2, float32, N=4: hand-fused eager differs by up to 0.5"]


def test_what_is_not_rewritten_gives_way_to_the_ops_and_is_not_tried_again() -> None:
    alone = Found(equal=True, close=True, graphs=2, collectives=48, refusals=("vectorize_segments [no-rule] why",))
    run, result, ranks = race({PACKPASS: alone}, times=2)
    assert rewritten(run) is None
    assert run[OPS].forward is not None
    assert ranks.prepared.count(PACKPASS) == 1
    assert result.notes == ["packpass left the naive cp_to_hp alone: vectorize_segments [no-rule] why"]


def test_what_does_not_end_is_given_up() -> None:
    silent = RanksFailed("prepare on 2 ranks: rank 0: no answer within 40 s", timed_out=True)
    run, result, ranks = race({STOCK: silent, PACKPASS: RanksFailed("rank 1: died", timed_out=False)}, times=2)
    assert run[STOCK].verdict == f"did not end in {UNCERTAIN_S:.0f} s"
    assert run[PACKPASS].verdict == "failed"
    assert (ranks.prepared.count(STOCK), ranks.prepared.count(PACKPASS)) == (1, 1)
    assert ratio(run, STOCK) is None
    assert any("did not end in" in note for note in result.notes)
    # ranks are lost with a way that hangs: it must not be tried after those that are compiled and good
    assert ranks.prepared.index(STOCK) < ranks.prepared.index(HAND)


def test_a_reference_that_fails_ends_the_case() -> None:
    with pytest.raises(RuntimeError, match="the reference failed: ValueError: no"):
        race({NAIVE: Found(error="ValueError: no")})


# === The layer ==================================================================================================


def recurrence(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, decay: Tensor, positions: Tensor) -> Tensor:
    """Token by token."""
    _, heads, size = q.shape
    outs = []
    for t, position in enumerate(positions.tolist()):
        if position == 0:
            state = q.new_zeros(heads, size, size)
        state = decay[t].exp()[:, None, None] * state
        rest = v[t] - torch.einsum("hi,hij->hj", k[t], state)
        state = state + torch.einsum("hi,hj->hij", k[t], beta[t][:, None] * rest)
        outs.append(torch.einsum("hi,hij->hj", q[t], state))
    return torch.stack(outs)


@pytest.mark.parametrize("cu", [[0, 4 * CHUNK], [0, 3, CHUNK, CHUNK + 1, 2 * CHUNK + 5, 2 * CHUNK + 6, 4 * CHUNK]])
def test_the_chunked_recurrence_is_that_of_the_tokens(cu: list[int]) -> None:
    torch.manual_seed(0)
    total, heads, size = cu[-1], 3, 8
    q, k, v = (torch.randn(total, heads, size, dtype=torch.float64) for _ in range(3))
    beta, decay = torch.rand(total, heads, dtype=torch.float64), -4 * torch.rand(total, heads, dtype=torch.float64)
    leaves = [t.requires_grad_() for t in (F.normalize(q, dim=-1), F.normalize(k, dim=-1), v, beta, decay)]
    positions, document = tokens_of(torch.tensor(cu), total)
    found, expected = gated_delta_rule(*leaves, document), recurrence(*leaves, positions)
    torch.testing.assert_close(found, expected)
    weights = torch.randn_like(expected)
    for one, other in zip(
        torch.autograd.grad(found, leaves, weights), torch.autograd.grad(expected, leaves, weights), strict=True
    ):
        torch.testing.assert_close(one, other)


def test_the_convolution_stops_at_documents() -> None:
    x, taps = torch.randn(3, 10, 2, 4), torch.randn(3, 4, 2, 4)
    cu = torch.tensor([0, 1, 6, 10])
    found = causal_conv(x, taps, tokens_of(cu, 10)[0])
    for start, stop in ((0, 1), (1, 6), (6, 10)):
        own = x[:, start:stop]
        for t in range(stop - start):
            expected = sum(taps[:, d] * own[:, t - d] for d in range(min(4, t + 1)))
            torch.testing.assert_close(found[:, start + t], expected)


# === Many ranks =================================================================================================


def one_of(world_size: int, way: str) -> Counted:
    command = [sys.executable, "-m", "perf.cp.scale", str(world_size), way, "4", "100"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return Counted(**json.loads(done.stdout.strip().splitlines()[-1]))


@pytest.mark.dist
@pytest.mark.slow
def test_one_rank_of_many() -> None:
    naive, ours = one_of(64, EAGER), one_of(64, SCALE_OPS)
    assert (naive.collectives, ours.collectives) == (4 * 6 * 2, 2)
    whole = 256 * 14_336 * 4
    assert naive.sent_bytes == ours.sent_bytes == 2 * whole // 64 * 63
    assert (naive.graphs, ours.graphs) == (0, 1)
    assert ours.first_step_s > 0


def test_the_model_of_the_network() -> None:
    network = Network(launch_s=1.0, per_peer_s=0.5, bandwidth=10.0)
    assert network.seconds(Counted(3, EAGER, collectives=4, sent_bytes=20)) == 4 * 2.0 + 2.0


@pytest.mark.slow
@pytest.mark.dist
def test_a_case_from_end_to_end(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--quick", "--case", "cp_roll", "--out", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "2 ranks on" in out
    data = json.loads((tmp_path / "cp_roll.json").read_text())
    assert {"naive eager", "hand-fused, compiled"} <= {row[0] for row in data["tables"][0]["rows"]}
