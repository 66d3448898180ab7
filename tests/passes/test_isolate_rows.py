"""What stays on the packed row: dimensions merged with tokens, pads to a multiple; and what a part is given of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import packpass
from packpass.decisions.records import collecting
from packpass.reports.report import Report
from passes.isolate import rewrite

from .isolated_programs import with_alone_and_row as run

ON: dict[str, Any] = {"packpass.isolate": True, "packpass.inner_backend": "eager"}
BATCHES = ((0, 5, 6, 20, 30), (0, 17, 29), (0, 28), (0, 1, 2, 3, 32))
W = torch.linspace(-1, 1, 64).view(8, 8).cos() / 4
Program = Callable[[Tensor], Tensor]


@pytest.fixture(autouse=True)
def _reset() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def convolved(x: Tensor) -> Tensor:
    return F.conv1d(x.mT, W[:, None, :4], padding=3, groups=8)[..., : x.shape[1]].mT


# === Merged dimensions ============================================================================================


def heads_are_normalised(x: Tensor) -> Tensor:
    y = F.rms_norm(convolved(x).reshape(-1, 4), (4,))
    return (y * F.silu(x.reshape(-1, 4))).reshape(x.shape)


def merged_in_steps(x: Tensor) -> Tensor:
    y = convolved(x).unflatten(-1, (2, 2, 2)).flatten(1, 2)
    return torch.softmax(y.flatten(0, 1).flatten(0, 1), -1).view(1, -1, 8)


def returned_merged(x: Tensor) -> Tensor:
    return torch.tanh(convolved(x).reshape(-1, 4)).view(1, -1, 8) * 2


def merged_and_summed(x: Tensor) -> Tensor:
    """What is merged meets other tokens after all."""
    return torch.tanh(x.reshape(-1, 4).cumsum(0)).reshape(x.shape)


def heads_in_front(x: Tensor) -> Tensor:
    """Of a token the slots are not beside each other."""
    heads = x.unflatten(-1, (2, 4)).transpose(1, 2).reshape(-1, 4)
    return torch.tanh(heads).view(1, 2, -1, 4).transpose(1, 2).flatten(2).cumsum(1)


def every_second_slot(x: Tensor) -> Tensor:
    return convolved(x).reshape(-1, 4)[::2].repeat_interleave(2, 0).reshape(x.shape)


# === Pads to a multiple ===========================================================================================


def every_operand_padded(x: Tensor) -> Tensor:
    pad = (0, 0, 0, (8 - x.shape[1] % 8) % 8)
    q, k, v = (F.pad(t, pad).reshape(1, -1, 8, 8) for t in (x, x @ W, x * x))
    skip = F.pad(x, pad) * 0.5
    return ((q @ k.mT).tril() @ v + q @ F.pad((k.mT @ v).cumsum(1), (0, 0, 0, 0, 1, 0))[:, :-1]).reshape(1, -1, 8)[
        :, : x.shape[1]
    ] + skip[:, : x.shape[1]]


def cut_from_the_end(x: Tensor) -> Tensor:
    pad = 8 - x.shape[1] % 8
    y = F.pad(x, (0, 0, 0, pad))
    z = torch.tanh(y) + y.reshape(1, -1, 8, 8).cumsum(2).reshape(1, -1, 8)
    return z[:, :-pad]


def padded_and_written(x: Tensor) -> Tensor:
    pad = (0, 0, 0, (8 - x.shape[1] % 8) % 8)
    y, z = F.pad(x, pad), F.pad(x, pad)
    y = y.reshape(1, -1, 8, 8).cumsum(2).flatten(1, 2)
    z.mul_(2)
    return (y * z)[:, : x.shape[1]]


def compiled_with(program: Program) -> Any:
    def forward(x: Tensor, cu_seqlens: Tensor) -> Tensor:
        return program(packpass.packed(x, cu_seqlens, dim=1))

    return torch.compile(forward, backend=packpass.backend, options=ON)


def rewrites(program: Program) -> list[str]:
    """What is isolated in the first graph; every document must be as if it were alone."""
    compiled, found = compiled_with(program), list[str]()
    for k, bounds in enumerate(BATCHES):
        report = Report()
        with collecting(report):
            ours, alone, _ = run(program, bounds, compiled)
        torch.testing.assert_close(ours, alone, atol=1e-5, rtol=1e-5)
        if k == 0:
            found = [r.before for r in report.rewrites if r.rule == "isolate"]
            assert not report.refusals
    return found


@pytest.mark.parametrize("program", [heads_are_normalised, merged_in_steps, returned_merged], ids=lambda p: p.__name__)
def test_work_on_merged_tokens_stays_on_the_row(program: Program) -> None:
    (before,) = rewrites(program)
    assert "convolution" in before


@pytest.mark.parametrize(
    "program",
    [merged_and_summed, heads_in_front, every_second_slot, every_operand_padded, cut_from_the_end, padded_and_written],
)
def test_what_is_no_work_on_single_tokens_is_right_or_refused(program: Program) -> None:
    compiled, report = compiled_with(program), Report()
    for bounds in BATCHES:
        with collecting(report):
            ours, alone, row = run(program, bounds, compiled)
        same = [
            all(torch.allclose(a, b, atol=1e-5) for a, b in zip(ours, other, strict=True)) for other in (alone, row)
        ]
        assert same[0] or (same[1] and report.refusals), bounds


def heads_repeated(x: Tensor) -> Tensor:
    """Keys of one head for four of queries, in windows."""
    total, pad = x.shape[1], (0, 0, 0, 0, 0, -x.shape[1] % 8)
    q, k = x.unflatten(-1, (4, 2)), (x @ W)[..., :2].unsqueeze(2).repeat_interleave(4, 2)
    q, k = (F.pad(t, pad).unflatten(1, (-1, 8)).transpose(2, 3) for t in (q, k))
    return F.scaled_dot_product_attention(q, k, k, is_causal=True).transpose(2, 3).flatten(1, 2)[:, :total].flatten(2)


def heads_repeated_for_others_too(x: Tensor) -> Tensor:
    """The repeated keys are used on the row as well: they are made there."""
    k = (x @ W)[..., :2].unsqueeze(2).repeat_interleave(4, 2)
    return k.cummax(1).values.flatten(2) + torch.tanh(k).flatten(2)


def heads_written_before_they_repeat(x: Tensor) -> Tensor:
    """Weights of a router are divided by their sum in place, after the sum has read them: no mask, no position."""
    weights = (x @ W).abs() + 1
    weights /= weights.sum(-1, keepdim=True) * 2
    return weights[..., :2].unsqueeze(2).repeat_interleave(4, 2).cummax(1).values.flatten(2)


@pytest.mark.parametrize(
    ("program", "heads"),
    [(heads_repeated, {4, 1}), (heads_repeated_for_others_too, {4}), (heads_written_before_they_repeat, {4})],
)
def test_a_part_is_given_what_is_smaller(program: Program, heads: set[int], monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[int] = []
    real = rewrite.rewrite

    def seen(gm: Any, bodies: Any, *args: Any) -> None:
        given.extend(n.meta["example_value"].shape[2] for body, _ in bodies for n in body.region.entries)
        real(gm, bodies, *args)

    monkeypatch.setattr(rewrite, "rewrite", seen)
    rewrites(program)
    assert set(given) == heads
