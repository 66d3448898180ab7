"""Vision towers of transformers, unmodified, with tiny random weights: one graph for images of any sizes."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters

import packpass

qwen2_vl = pytest.importorskip("transformers.models.qwen2_vl.modeling_qwen2_vl")
vision_utils = pytest.importorskip("transformers.vision_utils")
EAGER = {"packpass.inner_backend": "eager"}
GRIDS = (
    [[1, 4, 6], [2, 2, 4], [1, 8, 2]],
    [[1, 2 * (i % 3 + 1), 2 * (i % 4 + 1)] for i in range(7)],
    [[2, 4, 6]],
    [[1 + i % 2, 2 * (i % 3 + 1), 2 * (i % 5 + 1)] for i in range(20)],
)


def tower() -> torch.nn.Module:
    from transformers.models.qwen2_vl.configuration_qwen2_vl import Qwen2VLVisionConfig

    torch.manual_seed(0)
    config = Qwen2VLVisionConfig(
        depth=2, embed_dim=32, num_heads=2, hidden_size=32, mlp_ratio=2, in_channels=3, patch_size=4,
        spatial_merge_size=2, temporal_patch_size=2,
    )  # fmt: skip
    config._attn_implementation = "sdpa"
    model: torch.nn.Module = qwen2_vl.Qwen2VisionTransformerPretrainedModel(config)
    return model


def patches(rows: list[list[int]]) -> tuple[Tensor, Tensor]:
    grid = torch.tensor(rows)
    generator = torch.Generator().manual_seed(1)
    return torch.randn(int(grid.prod(-1).sum()), 96, generator=generator), grid


def test_whole_tower_is_one_graph() -> None:
    torch._dynamo.reset()
    counters.clear()
    model = tower()
    fn = torch.compile(copy.deepcopy(model), backend=packpass.backend, options=EAGER)
    for rows in GRIDS:
        x, grid = patches(rows)
        found = []
        for run in (model, fn):
            run.zero_grad()
            out = run(x, grid).pooler_output
            out.square().sum().backward()
            found.append((out, [p.grad for p in run.parameters() if p.grad is not None]))
        (want, wanted), (got, given) = found
        assert torch.equal(want, got)
        assert len(wanted) == len(given)
        assert all(torch.equal(a, b) for a, b in zip(wanted, given, strict=True))
    assert not counters["graph_break"]
    assert counters["packpass"]["rewrite:ragged_grids"] == counters["packpass"]["graphs"] <= 3


@pytest.mark.parametrize("include_temporal", [False, True])
def test_positions(include_temporal: bool) -> None:
    def positions(grid: Tensor) -> Tensor:
        out: Tensor = vision_utils.get_vision_position_ids(grid, 2, include_temporal=include_temporal)
        return out

    torch._dynamo.reset()
    counters.clear()
    fn = torch.compile(positions, backend=packpass.backend, options=EAGER)
    for rows in GRIDS:
        grid = torch.tensor(rows)
        assert torch.equal(fn(grid), positions(grid))
    assert counters["packpass"]["rewrite:ragged_grids"] == counters["packpass"]["graphs"] == 2


def test_window_orders() -> None:
    """What a window holds is selected by a mask, and boundaries of windows count on from image to image."""

    def windows(grid: Tensor) -> tuple[Tensor, Tensor]:
        out: tuple[Tensor, Tensor] = vision_utils.get_vision_window_index(grid, 2, 56, 14)
        return out

    torch._dynamo.reset()
    report = packpass.explain(windows, options=EAGER)(torch.tensor(GRIDS[0]))
    assert {r.rule for r in report.rewrites} == {"ragged_grids"}
    assert not report.refusals
    for a, b in zip(report.result, windows(torch.tensor(GRIDS[0])), strict=True):
        assert torch.equal(a, b)
