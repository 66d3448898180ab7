"""Trainers of one process: keywords of ``torch.compile``, checkpoints, autocast, accumulation, compiled blocks."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo import config
from torch._dynamo.utils import counters
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from tests.trainers.models import GROWING, LENGTHS, Model
from tests.trainers.training import WHOLE, Compile, backward, packpass_compile, train

# === Keywords of torch.compile ===================================================================================


@pytest.mark.parametrize(
    ("keywords", "lengths", "graphs"),
    [
        ({}, LENGTHS, 1),
        ({}, GROWING, 2),
        pytest.param({"dynamic": True}, GROWING, 1, marks=pytest.mark.slow),
        ({"dynamic": False}, LENGTHS, 1),
        pytest.param({"fullgraph": True}, LENGTHS, 1, marks=pytest.mark.slow),
    ],
)
def test_shapes(keywords: dict[str, Any], lengths: tuple[tuple[int, ...], ...], graphs: int) -> None:
    """The number of documents is no shape even for ``dynamic=False``; that of tokens is, as in stock torch."""
    train(compile=packpass_compile(**keywords), lengths=lengths).check(WHOLE, graphs)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune-no-cudagraphs"])
def test_mode(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACKPASS_INNER_BACKEND", "inductor")
    train(compile=packpass_compile(mode=mode)).check(WHOLE)


# === Checkpoints =================================================================================================


def policy(context: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    """Matrix products are kept, all else is computed again."""
    products = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
    return CheckpointPolicy.MUST_SAVE if op in products else CheckpointPolicy.PREFER_RECOMPUTE


CHECKPOINTS = {
    "reentrant": {"use_reentrant": True},
    "not reentrant": {"use_reentrant": False},
    "selective": {
        "use_reentrant": False,
        "context_fn": functools.partial(create_selective_checkpoint_contexts, policy),
    },
}


@pytest.mark.parametrize("kind", CHECKPOINTS)
def test_checkpointed_blocks(kind: str) -> None:
    """The loops in the blocks and the shift around them have the same boundaries."""
    train(run=functools.partial(checkpoint, **CHECKPOINTS[kind])).check(WHOLE)


# === Steps =======================================================================================================

BFLOAT16 = 1.6e-2
"""What `torch.testing.assert_close` allows numbers of this dtype."""


def test_autocast() -> None:
    def half(model: Any, batch: dict[str, Tensor]) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(**batch)
        loss.backward()
        return loss.detach()

    train(half=half, rounding=BFLOAT16).check(WHOLE)
    with pytest.raises(AssertionError, match="not close"):  # labels that leak are much further apart than that
        train(half=half, rounding=BFLOAT16, reference=Model)


def test_accumulation() -> None:
    def half(model: Any, batch: dict[str, Tensor]) -> Tensor:
        first = backward(model, {**batch, "input_ids": batch["input_ids"].flip(1)})
        return first + backward(model, batch)

    train(half=half).check(WHOLE)


@pytest.mark.slow
def test_the_whole_step_compiled_with_compiled_autograd() -> None:
    """The step breaks at ``backward()``; its graph of the backward pass is compiled by the same backend."""

    def prepare(model: Model, compile: Compile) -> Any:
        def step(**batch: Tensor) -> Tensor:
            return backward(model, batch)

        return compile(step)

    before = counters["compiled_autograd"]["captures"]
    with config.patch(compiled_autograd=True):
        train(prepare, half=lambda step, batch: step(**batch)).check(WHOLE)
    assert counters["compiled_autograd"]["captures"] > before


# === Regional compilation ========================================================================================


def compiled_in_place(model: Model, compile: Compile) -> Model:
    for i, block in enumerate(model.blocks):
        model.blocks[i] = compile(block)
    return model


def compiled_forwards(model: Model, compile: Compile) -> Model:
    for block in model.blocks:
        block.forward = compile(block.forward)
    return model


@pytest.mark.parametrize("prepare", [pytest.param(compiled_in_place, marks=pytest.mark.slow), compiled_forwards])
def test_blocks_alone(prepare: Any) -> None:
    """One graph for all blocks; what is not compiled, the label shift, is what it was."""
    train(prepare, reference=Model).check({"vectorize_segments": 1})
