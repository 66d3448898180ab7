"""Padded models that stay padded: refused with a code, or, for one batch, run as they are. Results are eager's own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import packpass

from . import padded_models as models
from .test_eliminate_padding import EAGER, RULE, batch, compiles, gradients  # noqa: F401  (a fixture)


@pytest.fixture(autouse=True)
def _reset() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


REFUSED: list[tuple[type[models.Model], str, str]] = [
    (models.MeanOverPadding, "cross-token", "mean"),
    (models.Normalised, "cross-token", "batch_norm"),
    (models.Convolved, "cross-token", "conv1d"),
    (models.RunningSum, "cross-token", "cumsum"),
    (models.Flattened, "cross-token", "linear"),
    (models.Rolled, "cross-token", "roll"),
    (models.Shortened, "cross-token", "cuts the tokens"),
    (models.SecondToken, "cross-token", "cuts the tokens"),
    (models.Overall, "cross-token", "mean"),
    (models.SquaredError, "cross-token", "mse_loss"),
    (models.Pairs, "attention-weights", "returned"),
    (models.Written, "in-place", "setitem"),
    (models.DroppedWeightsModel, "attention-form", "dropout"),
    (models.UnmaskedLayer, "padding-visible", "attend to padding"),
    (models.SoftMask, "mask-not-padding", ""),
    (models.Windowed, "mask-not-padding", ""),
    (models.SeesTheFuture, "mask-not-padding", "hides real tokens"),
    (models.StrictlyBefore, "mask-not-padding", ""),
    (models.RelativeBias, "mask-not-padding", ""),
    (models.CrossAttention, "not-tokens", ""),
    (models.WeightsReturned, "attention-weights", ""),
    (models.Checkpointed, "no-rule", "checkpoint"),
]


def outputs(found: Any) -> list[Tensor]:
    return [found] if isinstance(found, Tensor) else list(found)


@pytest.mark.parametrize(("model_class", "code", "words"), REFUSED, ids=lambda x: getattr(x, "__name__", None))
def test_refuses(model_class: type[models.Model], code: str, words: str) -> None:
    model = model_class()
    ids, mask = batch()
    report = packpass.explain(model, options=EAGER)(ids, mask)
    assert not [r for r in report.rewrites if r.rule == RULE]
    refusals = [r for r in report.refusals if r.rule == RULE]
    assert [r.code for r in refusals] == [code], refusals
    assert words in refusals[0].reason, refusals[0].reason
    torch._dynamo.reset()
    got = torch.compile(model, backend=packpass.backend, options=EAGER)(ids, mask)
    for a, b in zip(outputs(got), outputs(model(ids, mask)), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-6)


def run_padded(model: models.Model, ids: Tensor, mask: Tensor, compiles: list[str]) -> None:  # noqa: F811
    """The model is rewritten, but this batch runs as it is, padding included."""
    got = torch.compile(model, backend=packpass.backend, options=EAGER)(ids, mask)
    want = model(ids, mask)
    torch.testing.assert_close(got, want, rtol=0, atol=0)
    for a, b in zip(gradients(model, got, None), gradients(model, want, None), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)
    assert compiles == ["padded"]


def test_little_padding(compiles: list[str]) -> None:  # noqa: F811
    run_padded(models.Causal(), *batch((9, 9, 9)), compiles)


def test_first_tokens_that_are_padding(compiles: list[str]) -> None:  # noqa: F811
    run_padded(models.FirstToken(), *batch(side="left"), compiles)


def test_last_tokens_that_are_padding(compiles: list[str]) -> None:  # noqa: F811
    run_padded(models.LastToken(), *batch(), compiles)


def test_labels_of_padding_that_count(compiles: list[str]) -> None:  # noqa: F811
    run_padded(models.LossThatCountsPadding(), *batch(), compiles)


def test_a_label_that_padding_predicts(compiles: list[str]) -> None:  # noqa: F811
    """In left-padded rows the slot before the first token predicts it, and eager counts that."""
    run_padded(models.Loss(), *batch(side="left"), compiles)


def test_a_mask_of_other_numbers(compiles: list[str]) -> None:  # noqa: F811
    """A 2 is real to ``bool()``, a half to nothing: such a mask is not read."""
    ids, mask = batch()
    run_padded(models.Model(), ids, mask * 2, compiles)


def test_one_token(compiles: list[str]) -> None:  # noqa: F811
    run_padded(models.Causal(), *batch((1, 0, 0)), compiles)


@pytest.mark.parametrize("masked", ["ready-made", "buffer", "none"])
def test_no_padding_mask(masked: str, compiles: list[str]) -> None:  # noqa: F811
    """Masks whose contents only the caller knows are not touched."""

    class Given(models.Model):
        def attention_mask(self, ids: Tensor, mask: Tensor) -> Any:
            return None if masked == "none" else mask

    ids, mask = batch()
    square = mask[:, None, None, :].bool().expand(-1, 1, 9, -1).contiguous()
    given = mask if masked == "none" else square if masked == "ready-made" else square[:1]
    model = Given()
    report = packpass.explain(model, options=EAGER)(ids, given)
    assert RULE not in {r.rule for r in report.rewrites}
    torch._dynamo.reset()
    got = torch.compile(model, backend=packpass.backend, options=EAGER)(ids, given)
    torch.testing.assert_close(got, model(ids, given))
    assert compiles == []


def test_raises_on_request() -> None:
    with pytest.raises(RuntimeError, match="cross-token"):
        torch.compile(
            models.MeanOverPadding(), backend=packpass.backend, options={**EAGER, "packpass.on_refusal": "raise"}
        )(*batch())


def test_disable_wins(compiles: list[str]) -> None:  # noqa: F811
    options = {**EAGER, "packpass.disable": [RULE]}
    torch.compile(models.Model(), backend=packpass.backend, options=options)(*batch())
    assert compiles == []
