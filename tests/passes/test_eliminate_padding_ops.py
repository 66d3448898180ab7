"""Ops of the features of padded tokens: each passes if its meaning keeps batch and tokens, and is refused if not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import packpass

from . import padded_models as models
from .test_eliminate_padding import EAGER, RULE, batch, check, compiles  # noqa: F401  (a fixture)

D = models.WIDTH
Body = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Takes tokens ``[B, S, D]``, ids and the embedding's weight ``[V, D]``; gives ``[B, S, D]``."""


@pytest.fixture(autouse=True)
def _reset() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Through(models.Model):
    """One layer of attention, and some op of its tokens."""

    def __init__(self, body: Body) -> None:
        super().__init__()
        self.through = body
        self.layers = self.layers[:1]

    def hidden(self, ids: Tensor, mask: Tensor) -> Tensor:
        x = self.through(self.embedded(ids), ids, self.embed.weight)
        return self.norm(self.through(self.body(x, self.attention_mask(ids, mask)), ids, self.embed.weight))


def _rotated(x: Tensor, ids: Tensor, w: Tensor) -> Tensor:
    """Rotary positions with complex numbers."""
    turn = torch.polar(torch.ones(D // 2), torch.arange(D // 2).float())
    return torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (D // 2, 2))) * turn).flatten(-2)


def _three(x: Tensor, sizes: list[int], split: Callable[..., Any]) -> Tensor:
    a, b, c = split(x, sizes, -1)
    return torch.cat((c, a, b), -1)


KEEPS: dict[str, Body] = {
    "asinh": lambda x, i, w: x + torch.asinh(x) + torch.sinc(x) + F.hardshrink(x) + torch.rad2deg(x) * 0.01,
    "logaddexp2": lambda x, i, w: x + torch.logaddexp2(x, -x) + torch.xlogy(x * x, x * x + 1),
    "comparisons": lambda x, i, w: x + torch.greater(x, 0.1) + torch.less_equal(x, x.abs()) + torch.isclose(x, x),
    "split_with_sizes": lambda x, i, w: _three(x, [4, 8, 4], torch.split_with_sizes),
    "narrow": lambda x, i, w: x + torch.cat((x.narrow(-1, 8, 8), x.narrow(2, 0, 8)), -1),
    "gather": lambda x, i, w: x + x.gather(-1, (i % D)[..., None]),
    "take_along_dim": lambda x, i, w: x + torch.take_along_dim(x, (i % D)[..., None], -1),
    "index_select": lambda x, i, w: x + x.index_select(-1, torch.arange(D - 1, -1, -1)),
    "one_hot": lambda x, i, w: x + F.one_hot(i % D, D),
    "table": lambda x, i, w: x + w[i],
    "frequencies": lambda x, i, w: x + F.embedding(i, w, scale_grad_by_freq=True),  # of all ids, padding included
    "einsum": lambda x, i, w: x + torch.einsum("bsd,ed->bse", x, w[:D]),
    "einsum_dots": lambda x, i, w: x + torch.einsum("...d,ed", x, w[:D]),
    "matmul": lambda x, i, w: x + x @ w[:D] * 0.1,
    "norms": lambda x, i, w: x + x.norm(dim=-1, keepdim=True) + torch.linalg.vector_norm(x, dim=-1, keepdim=True),
    "moments": lambda x, i, w: x + sum(m[..., None] for m in torch.var_mean(x, -1)) + x.nansum(-1, keepdim=True),
    "orders": lambda x, i, w: x + x.median(-1, keepdim=True).values + x.cummax(-1).values + x.argmax(-1)[..., None],
    "count_nonzero": lambda x, i, w: x + x.count_nonzero(-1)[..., None],
    "complex": _rotated,
    "repeat": lambda x, i, w: x + x[..., :4].repeat(1, 1, 4) + x[..., :8].tile(2),
    "pad": lambda x, i, w: x + F.pad(x[..., :12], (1, 3)),
    "roll": lambda x, i, w: x + x.roll(1, -1) + x.flip(-1),
    "broadcast_to": lambda x, i, w: x + x[..., :1].broadcast_to(x.shape),
    "heads": lambda x, i, w: (x.unflatten(-1, (4, 4)).transpose(1, 2) @ w[:4, :4]).transpose(1, 2).flatten(2),
    "mse_loss": lambda x, i, w: x + F.mse_loss(x, x.flip(-1), reduction="none"),
    "stack": lambda x, i, w: torch.stack((x, -x), 1).amax(1) + torch.stack((x, x), -1).sum(-1),
    "in_place": lambda x, i, w: (x * 2).add_(1).relu_(),
    "type_as": lambda x, i, w: x + (i > 5).type_as(x)[..., None],
}


@pytest.mark.parametrize("name", KEEPS)
def test_passes(name: str, compiles: list[str]) -> None:  # noqa: F811
    model = Through(KEEPS[name])
    compiled = torch.compile(model, backend=packpass.backend, options=EAGER, fullgraph=True)
    check(model, compiled, *batch())
    assert compiles == ["packed"]


def _prelu(x: Tensor, ids: Tensor, w: Tensor) -> Tensor:
    """Its weight goes with dimension 1, which is another one when the batch is gone."""
    return F.prelu(x.unflatten(-1, (4, 4)).transpose(1, 2), w[0, :4]).transpose(1, 2).flatten(2)


def _channels(x: Tensor, ids: Tensor, w: Tensor) -> Tensor:
    return F.batch_norm(x.transpose(1, 2), w[0].detach(), w[1].detach().exp()).transpose(1, 2)


CROSSES: dict[str, tuple[Body, str]] = {
    "roll": (lambda x, i, w: x.roll(1, 1), "cross-token"),
    "flip": (lambda x, i, w: x.flip(1), "cross-token"),
    "pad": (lambda x, i, w: x + F.pad(x, (0, 0, 1, 0))[:, :-1], "cross-token"),
    "narrow": (lambda x, i, w: x + x.narrow(1, 1, 1), "cross-token"),
    "norm": (lambda x, i, w: x / x.norm(dim=1, keepdim=True), "cross-token"),
    "vector_norm": (lambda x, i, w: x / torch.linalg.vector_norm(x), "cross-token"),
    "cummax": (lambda x, i, w: x.cummax(1).values, "cross-token"),
    "median": (lambda x, i, w: x + x.median(1, keepdim=True).values, "cross-token"),
    "var_mean": (lambda x, i, w: x + torch.var_mean(x, 0, keepdim=True)[1], "cross-token"),
    "einsum": (lambda x, i, w: torch.einsum("bsd,btd,bte->bse", x, x, x), "cross-token"),
    "repeat": (lambda x, i, w: x + x.repeat(1, 2, 1)[:, : x.shape[1]], "cross-token"),
    "index_select": (lambda x, i, w: x + x.index_select(1, torch.zeros(9, dtype=torch.long)), "cross-token"),
    "take_along_dim": (lambda x, i, w: x + torch.take_along_dim(x, i[..., None] % 9, 1), "cross-token"),
    "isin": (lambda x, i, w: x + torch.isin(x, x.flip(1)), "cross-token"),
    "tril": (lambda x, i, w: x.tril(), "cross-token"),
    "batch_norm": (_channels, "no-rule"),
    "mse_loss": (lambda x, i, w: x + F.mse_loss(x, x.flip(-1)), "cross-token"),
    "prelu": (_prelu, "no-rule"),
    "unknown": (lambda x, i, w: x + torch.cdist(x, x).sum(-1, keepdim=True), "cross-token"),
}


@pytest.mark.parametrize("name", CROSSES)
def test_leaves_alone(name: str) -> None:
    body, code = CROSSES[name]
    report = packpass.explain(Through(body), options=EAGER)(*batch())
    assert RULE not in {r.rule for r in report.rewrites}
    assert [r.code for r in report.refusals if r.rule == RULE] == [code]
    torch.testing.assert_close(report.result, Through(body)(*batch()), rtol=0, atol=1e-6)
