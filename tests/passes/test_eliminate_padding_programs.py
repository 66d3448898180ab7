"""More padded models, compared with eager: values at real tokens and gradients, or left alone with a code."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import packpass

from . import padded_models as models
from . import padded_programs as programs
from .test_eliminate_padding import EAGER, ON, RULE, batch, check, compiles  # noqa: F401  (a fixture)


@pytest.fixture(autouse=True)
def _reset() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


PER_TOKEN: list[type[models.Model]] = [
    programs.Routed,
    programs.QueriesMaskedToo,
    programs.InPlaceModel,
    programs.LikeScoresModel,
    programs.GroupedByBroadcastModel,
    programs.WrittenCopy,
]
REDUCED: list[type[models.Model]] = [
    programs.LongestToken,
    programs.LastByLength,
    programs.LastByGather,
    programs.LastThatIsNoPadding,
    programs.Accuracy,
    programs.LossPerRow,
    programs.LossTokensFirst,
    programs.LossOfTwoHeads,
    programs.MaskComputedTwice,
    programs.UnpackedWithoutGradients,
]


@pytest.mark.parametrize("model_class", [*PER_TOKEN, *REDUCED])
def test_rewrites(model_class: type[models.Model], compiles: list[str]) -> None:  # noqa: F811
    model = model_class()
    compiled = torch.compile(model, backend=packpass.backend, options=EAGER, fullgraph=True)
    for lengths in ((3, 9, 5), (9, 1, 2)):
        check(model, compiled, *batch(lengths), per_token=model_class in PER_TOKEN)
    assert compiles == ["packed"]


@pytest.mark.parametrize("model_class", [programs.LastByLength, programs.LossTokensFirst, programs.InPlaceModel])
def test_dynamic_shapes_need_one_graph(model_class: type[models.Model], compiles: list[str]) -> None:  # noqa: F811
    model = model_class()
    compiled = torch.compile(model, backend=packpass.backend, options=EAGER, dynamic=True)
    for lengths, total in (((3, 9, 5), 9), ((2, 11, 1, 4), 11), ((6, 1), 7)):
        check(model, compiled, *batch(lengths, total), per_token=model_class in PER_TOKEN)
    assert compiles == ["packed"]


@pytest.mark.slow
def test_dynamic_shapes_through_inductor(compiles: list[str]) -> None:  # noqa: F811
    """Dynamo then passes Python floats (an epsilon) in tensors."""
    model = programs.LastByLength()
    compiled = torch.compile(model, backend=packpass.backend, options=ON, dynamic=True)
    for lengths, total in (((3, 9, 5), 9), ((2, 11, 1, 4), 11)):
        check(model, compiled, *batch(lengths, total), per_token=False)
    assert compiles == ["packed"]
    model.norm.eps = 0.1
    check(model, compiled, *batch(), per_token=False)


@pytest.mark.parametrize("side", ["left", "holes"])
def test_the_last_token_by_length_may_be_padding(side: str, compiles: list[str]) -> None:  # noqa: F811
    model = programs.LastByLength()
    compiled = torch.compile(model, backend=packpass.backend, options=EAGER)
    check(model, compiled, *batch((3, 8, 5), side=side), per_token=False)
    assert compiles == ["padded"]


def test_outputs_are_contiguous_as_in_eager(compiles: list[str]) -> None:  # noqa: F811
    class Heads(models.Model):
        def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
            q, k, v = self.layers[0].heads(self.embedded(ids))
            shown = mask[:, None, None, :].bool()
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, shown).contiguous()

    model = Heads()
    got = torch.compile(model, backend=packpass.backend, options=EAGER)(*batch())
    assert got.is_contiguous() and compiles == ["packed"]


def test_labels_in_another_order_than_the_mask(compiles: list[str]) -> None:  # noqa: F811
    """Labels ``[S * B]`` that would be ignored at padding if they were ``[B * S]``."""
    model = programs.LossTokensFirst()
    compiled = torch.compile(model, backend=packpass.backend, options=EAGER)
    ids, mask = batch()
    labels = ids.masked_fill(mask == 0, -100).reshape(-1)
    want, got = model(ids, mask, labels), compiled(ids, mask, labels)
    torch.testing.assert_close(got, want, rtol=0, atol=0)
    assert compiles == ["padded"]


REFUSED: list[tuple[type[models.Model], str, str]] = [
    (programs.SumOfAll, "cross-token", "whole batch"),
    (programs.ColumnForAllRows, "cross-token", "looked up"),
    (programs.BestTokens, "cross-token", "topk"),
    (programs.FilledAndDoubled, "cross-token", "amax"),
    (programs.IntoOut, "in-place", "out="),
    (programs.WrittenView, "in-place", "add_"),
    (programs.DetachedWeights, "attention-weights", "detach"),
    (programs.WeightsWithoutGradients, "attention-weights", "gradients"),
    (programs.RoundedScores, "attention-weights", "int"),
    (programs.CausalAfterSoftmax, "attention-weights", "after the softmax"),
    (programs.RandomMask, "no-rule", "rand"),
    (programs.RowsForHeads, "attention-form", "batch lies"),
    (programs.LowerTriangleOfMask, "mask-not-padding", ""),
    (programs.TwoReasons, "mask-not-padding", ""),
    (programs.TwoIds, "mask-not-padding", ""),
    (programs.Broken, "graph-break", "graph break"),
    (programs.RoundedQuotient, "attention-weights", "div"),
]


@pytest.mark.parametrize(("model_class", "code", "words"), REFUSED, ids=lambda x: getattr(x, "__name__", None))
def test_refuses(model_class: type[models.Model], code: str, words: str) -> None:
    model = model_class()
    ids, mask = batch((1, 4, 2, 3), 4)  # as many rows as tokens, heads and features of a head
    report = packpass.explain(model, options=EAGER)(ids, mask)
    refusals = [r for r in report.refusals if r.rule == RULE]
    assert [r.code for r in refusals] == [code] and RULE not in {r.rule for r in report.rewrites}
    assert words in refusals[0].reason, refusals[0].reason
    torch._dynamo.reset()
    compiled = torch.compile(model, backend=packpass.backend, options=EAGER)
    gradients: list[Any] = []
    for call in (compiled, model):
        out: Tensor = call(ids, mask)
        gradients.append([out, *torch.autograd.grad(out.sum(), list(model.parameters()), allow_unused=True)])
    for got, want in zip(*gradients, strict=True):
        assert (got is None) == (want is None)
        if want is not None:
            torch.testing.assert_close(got, want, rtol=0, atol=1e-6)
