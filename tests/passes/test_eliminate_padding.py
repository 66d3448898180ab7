"""Padded models that run on their real tokens: values and gradients equal eager's there, and are 0 elsewhere."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

import packpass
from packpass.engine import unpadded
from packpass.engine.verify import VerificationError
from packpass.ops import pack

from . import padded_models as models

RULE = "eliminate_padding"
ON: dict[str, Any] = {"packpass.eliminate_padding": True}
EAGER: dict[str, Any] = {**ON, "packpass.inner_backend": "eager"}
LENGTHS = ((3, 9, 5), (9, 1, 2), (1, 4, 7))


@pytest.fixture(autouse=True)
def _reset() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def mask_of(lengths: tuple[int, ...], total: int, side: str = "right") -> Tensor:
    mask = (torch.arange(total) < torch.tensor(lengths)[:, None]).long()
    if side == "left":
        return mask.flip(1)
    if side == "holes":
        return mask[:, torch.randperm(total, generator=torch.Generator().manual_seed(total))]
    return mask


def batch(lengths: tuple[int, ...] = LENGTHS[0], total: int = 9, side: str = "right") -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(sum(lengths))
    mask = mask_of(lengths, total, side)
    return torch.randint(2, models.VOCABULARY, mask.shape, generator=rng).masked_fill(mask == 0, 1), mask


@pytest.fixture
def compiles(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the graphs that were compiled: what ran, and how often it had to be compiled."""
    seen: list[str] = []
    real = unpadded.compile_for

    def counting(inner: Any, gm: Any, inputs: Any, sizes: Any) -> Any:
        places = [node.name for node in gm.graph.nodes if node.op == "placeholder"]
        seen.append("packed" if "packed_source" in places else "padded")
        return real(inner, gm, inputs, sizes)

    monkeypatch.setattr(unpadded, "compile_for", counting)
    return seen


def gradients(model: nn.Module, out: Tensor, real: Tensor | None) -> list[Tensor]:
    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(1))
    if real is not None:
        out = out.masked_fill(~real.view(*real.shape, *[1] * (out.dim() - 2)), 0)
    parameters = [p for p in model.parameters() if p.requires_grad]
    found = torch.autograd.grad((out * weights).sum(), parameters, allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found, strict=True)]


def check(
    model: nn.Module,
    compiled: Callable[..., Any],
    ids: Tensor,
    mask: Tensor,
    per_token: bool = True,
    tolerance: float = 1e-5,
    given: Tensor | None = None,
) -> None:
    """One call against eager, forward and backward. ``given``: the mask in the form that the model takes."""
    real = mask.bool()
    argument = mask if given is None else given
    want, got = model(ids, argument), compiled(ids, argument)
    assert want.shape == got.shape and want.dtype == got.dtype
    if per_token:
        torch.testing.assert_close(got[real], want[real], rtol=tolerance, atol=tolerance)
        assert not got[~real].any(), "padding is 0"
    else:
        torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)
    among = real if per_token else None
    for a, b in zip(gradients(model, got, among), gradients(model, want, among), strict=True):
        torch.testing.assert_close(a, b, rtol=10 * tolerance, atol=10 * tolerance)


TOKENWISE = [
    models.Model,
    models.Causal,
    models.WrittenOutModel,
    models.WrittenOutCausal,
    models.BatchedModel,
    models.GroupedModel,
    models.GroupedInKernelModel,
    models.GroupedInterleavedModel,
    models.RotaryModel,
    models.RotaryPerRow,
    models.MultiHead,
    models.SmoothedTokens,
]
REDUCED = [models.MeanOfTokens, models.LossOfClassesFirst, models.MaskedLoss, models.Loss, models.FirstToken]


@pytest.mark.parametrize("model_class", [*TOKENWISE, *REDUCED])
def test_rewrites(model_class: type[models.Model], compiles: list[str]) -> None:
    model = model_class()
    compiled = torch.compile(model, backend=packpass.backend, options=EAGER, fullgraph=True)
    for lengths in LENGTHS:
        per_token = model_class in TOKENWISE and model_class is not models.SmoothedTokens
        check(model, compiled, *batch(lengths), per_token=per_token)
    assert compiles == ["packed"]


@pytest.mark.parametrize("side", ["left", "holes"])
@pytest.mark.parametrize("model_class", [*TOKENWISE, models.MeanOfTokens, models.MaskedLoss, models.LossOfClassesFirst])
def test_padding_anywhere(model_class: type[models.Model], side: str, compiles: list[str]) -> None:
    model = model_class()
    compiled = torch.compile(model, backend=packpass.backend, options=EAGER, fullgraph=True)
    per_token = model_class in TOKENWISE and model_class is not models.SmoothedTokens
    check(model, compiled, *batch(side=side), per_token=per_token)
    assert compiles == ["packed"]


def test_last_token_of_left_padded_rows(compiles: list[str]) -> None:
    model = models.LastToken()
    compiled = torch.compile(model, backend=packpass.backend, options=EAGER)
    check(model, compiled, *batch(side="left"), per_token=False)
    assert compiles == ["packed"]


SPELLINGS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "compared": lambda ids, m: (m > 0)[:, None, None],
    "expanded": lambda ids, m: m.bool().view(m.shape[0], 1, 1, -1).expand(-1, models.HEADS, m.shape[1], -1),
    "outer product": lambda ids, m: (m[:, :, None] * m[:, None, :])[:, None].bool() | torch.eye(m.shape[1]).bool(),
    "lowest": lambda ids, m: (1.0 - m[:, None, None, :].float()) * torch.finfo(torch.float32).min,
    "infinite": lambda ids, m: torch.zeros(m.shape).masked_fill(m == 0, float("-inf"))[:, None, None],
    "in place": lambda ids, m: torch.zeros_like(m, dtype=torch.float32).masked_fill_(m == 0, -1e9)[:, None, None],
    "where": lambda ids, m: torch.where(m.bool(), 0.0, -1e9).unsqueeze(1).unsqueeze(2),
    "inverted": lambda ids, m: torch.logical_not(m == 0)[:, None, None],
    "of ids": lambda ids, m: (ids != 1)[:, None, None, :],
    "of lengths": lambda ids, m: (torch.arange(ids.shape[1]) < m.sum(1)[:, None])[:, None, None, :],
    "causal by positions": lambda ids, m: _causal(ids) & m.bool()[:, None, None, :],
    "causal, added": lambda ids, m: (~_causal(ids)) * -1e9 + (1 - m[:, None, None]) * -1e9,
    "causal, transposed": lambda ids, m: torch.ones(_square(ids)).triu().T.bool() & m.bool()[:, None, None, :],
    "looked up": lambda ids, m: m.bool()[
        torch.arange(m.shape[0])[:, None, None, None], torch.arange(m.shape[1])[None, None, None, :]
    ],
}


def _square(ids: Tensor) -> tuple[int, int]:
    return ids.shape[1], ids.shape[1]


def _causal(ids: Tensor) -> Tensor:
    at = torch.arange(ids.shape[1])
    return at[:, None] >= at[None, :]


@pytest.mark.parametrize("spelling", [s for s in SPELLINGS if s != "outer product"])
def test_masks(spelling: str, compiles: list[str]) -> None:
    class Spelt(models.Model):
        def attention_mask(self, ids: Tensor, mask: Tensor) -> Tensor:
            return SPELLINGS[spelling](ids, mask)

    model = Spelt()
    compiled = torch.compile(model, backend=packpass.backend, options=EAGER, fullgraph=True)
    check(model, compiled, *batch())
    assert compiles == ["packed"]


@pytest.mark.parametrize("form", ["bool", "int32", "float", "inverted", "4-D"])
def test_forms_of_the_input(form: str, compiles: list[str]) -> None:
    class Given(models.Model):
        def attention_mask(self, ids: Tensor, mask: Tensor) -> Tensor:
            if form == "4-D":
                return mask
            return (mask == 0 if form == "inverted" else mask != 0)[:, None, None, :]

    ids, mask = batch()
    given = {
        "bool": mask.bool(),
        "int32": mask.int(),
        "float": mask.float(),
        "inverted": mask == 0,
        "4-D": mask.bool()[:, None, None],
    }[form]
    model = Given()
    compiled = torch.compile(model, backend=packpass.backend, options=EAGER, fullgraph=True)
    check(model, compiled, ids, mask, given=given)
    assert compiles == ["packed"]


@pytest.mark.parametrize("model_class", [models.Causal, models.RotaryPerRow, models.WrittenOutModel, models.Loss])
def test_dynamic_shapes_need_one_graph(model_class: type[models.Model], compiles: list[str]) -> None:
    model = model_class()
    compiled = torch.compile(model, backend=packpass.backend, options=EAGER, dynamic=True)
    for lengths, total in (((3, 9, 5), 9), ((2, 11, 1, 4), 11), ((6, 1), 7), ((3, 5, 4, 2, 1), 5)):
        check(model, compiled, *batch(lengths, total), per_token=model_class is not models.Loss)
    assert compiles == ["packed"]


@pytest.mark.slow  # test_eliminate_padding_programs has a model for every run
@pytest.mark.parametrize("model_class", [models.Causal, models.WrittenOutModel])
def test_through_inductor(model_class: type[models.Model], compiles: list[str]) -> None:
    model = model_class()
    compiled = torch.compile(model, backend=packpass.backend, options=ON)
    for lengths in LENGTHS:
        check(model, compiled, *batch(lengths))
    check(model, compiled, *batch((9, 9, 9)))
    assert compiles == ["packed", "padded"]


def test_training(compiles: list[str]) -> None:
    """Three steps of training end at the parameters of the padded model."""
    padded, packed = models.Loss(), models.Loss()
    compiled = torch.compile(packed, backend=packpass.backend, options={**ON, "packpass.inner_backend": "aot_eager"})
    for model, call in ((padded, padded), (packed, compiled)):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for lengths in LENGTHS:
            optimizer.zero_grad()
            call(*batch(lengths)).backward()
            optimizer.step()
    for a, b in zip(packed.parameters(), padded.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    assert compiles == ["packed"]


def test_bfloat16(compiles: list[str]) -> None:
    model = models.RotaryModel().bfloat16()
    compiled = torch.compile(model, backend=packpass.backend, options=EAGER)
    check(model, compiled, *batch(), tolerance=2e-2)
    assert compiles == ["packed"]


@pytest.mark.parametrize("model_class", [models.Causal, models.WrittenOutCausal, models.MultiHead])
def test_autocast(model_class: type[models.Model], compiles: list[str]) -> None:
    model = model_class()
    compiled = torch.compile(model, backend=packpass.backend, options=EAGER)
    with torch.autocast("cpu", torch.bfloat16):
        check(model, compiled, *batch(), tolerance=2e-2)
    assert compiles == ["packed"]


def test_embeddings_as_input_and_nothing_leaks_from_padding(compiles: list[str]) -> None:
    """NaN at padding reaches neither results nor gradients, and gradients of padding are 0."""

    class Embedded(models.Model):
        def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
            return self.head(self.body(ids, self.attention_mask(ids, mask)))

    model = Embedded()
    compiled = torch.compile(model, backend=packpass.backend, options=EAGER)
    _, mask = batch()
    real = mask.bool()
    x = torch.randn(*mask.shape, models.WIDTH, generator=torch.Generator().manual_seed(3))
    clean = x.masked_fill(~real[..., None], 0.0).requires_grad_()
    want = model(clean, mask)
    (expected,) = torch.autograd.grad(want[real].square().sum(), clean)
    dirty = x.masked_fill(~real[..., None], float("nan")).requires_grad_()
    got = compiled(dirty, mask)
    (gradient,) = torch.autograd.grad(got.square().sum(), dirty)
    torch.testing.assert_close(got[real], want[real], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(gradient[real], expected[real], rtol=1e-4, atol=1e-5)
    assert not gradient[~real].any()
    assert compiles == ["packed"]


def test_rows_without_tokens(compiles: list[str]) -> None:
    model = models.Causal()
    compiled = torch.compile(model, backend=packpass.backend, options=EAGER)
    ids, mask = batch((4, 0, 6, 0))
    with torch.no_grad():
        got = compiled(ids, mask)
        want = model(ids, mask)
    torch.testing.assert_close(got[mask.bool()], want[mask.bool()], rtol=1e-5, atol=1e-5)
    assert not got[mask == 0].any()
    assert compiles == ["packed"]


def test_dropout_of_tokens_is_drawn_once(compiles: list[str]) -> None:
    """What is returned and what is used further is the same draw."""

    class Dropped(models.Model):
        def forward(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
            x = nn.functional.dropout(self.embedded(ids), 0.5, True)
            return x, self.layers[0](x, self.attention_mask(ids, mask))

    model = Dropped()
    ids, mask = batch()
    x, y = torch.compile(model, backend=packpass.backend, options=EAGER)(ids, mask)
    again = model.layers[0](x, model.attention_mask(ids, mask))
    torch.testing.assert_close(y[mask.bool()], again[mask.bool()], rtol=1e-5, atol=1e-5)
    assert compiles == ["packed"]


def test_a_causal_layer_without_a_mask_needs_padding_on_the_right(compiles: list[str]) -> None:
    class Half(models.Causal):
        def body(self, x: Tensor, mask: Any) -> Tensor:
            x = self.layers[0](x, mask)
            q, k, v = self.layers[1].heads(x)
            a = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            return x + a.transpose(1, 2).reshape(x.shape)

    model = Half()
    compiled = torch.compile(model, backend=packpass.backend, options=EAGER)
    check(model, compiled, *batch())
    assert compiles == ["packed"]
    ids, mask = batch(side="left")
    torch.testing.assert_close(compiled(ids, mask), model(ids, mask))
    assert compiles == ["packed", "padded"]


def test_explains() -> None:
    report = packpass.explain(models.Loss(), options=EAGER)(*batch())
    (rewrite,) = [r for r in report.rewrites if r.rule == RULE]
    assert "padded_models.py" in rewrite.location
    assert rewrite.details["attentions"] == 2 and rewrite.details["conditions"] == ["ignored"]
    assert not [r for r in report.refusals if r.rule == RULE]


@pytest.mark.parametrize("make", [models.Causal, models.Loss, models.Model], ids=lambda make: make.__name__)
def test_goes_with_verify(make: Any, compiles: list[str]) -> None:
    """The packed graph is compared with the padded one at real tokens: what is at padding changes on purpose."""
    model = make()
    compiled = torch.compile(model, backend=packpass.backend, options={**EAGER, "packpass.verify": True})
    check(model, compiled, *batch(), per_token=make is not models.Loss)
    assert compiles == ["packed"]


@pytest.mark.parametrize("make", [models.Causal, models.Loss], ids=lambda make: make.__name__)
def test_verify_names_a_wrong_packed_form(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from passes.eliminate_padding.machine import RULES

    right = RULES["*"]

    def wrong(machine: Any, node: fx.Node) -> Any:
        value = right(machine, node)
        doubled = machine.graph.call_function(torch.mul, (value.packed.node, 2))
        return dataclasses.replace(value, packed=dataclasses.replace(value.packed, node=doubled))

    monkeypatch.setitem(RULES, "linear", wrong)
    compiled = torch.compile(make(), backend=packpass.backend, options={**EAGER, "packpass.verify": True})
    with pytest.raises(VerificationError, match=r"eliminate_padding at .*padded_models\.py:\d+ changed output 0"):
        compiled(*batch())


def test_verify_does_not_compare_two_draws(caplog: pytest.LogCaptureFixture) -> None:
    class Dropping(models.Causal):
        def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
            return nn.functional.dropout(super().forward(ids, mask), 0.5)

    compiled = torch.compile(Dropping(), backend=packpass.backend, options={**EAGER, "packpass.verify": True})
    with caplog.at_level(logging.WARNING, "packpass.unpadded"):
        compiled(*batch())
    assert "cannot be verified" in caplog.text


def test_off_by_default(compiles: list[str]) -> None:
    report = packpass.explain(models.Model(), options={"packpass.inner_backend": "eager"})(*batch())
    assert RULE not in {r.rule for r in report.rewrites}
    assert compiles == []


def test_the_plan_is_that_of_pack() -> None:
    """The packed row of a compiled model is what `packpass.ops.pack` makes."""
    ids, mask = batch(side="holes")
    packed, plan = pack(ids, mask)
    assert packed.tolist() == ids[mask.bool()].tolist()
    assert plan.cu_seqlens.tolist() == [0, *mask.sum(1).cumsum(0).tolist()]
