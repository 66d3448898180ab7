"""What ``isolate`` leaves as it is: code whose documents are apart already, and code that cannot be made so."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._dynamo.utils import counters

import packpass
from packpass.decisions.records import RefusedError
from packpass.ops import segment_ids, varlen_attention

from . import isolated_programs as programs
from .test_isolate import ON, _reset  # noqa: F401  (a fixture of every test here)

Forward = Callable[[Tensor, Tensor, Tensor], Any]
BOUNDS = (0, 7, 20)


def arguments(total: int = 20) -> tuple[Tensor, Tensor, Tensor]:
    rng = torch.Generator().manual_seed(5)
    x, weight = torch.randn(1, total, 8, generator=rng), torch.randn(8, 8, 4, generator=rng)
    return x, weight, torch.tensor(BOUNDS, dtype=torch.int32)


def left(forward: Forward, options: dict[str, Any] = ON) -> list[str]:
    """Compile, compare with eager on the whole row, and give the codes of refusals."""
    torch.manual_seed(0)
    got = torch.compile(forward, backend=packpass.backend, options=options)(*arguments())
    torch.manual_seed(0)
    torch.testing.assert_close(got, forward(*arguments()))
    assert not counters["packpass"]["rewrite:isolate"]
    return [key.removeprefix("refusal:") for key in counters["packpass"] if key.startswith("refusal:")]


# === Apart already ===========================================================================================


def tokens_alone(x: Tensor, weight: Tensor, cu_seqlens: Tensor) -> Tensor:
    x = packpass.packed(x, cu_seqlens, dim=1)
    return F.layer_norm(F.gelu(x @ weight[..., 0]), (8,)) + x.mean(-1, keepdim=True)


def attention_that_knows(x: Tensor, weight: Tensor, cu_seqlens: Tensor) -> Tensor:
    q = packpass.packed(x, cu_seqlens, dim=1)[0].unflatten(-1, (2, 4))
    return varlen_attention(q, q, q, cu_seqlens, is_causal=True)


def mask_of_documents(x: Tensor, weight: Tensor, cu_seqlens: Tensor) -> Tensor:
    x = packpass.packed(x, cu_seqlens, dim=1)
    document = segment_ids(cu_seqlens, x.shape[1])
    return F.scaled_dot_product_attention(x, x, x, attn_mask=document[:, None] == document[None, :])


def a_loss(x: Tensor, weight: Tensor, cu_seqlens: Tensor) -> Tensor:
    x = packpass.packed(x, cu_seqlens, dim=1)
    return F.mse_loss(x @ weight[..., 0], x) + x.square().mean()


def statistics(x: Tensor, weight: Tensor, cu_seqlens: Tensor) -> tuple[Tensor, Tensor]:
    scores = (packpass.packed(x, cu_seqlens, dim=1) @ weight[..., 0]).softmax(-1)
    return scores.argmax(-1), scores.mean((0, 1))


def last_token(x: Tensor, weight: Tensor, cu_seqlens: Tensor) -> Tensor:
    return (packpass.packed(x, cu_seqlens, dim=1) @ weight[..., 0])[:, -1]


def positions_that_are_given(x: Tensor, weight: Tensor, cu_seqlens: Tensor) -> Tensor:
    x = packpass.packed(x, cu_seqlens, dim=1)
    return x + weight.reshape(32, 8)[packpass.ops.position_ids(cu_seqlens, x.shape[1])]


def constants_of_the_row(x: Tensor, weight: Tensor, cu_seqlens: Tensor) -> Tensor:
    x = packpass.packed(x, cu_seqlens, dim=1)
    return x * torch.ones(x.shape[1], 1) + torch.zeros_like(x)


APART: tuple[Forward, ...] = (
    tokens_alone,
    attention_that_knows,
    mask_of_documents,
    a_loss,
    statistics,
    last_token,
    positions_that_are_given,
    constants_of_the_row,
)


@pytest.mark.parametrize("forward", APART, ids=lambda f: f.__name__)
def test_what_is_apart_stays(forward: Forward) -> None:
    assert left(forward) == []


@pytest.mark.parametrize("program", [programs.dense, programs.causal_attention, programs.sines])
def test_nothing_happens_without_the_option(program: programs.Program) -> None:
    def forward(x: Tensor, weight: Tensor, cu_seqlens: Tensor) -> Tensor:
        return program(packpass.packed(x, cu_seqlens, dim=1), weight)

    assert left(forward, {"packpass.inner_backend": "eager"}) == []


def test_the_pass_can_be_disabled() -> None:
    def forward(x: Tensor, weight: Tensor, cu_seqlens: Tensor) -> Tensor:
        return programs.dense(packpass.packed(x, cu_seqlens, dim=1), weight)

    assert left(forward, {**ON, "packpass.disable": ["isolate"]}) == []


# === Cannot be made to stop ==================================================================================


def last_of_the_row(x: Tensor, weight: Tensor, cu_seqlens: Tensor) -> Tensor:
    x = packpass.packed(x, cu_seqlens, dim=1)
    return x - x[:, -1:]


def repeated_at_the_ends(x: Tensor, weight: Tensor, cu_seqlens: Tensor) -> Tensor:
    return F.conv1d(F.pad(packpass.packed(x, cu_seqlens, dim=1).mT, (2, 1), mode="replicate"), weight)


def turned_and_met(x: Tensor, weight: Tensor, cu_seqlens: Tensor) -> Tensor:
    x = packpass.packed(x, cu_seqlens, dim=1)
    return x + x.flip(1)


def divided_by_the_length(x: Tensor, weight: Tensor, cu_seqlens: Tensor) -> Tensor:
    """Each token by itself, but for a number that a document has of its own."""
    x = packpass.packed(x, cu_seqlens, dim=1)
    return x / x.shape[1]


def a_share_of_the_length(x: Tensor, weight: Tensor, cu_seqlens: Tensor) -> Tensor:
    x = packpass.packed(x, cu_seqlens, dim=1)
    return x * torch.full((1, 1, 8), 1.0 / x.shape[1])


def scaled_by_a_fixed_length(x: Tensor, weight: Tensor, cu_seqlens: Tensor) -> Tensor:
    """The logarithm makes the length a number of the code."""
    x = packpass.packed(x, cu_seqlens, dim=1)
    return F.scaled_dot_product_attention(x * math.log(x.shape[1] + 1), x, x, is_causal=True)


def steps_divided_by_the_length(x: Tensor, weight: Tensor, cu_seqlens: Tensor) -> Tensor:
    """So does a loop over tokens."""
    x = packpass.packed(x, cu_seqlens, dim=1)
    state, out = torch.zeros_like(x[:, 0]), []
    for t in range(x.shape[1]):
        state = state + x[:, t] / x.shape[1]
        out.append(state)
    return torch.stack(out, 1)


def spread_over_tokens(x: Tensor, weight: Tensor, cu_seqlens: Tensor) -> Tensor:
    x = packpass.packed(x, cu_seqlens, dim=1)
    return x / (1 + x.std(1, keepdim=True, correction=0))


def normalised_over_tokens(x: Tensor, weight: Tensor, cu_seqlens: Tensor) -> Tensor:
    return F.batch_norm(packpass.packed(x, cu_seqlens, dim=1).mT, None, None, training=True)


def mean_of_neighbours(x: Tensor, weight: Tensor, cu_seqlens: Tensor) -> Tensor:
    """Counts the slots that there are."""
    return F.avg_pool1d(packpass.packed(x, cu_seqlens, dim=1).mT, 3, 1, 1, count_include_pad=False)


def table_of_the_whole_length(x: Tensor, weight: Tensor, cu_seqlens: Tensor) -> Tensor:
    """Positions as shares of a row whose length is a number in the code."""
    x = packpass.packed(x, cu_seqlens, dim=1)
    places = torch.arange(x.shape[1]) / x.shape[1]
    return programs.step_by_step(x * places[:, None], weight)


def batched_and_mixing(x: Tensor, weight: Tensor, cu_seqlens: Tensor) -> Tensor:
    """Inside of ``torch.vmap`` is what no batch of documents can be put around."""
    x = packpass.packed(x, cu_seqlens, dim=1)
    return torch.vmap(lambda t: t - t.mean(0), in_dims=2, out_dims=2)(x[0].unsqueeze(0))


def one_good_one_bad(x: Tensor, weight: Tensor, cu_seqlens: Tensor) -> Tensor:
    x = packpass.packed(x, cu_seqlens, dim=1)
    y = programs.dense(x, weight)
    return y - y[:, -1:]


def too_many_slots(x: Tensor, weight: Tensor, cu_seqlens: Tensor) -> Tensor:
    return F.conv1d(packpass.packed(x, cu_seqlens, dim=1).mT, weight, padding=3)


def state_returned(x: Tensor, weight: Tensor, cu_seqlens: Tensor) -> tuple[Tensor, Tensor]:
    x = packpass.packed(x, cu_seqlens, dim=1)
    padded = F.pad(x, (0, 0, 3, 0))
    state = padded[:, -3:]
    return padded.unfold(1, 4, 1).sum(-1), state * state.new_ones(1)


def drawn_while_mixed(x: Tensor, weight: Tensor, cu_seqlens: Tensor) -> Tensor:
    x = packpass.packed(x, cu_seqlens, dim=1)
    later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
    weights = (x @ x.mT).masked_fill(later, -math.inf).softmax(-1)
    return F.dropout(weights, 0.5, training=True) @ x


def positions_of_the_whole(x: Tensor, weight: Tensor, cu_seqlens: Tensor) -> Tensor:
    x = packpass.packed(x, cu_seqlens, dim=1)
    return x * (torch.arange(x.shape[1]) / x.shape[1])[:, None]


def written_to_the_row(x: Tensor, weight: Tensor, cu_seqlens: Tensor) -> Tensor:
    y = packpass.packed(x, cu_seqlens, dim=1) * 2
    z = y + 1
    y[:, 1:] = y[:, :-1].cumsum(1)
    return y + z


REFUSED: tuple[tuple[Forward, str], ...] = (
    (last_of_the_row, "mixes-documents"),
    (repeated_at_the_ends, "mixes-documents"),
    (turned_and_met, "mixes-documents"),
    (spread_over_tokens, "mixes-documents"),
    (scaled_by_a_fixed_length, "mixes-documents"),
    (steps_divided_by_the_length, "mixes-documents"),
    (divided_by_the_length, "mixes-documents"),
    (a_share_of_the_length, "mixes-documents"),
    (normalised_over_tokens, "mixes-documents"),
    (mean_of_neighbours, "mixes-documents"),
    (one_good_one_bad, "mixes-documents"),
    (too_many_slots, "mixes-documents"),
    (drawn_while_mixed, "mixes-documents"),
    (positions_of_the_whole, "mixes-documents"),
    (table_of_the_whole_length, "mixes-documents"),
    (batched_and_mixing, "mixes-documents"),
    (written_to_the_row, "in-place"),
)


@pytest.mark.parametrize(("forward", "code"), REFUSED, ids=lambda x: getattr(x, "__name__", ""))
def test_what_cannot_stop_is_refused(forward: Forward, code: str) -> None:
    assert code in left(forward)


def test_a_state_of_the_whole_row_stays_and_is_named() -> None:
    x, weight, cu = arguments()
    report = packpass.explain(state_returned, options=ON)(x, weight, cu)
    assert [r.code for r in report.refusals] == ["whole-row-state"]
    sums, state = report.result
    torch.testing.assert_close(state, state_returned(x, weight, cu)[1])
    torch.testing.assert_close(sums[:, :7], state_returned(x[:, :7], weight, cu[:2])[0])


def test_a_refusal_names_the_operations_and_what_to_do() -> None:
    report = packpass.explain(one_good_one_bad, options=ON)(*arguments())
    (refusal,) = [r for r in report.refusals if r.rule == "isolate"]
    assert "getitem at" in refusal.reason
    assert "test_isolate_leave.py:" in refusal.location
    assert "one document per row" in refusal.reason


def test_halves_hide_nothing() -> None:
    def forward(x: Tensor, weight: Tensor, cu_seqlens: Tensor) -> Tensor:
        x = packpass.packed(x, cu_seqlens, dim=1).bfloat16()
        return x + 0.01 * x[:, -1:]

    assert left(forward) == ["mixes-documents"]


def test_a_refusal_can_be_an_error() -> None:
    compiled = torch.compile(last_of_the_row, backend=packpass.backend, options={**ON, "packpass.on_refusal": "raise"})
    with pytest.raises(RefusedError, match="getitem"):
        compiled(*arguments())


# === Outside of graphs =======================================================================================


def test_what_runs_between_graphs_is_named() -> None:
    def forward(x: Tensor, weight: Tensor, cu_seqlens: Tensor) -> Tensor:
        y = F.conv1d(F.pad(packpass.packed(x, cu_seqlens, dim=1).mT, (3, 0)), weight)
        torch._dynamo.graph_break()
        return y.cumsum(-1)

    report = packpass.explain(forward, options=ON)(*arguments())
    (refusal,) = [r for r in report.refusals if r.code == "graph-break"]
    assert refusal.rule == "isolate"
    assert "test_isolate_leave.py:" in refusal.location
    assert not packpass.explain(forward, options={**ON, "packpass.isolate": False})(*arguments()).refusals


def test_what_torch_does_not_compile_is_named() -> None:
    lstm = torch.nn.LSTM(8, 8, batch_first=True)

    def forward(x: Tensor, weight: Tensor, cu_seqlens: Tensor) -> Tensor:
        return lstm(packpass.packed(x, cu_seqlens, dim=1))[0]

    report = packpass.explain(forward, options=ON)(*arguments())
    assert {"graph-break", "frame-not-compiled"} & {r.code for r in report.refusals if r.rule == "isolate"}
    assert any("LSTM" in r.reason for r in report.refusals)


# === Boundaries ==============================================================================================


def test_without_boundaries_it_says_what_to_give() -> None:
    def forward(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
        return programs.dense(x, weight)

    assert left(forward) == ["no-boundaries"]
    report = packpass.explain(forward, options=ON)(*arguments())
    assert "packpass.packed" in report.refusals[0].reason


def test_two_rows_are_refused() -> None:
    def forward(x: Tensor, weight: Tensor, cu_seqlens: Tensor) -> tuple[Tensor, Tensor]:
        first = packpass.packed(x, cu_seqlens, dim=1)
        second = packpass.packed(x.flip(2)[:, :12].sin(), cu_seqlens[:2] // 1, dim=1)
        return programs.dense(first, weight), programs.dense(second, weight)

    assert "two-boundaries" in left(forward)


def test_padded_boundaries_are_refused() -> None:
    def forward(x: Tensor, weight: Tensor, cu_seqlens: Tensor) -> Tensor:
        return programs.dense(packpass.packed(x, cu_seqlens, dim=1, cu_seqlens_padded=cu_seqlens.clone()), weight)

    assert "sharded-row" in left(forward)


def test_not_together_with_eliminate_padding() -> None:
    def forward(x: Tensor, weight: Tensor, cu_seqlens: Tensor) -> Tensor:
        return programs.dense(packpass.packed(x, cu_seqlens, dim=1), weight)

    assert "mixes-documents" in left(forward, {**ON, "packpass.eliminate_padding": True})


@pytest.mark.parametrize("bounds", [(0, 9, 7, 20), (0, 7, 99)])
def test_wrong_boundaries_are_an_error(bounds: tuple[int, ...]) -> None:
    def forward(x: Tensor, weight: Tensor, cu_seqlens: Tensor) -> Tensor:
        return programs.dense(packpass.packed(x, cu_seqlens, dim=1), weight)

    x, weight, _ = arguments()
    with pytest.raises((ValueError, RuntimeError), match="cu_seqlens|boundaries"):
        torch.compile(forward, backend=packpass.backend, options=ON)(x, weight, torch.tensor(bounds))
