"""Naive shifts of declared shards on real gloo ranks: what the whole row gives, in one exchange."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

import packpass
from packpass.ops import cp_packed_roll
from tests.dist import naive, shift_programs
from tests.dist.cp_programs import check, executed, group_of, whole_row
from tests.dist.p2p_checks import Recorder, boundaries
from tests.dist.ranks import Ranks

pytestmark = pytest.mark.dist


def _fields(cp: int, size: int, cu: Tensor, seed: int) -> tuple[list[Tensor], list[Tensor]]:
    """Two integer fields and one of floats, ``[2, T]`` and ``[2, T / cp]``; whole and as this rank's shards."""
    wholes = [
        whole_row((2, size), dtype, seed + i) for i, dtype in enumerate((torch.int64, torch.int32, torch.float32))
    ]
    rank = dist.get_rank() % cp
    return wholes, [_shard(x, cu, cp, rank) for x in wholes]


def _shard(x: Tensor, cu: Tensor, cp: int, rank: int, dim: int = -1) -> Tensor:
    return naive.shard(x, cu.tolist(), cp, rank, dim)


def run_program(cp: int, name: str, backend: str) -> tuple[int, int, int]:
    """Graphs; exchanges forward and backward."""
    torch._dynamo.reset()
    group, rank = group_of(cp), dist.get_rank() % cp
    program, reference = shift_programs.PROGRAMS[name]
    recorder = Recorder()
    compiled = torch.compile(program, backend=recorder, fullgraph=True, options={"packpass.inner_backend": backend})
    figures = set()
    for seed, count in enumerate((3, 6, 1)):
        cu, size = boundaries(cp, count, seed)
        wholes, fields = _fields(cp, size, cu, seed)
        wholes[2].requires_grad_(name == "hidden")
        fields[2].requires_grad_(name == "hidden")
        expected = reference(wholes, cu)
        rows = [0 if name == "hidden" and i == 0 else -1 for i in range(len(expected))]
        got, forward = executed(group, lambda: compiled(fields, cu, group))  # noqa: B023
        for i, (out, whole) in enumerate(zip(got, expected, strict=True)):
            check(torch.equal(out, _shard(whole.detach(), cu, cp, rank, rows[i])), name, seed, i)
        backward = 0
        if name == "hidden":
            expected[0].square().sum().backward()
            cu.zero_()  # a training loop may refill the boundaries before the backward reads them
            _, backward = executed(group, lambda: got[0].square().sum().backward())  # noqa: B023
            cu, _ = boundaries(cp, count, seed)
            want = _shard(wholes[2].grad, cu, cp, rank)
            check(torch.allclose(fields[2].grad, want, atol=1e-6, rtol=1e-6), name, seed, "gradient")
        figures.add((forward, backward))
    check(len(figures) == 1, name, figures)
    return len(recorder.graphs), *figures.pop()


def gradient(cp: int, name: str) -> None:
    """A gradient comes from where the program has one, and from nowhere else."""
    torch._dynamo.reset()
    group, rank = group_of(cp), dist.get_rank() % cp
    cu, size = boundaries(cp, 3, 1)
    wholes, fields = _fields(cp, size, cu, 1)
    whole, states = wholes[2].requires_grad_(), fields[2].requires_grad_()
    options: dict[str, Any] = {"packpass.inner_backend": "aot_eager"}
    compiled = packpass.compile(shift_programs.with_gradient(name), fullgraph=True, options=options)
    want, got = shift_programs.reference_with_gradient(name, whole, cu), compiled(states, cu, group)
    check(torch.equal(got, _shard(want.detach(), cu, cp, rank)), name)
    want.square().sum().backward()
    got.square().sum().backward()
    check(torch.allclose(states.grad, _shard(whole.grad, cu, cp, rank), atol=1e-6, rtol=1e-6), name, "gradient")


def signed_fills(cp: int) -> None:
    """0.0 and -0.0 are two fills: the second depth has both."""
    torch._dynamo.reset()
    group = group_of(cp)

    def program(x: Tensor, cu: Tensor) -> list[Tensor]:
        first = cp_packed_roll(x, cu, group, fill=0.0)
        return [first, cp_packed_roll(first, cu, group, fill=-0.0)]

    cu, size = boundaries(cp, 3, 1)
    _, fields = _fields(cp, size, cu, 1)
    options: dict[str, Any] = {"packpass.inner_backend": "eager"}
    got = packpass.compile(program, fullgraph=True, options=options)(fields[2], cu)
    for a, b in zip(got, program(fields[2], cu), strict=True):
        check(torch.equal(a.view(torch.int32), b.view(torch.int32)), "signed fills")


def leave(cp: int, name: str) -> list[str]:
    """The codes of the refusals; the result is that of eager."""
    torch._dynamo.reset()
    group = group_of(cp)
    program, _ = shift_programs.LEAVE[name]
    cu, size = boundaries(cp, 3, 1)
    _, fields = _fields(cp, size, cu, 1)
    want = program(fields, cu, group)
    options: dict[str, Any] = {"packpass.inner_backend": "eager"}
    report = packpass.explain(program, fullgraph=True, options=options)(fields, cu, group)
    got = torch.compile(program, backend=packpass.backend, options=options)(fields, cu, group)
    for a, b in zip(got, want, strict=True):
        check(torch.equal(a, b), name)
    check(report.collectives_after == 0, name, "exchanges")
    return [r.code for r in report.refusals]


def alone() -> list[str]:
    """A group of one holds the whole row."""
    torch._dynamo.reset()
    group = group_of(1)
    cu, size = boundaries(1, 4, 0)
    wholes, fields = _fields(1, size, cu, 0)
    program, reference = shift_programs.PROGRAMS["depths"]
    compiled = packpass.compile(program, fullgraph=True, options={"packpass.inner_backend": "eager"})
    for a, b in zip(compiled(fields, cu, group), reference(wholes, cu), strict=True):
        check(torch.equal(a, b), "group of one")
    report = packpass.explain(program, options={"packpass.inner_backend": "eager"})(fields, cu, group)
    return [r.after for r in report.rewrites if r.rule == "pack_shifts"]


@pytest.mark.parametrize("cp", [2, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", shift_programs.PROGRAMS)
def test_one_exchange(ranks: Ranks, name: str, cp: int) -> None:
    for graphs, forward, backward in ranks.call(run_program, cp, name, "eager", timeout_s=120):
        assert graphs <= 2
        assert forward == 1
        assert backward == (1 if name == "hidden" else 0)


@pytest.mark.parametrize("name", shift_programs.GRADIENTS)
def test_gradient(ranks: Ranks, name: str) -> None:
    ranks.call(gradient, 2, name, timeout_s=120)


def test_signed_fills(ranks: Ranks) -> None:
    ranks.call(signed_fills, 2, timeout_s=120)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["depths", "hidden"])
def test_compiled_by_inductor(ranks: Ranks, name: str) -> None:
    for _, forward, backward in ranks.call(run_program, 2, name, "inductor", timeout_s=500):
        assert (forward, backward) == (1, 1 if name == "hidden" else 0)


@pytest.mark.parametrize("name", shift_programs.LEAVE)
def test_leaves_alone(ranks: Ranks, name: str) -> None:
    for codes in ranks.call(leave, 2, name, timeout_s=120):
        assert shift_programs.LEAVE[name][1] in codes


def test_a_group_of_one_holds_the_whole_row(ranks: Ranks) -> None:
    for texts in ranks.call(alone, timeout_s=120):
        assert texts
        assert all(text.startswith("packed_roll") for text in texts)
