"""Losses of all tokens but the last (`passes.eliminate_padding.partners`): the same over whole rows, gradients too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

import packpass
from packpass.semantics.build import Builder, NotBuilt
from passes.eliminate_padding import partners
from passes.eliminate_padding.partners import with_partners

from . import padded_models as models
from .padded_models import VOCABULARY
from .test_eliminate_padding import EAGER, ON, batch, check, compiles  # noqa: F401  (a fixture)


@pytest.fixture(autouse=True)
def _reset() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Next(models.Loss):
    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        logits = self.head(self.hidden(ids, mask))
        labels = self.labels(ids, mask)
        return F.cross_entropy(logits[:, :-1].reshape(-1, VOCABULARY), labels[:, 1:].reshape(-1))


class AsModule(models.Loss):
    """As it was written for years, with a dtype, a view and a module of its own."""

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        logits = self.head(self.hidden(ids, mask)).float()
        scores, labels = logits[..., :-1, :].contiguous(), self.labels(ids, mask)[..., 1:].contiguous()
        return nn.CrossEntropyLoss()(scores.view(-1, scores.size(-1)), labels.view(-1).to(scores.device))


class ClassesFirst(models.Loss):
    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        logits = self.head(self.hidden(ids, mask))
        return F.cross_entropy(logits[:, :-1].mT, self.labels(ids, mask)[:, 1:], reduction="sum") / mask.sum()


class HiddenIsCut(models.Loss):
    """The cut lies in front of the last layer, which then has less to do in eager."""

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        scores = self.head(self.hidden(ids, mask)[:, :-1]) / 0.7
        return F.cross_entropy(scores.flatten(0, 1), self.labels(ids, mask)[:, 1:].flatten(), label_smoothing=0.1)


class TwoAhead(models.Loss):
    """Neither the first token nor the last two have a partner."""

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        logits = self.head(self.hidden(ids, mask)).narrow(1, 1, ids.shape[1] - 3)
        return F.nll_loss(logits.log_softmax(-1).flatten(0, 1), self.labels(ids, mask)[:, 3:].flatten())


class NamesTheSize(models.Loss):
    """A view between the cut and the loss names the size of what is left."""

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        scores = self.head(self.hidden(ids, mask))[:, :-1].expand(-1, ids.shape[1] - 1, -1)
        return F.cross_entropy(scores.flatten(0, 1), self.labels(ids, mask)[:, 1:].flatten())


class UnderAutocast(models.Loss):
    """The last layer is in a region that has ended where the loss is taken."""

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        hidden = self.hidden(ids, mask)
        with torch.autocast("cpu", torch.bfloat16):
            scores = self.head(hidden[:, :-1])
        return F.cross_entropy(scores.flatten(0, 1), self.labels(ids, mask)[:, 1:].flatten())


class WithoutGradients(models.Loss):
    """The last layer gets none, and the model does beside it."""

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        hidden = self.hidden(ids, mask)
        with torch.no_grad():
            scores = self.head(hidden[:, :-1])
        loss = F.cross_entropy(scores.flatten(0, 1), self.labels(ids, mask)[:, 1:].flatten())
        return loss + (hidden * mask[..., None]).sum() / mask.sum()


REWRITTEN = [Next, AsModule, ClassesFirst, HiddenIsCut, TwoAhead, NamesTheSize]


@pytest.mark.parametrize("model_class", REWRITTEN)
@pytest.mark.parametrize("dynamic", [None, True])
def test_rewrites(model_class: type[models.Model], dynamic: bool | None, compiles: list[str]) -> None:  # noqa: F811
    model = model_class()
    compiled = torch.compile(model, backend=packpass.backend, options=EAGER, fullgraph=True, dynamic=dynamic)
    for lengths in ((3, 9, 5), (9, 4, 5)):
        check(model, compiled, *batch(lengths), per_token=False)
    assert compiles == ["packed"]


@pytest.mark.parametrize(("model_class", "tolerance"), [(UnderAutocast, 1e-2), (WithoutGradients, 1e-5)])
def test_calls_stay_in_their_regions(
    model_class: type[models.Model],
    tolerance: float,
    compiles: list[str],  # noqa: F811
) -> None:
    model = model_class()
    compiled = torch.compile(model, backend=packpass.backend, options=EAGER, fullgraph=True)
    check(model, compiled, *batch((3, 9, 5)), per_token=False, tolerance=tolerance)
    assert compiles == ["packed"]


@pytest.mark.slow
def test_through_inductor(compiles: list[str]) -> None:  # noqa: F811
    model = AsModule()
    compiled = torch.compile(model, backend=packpass.backend, options=ON, dynamic=True)
    for lengths, total in (((3, 9, 5), 9), ((2, 11, 5, 4), 11)):
        check(model, compiled, *batch(lengths, total), per_token=False)
    assert compiles == ["packed"]


@pytest.mark.parametrize("model_class", REWRITTEN)
@pytest.mark.parametrize("side", ["left", "holes"])
def test_padding_predicts_a_token(model_class: type[models.Model], side: str, compiles: list[str]) -> None:  # noqa: F811
    """Padding in front of a token has that token's label, which a loss does not ignore."""
    model = model_class()
    compiled = torch.compile(model, backend=packpass.backend, options=EAGER)
    check(model, compiled, *batch((3, 9, 5), side=side), per_token=False)
    assert compiles == ["padded"]


class PaddingCounts(Next):
    def labels(self, ids: Tensor, mask: Tensor) -> Tensor:
        return ids


class OneWithoutPartnerCounts(models.Loss):
    """The unreduced loss has one slot less."""

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        logits = self.head(self.hidden(ids, mask))
        each = F.cross_entropy(logits[:, :-1].flatten(0, 1), self.labels(ids, mask)[:, 1:].flatten(), reduction="none")
        return each.square().mean()


class CutTwice(models.Loss):
    """Scores meet another value of the tokens that is cut."""

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        logits = self.head(self.hidden(ids, mask))
        scores = logits[:, :-1] + logits[:, 1:]
        return F.cross_entropy(scores.flatten(0, 1), self.labels(ids, mask)[:, 1:].flatten())


class EverySecond(models.Loss):
    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        logits = self.head(self.hidden(ids, mask))
        return F.cross_entropy(logits[:, :-1:2].flatten(0, 1), self.labels(ids, mask)[:, 1::2].flatten())


class Rolled(models.Loss):
    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        scores = self.head(self.hidden(ids, mask))[:, :-1].roll(1, 1)
        return F.cross_entropy(scores.flatten(0, 1), self.labels(ids, mask)[:, 1:].flatten())


@pytest.mark.parametrize("model_class", [OneWithoutPartnerCounts, CutTwice, EverySecond, Rolled])
def test_leaves_alone(model_class: type[models.Model]) -> None:
    model, (ids, mask) = model_class(), batch()
    report = packpass.explain(model, options=EAGER)(ids, mask)
    assert [(r.rule, r.code) for r in report.refusals] == [("eliminate_padding", "cross-token")]
    torch._dynamo.reset()
    check(model, torch.compile(model, backend=packpass.backend, options=EAGER), ids, mask, per_token=False)


def test_a_call_that_fails_on_whole_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(build: Builder, node: fx.Node, *others: fx.Node) -> fx.Node:
        raise NotBuilt(node.target, node, ValueError("rows of another length"))

    monkeypatch.setattr(partners, "_again", fails)
    model, (ids, mask) = HiddenIsCut(), batch()
    report = packpass.explain(model, options=EAGER)(ids, mask)
    assert [r.code for r in report.refusals] == ["cross-token"]
    torch._dynamo.reset()
    check(model, torch.compile(model, backend=packpass.backend, options=EAGER), ids, mask, per_token=False)


def test_labels_of_padding_that_count(compiles: list[str]) -> None:  # noqa: F811
    model = PaddingCounts()
    check(model, torch.compile(model, backend=packpass.backend, options=EAGER), *batch(), per_token=False)
    assert compiles == ["padded"]


def _captured(program: Callable[..., Tensor], *arguments: Tensor) -> fx.GraphModule:
    graphs: list[fx.GraphModule] = []

    def keep(gm: fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        graphs.append(gm)
        return gm.forward

    torch.compile(program, backend=keep, fullgraph=True)(*arguments)
    return graphs[0]


def _next(scores: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(scores[:, :-1].reshape(-1, 7), labels[:, 1:].reshape(-1))


def _of_the_end(scores: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(scores[:, 2:].mT, labels, ignore_index=3, reduction="sum")


@pytest.mark.parametrize(("program", "slots"), [(_next, 6), (_of_the_end, 4)])
@pytest.mark.parametrize("number", [float("nan"), float("inf"), 1.0])
def test_scores_without_a_partner_are_not_read(program: Callable[..., Tensor], slots: int, number: float) -> None:
    scores = torch.randn(3, 6, 7, generator=torch.Generator().manual_seed(0))
    scores[:, -1 if program is _next else slice(0, 2)] = number
    labels = torch.randint(0, 7, (3, slots), generator=torch.Generator().manual_seed(1))
    gm = _captured(program, scores, labels)
    whole = with_partners(gm)
    assert whole is not gm
    found = []
    for module in (gm, whole):
        given = scores.clone().requires_grad_()
        names = [node.name for node in gm.graph.nodes if node.op == "placeholder"]
        loss = module(*(given if "scores" in name else labels for name in names))[0]
        found.append((loss.detach(), *torch.autograd.grad(loss, given)))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)
    assert torch.isfinite(found[1][1]).all()
