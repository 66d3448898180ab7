"""Point-to-point messages are captured inside packpass's loops over documents and nowhere else."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch._dynamo.testing import EagerAndRecordGraphs
from torch.testing._internal.distributed.fake_pg import FakeStore

import packpass
from packpass import markers
from packpass.capture import group_is_on, p2p
from packpass.capture.hooks import HookState
from tests.dist.p2p_checks import Recorder
from tests.dist.p2p_programs import neighbours, requests

CU, X = torch.tensor([0, 8, 16]), torch.arange(8)


@pytest.fixture(autouse=True)
def group() -> Iterator[Any]:
    torch._dynamo.reset()
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield dist.group.WORLD
    torch._dynamo.reset()
    dist.destroy_process_group()


def messages(graphs: list[Any]) -> int:
    return sum("p2p" in str(node.target) for gm in graphs for node in gm.graph.nodes)


def test_the_group_fits_this_torch() -> None:
    assert group_is_on("p2p")
    assert p2p.problem() is None


def test_stock_backends_break_the_graph_as_before(group: Any) -> None:
    stock = EagerAndRecordGraphs()
    torch.compile(requests, backend=stock)(X, CU, group)
    assert messages(stock.graphs) == 0
    torch._dynamo.reset()
    with pytest.raises((torch._dynamo.exc.Unsupported, torch._dynamo.exc.UserError)):
        torch.compile(requests, backend=EagerAndRecordGraphs(), fullgraph=True)(X, CU, group)


def test_outside_of_a_loop_nothing_is_captured(group: Any) -> None:
    def program(x: Tensor, cu: Tensor, group: Any) -> Tensor:
        _, _, _, behind = neighbours(group)
        end = torch.empty_like(x)
        for work in [dist.isend(x, behind, group), dist.irecv(end, behind, group)]:
            work.wait()
        return requests(x, cu, group) + end

    recorder = Recorder()
    torch.compile(program, backend=recorder, options={"packpass.inner_backend": "eager"})(X, CU, group)
    assert recorder.count("cp_packed_roll") == 1
    assert messages(recorder.graphs) == 0
    with pytest.raises(torch._dynamo.exc.Unsupported):
        torch.compile(program, backend=packpass.backend, fullgraph=True)(X, CU, group)


def test_a_refused_loop_leaves_no_message_in_any_graph(group: Any) -> None:
    def program(x: Tensor, cu: Tensor, group: Any) -> Tensor:
        return requests(x, cu, group) if x.dim() else x

    recorder = Recorder()
    options = {"packpass.inner_backend": "eager", "packpass.disable": ["fuse_boundary_exchange"]}
    torch.compile(program, backend=recorder, options=options)(X, CU, group)
    assert recorder.count("cp_packed_roll") == 0
    assert messages(recorder.graphs) == 0


@pytest.mark.parametrize("use", ["is_completed", "with a time-out", "kept"])
def test_other_uses_of_a_request_leave_the_loop(group: Any, use: str) -> None:
    def program(x: Tensor, cu: Tensor, group: Any) -> Tensor:
        out = x.clone()
        for i in range(len(cu) - 1):
            s, e = cu[i] // 2, cu[i + 1] // 2
            end = x[s:e][:1].clone()
            work = dist.irecv(end, 1, group)
            if use == "is_completed":
                work.is_completed()
            elif use == "with a time-out":
                work.wait(torch.distributed.default_pg_timeout)
            else:
                work.wait()
                kept = work
            out[s:e][:1] = end
        if use == "kept":
            kept.wait()
        return out

    options = {"packpass.inner_backend": "eager"}
    report = packpass.explain(program, options=options)(X, CU, group)
    assert not report.rewrites
    assert report.refusals[0].code in ("message-wait", "leaked-local", "host-read", "graph-break")


def test_no_marker_ever_runs() -> None:
    for call in (lambda: markers.SEND(X, 1, 0, "0", 1), lambda: markers.RECV(X, 1, 0, "0", 1), lambda: markers.WAIT(1)):
        with pytest.raises(RuntimeError, match="reached execution"):
            call()


def test_the_group_can_be_switched_off() -> None:
    code = "from packpass.engine.backend import capture; print(*[s for s in capture.hook_states() if s.name == 'p2p'])"
    root = Path(__file__).resolve().parents[2]
    environment = {**os.environ, "PACKPASS_DISABLE_HOOKS": "p2p", "PYTHONPATH": str(root)}
    shown = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120)
    expected = HookState("p2p", "captures isend and irecv inside a loop over documents", "off", "switched off by ")
    assert str(expected)[:-2] in shown.stdout
