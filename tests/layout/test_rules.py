"""Layout rules one by one: which dimension of the result is packed when one of the input's is declared to be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx
from torch.utils.checkpoint import checkpoint

import packpass
from packpass.layout import LayoutError, Layouts, analyze
from packpass.semantics.dialect import normalise

T, D, H = 11, 4, 3
CU = torch.tensor([0, 4, 11], dtype=torch.int32)


def analyzed(fn: Callable[..., Any], *args: Any, dynamic: bool = False) -> tuple[fx.GraphModule, Layouts]:
    """The Dynamo graph of ``fn`` and its layout (while Dynamo still knows where inputs come from)."""
    seen: list[tuple[fx.GraphModule, Layouts | LayoutError]] = []

    def keep(gm: fx.GraphModule, inputs: Any) -> Any:
        try:
            normalise([gm.graph])
            seen.append((gm, analyze(gm)))
        except LayoutError as error:
            seen.append((gm, error))
        return gm.forward

    torch._dynamo.reset()
    torch.compile(fn, backend=keep, fullgraph=True, dynamic=dynamic)(*args)
    gm, layouts = seen[-1]
    if isinstance(layouts, LayoutError):
        raise layouts
    return gm, layouts


def packed_results(fn: Callable[..., Any], *args: Any, dynamic: bool = False) -> list[int | None]:
    """For every tensor that ``fn`` returns: its packed dimension."""
    gm, layouts = analyzed(fn, *args, dynamic=dynamic)
    return [found[0] if (found := layouts.packed_dim(n)) else None for n in results(gm)]


def results(gm: fx.GraphModule) -> list[fx.Node]:
    (output,) = [n for n in gm.graph.nodes if n.op == "output"]
    return [n for n in output.all_input_nodes if isinstance(n.meta.get("example_value"), Tensor)]


def packed_dims(
    fn: Callable[[Tensor], Any], shape: tuple[int, ...], dim: int, dynamic: bool = False, integer: bool = False
) -> list[int | None]:
    """`packed_results` of a function of one tensor, whose dimension ``dim`` is declared."""
    x = torch.randint(0, 3, shape) if integer else torch.randn(shape)

    def declared(x: Tensor, cu: Tensor) -> Any:
        return fn(packpass.packed(x, cu, dim))

    return packed_results(declared, x, CU, dynamic=dynamic)


ROW, HIDDEN, HEADS = (1, T), (1, T, D), (T, H, D)
W = torch.randn(5, D)

KEPT: list[tuple[str, Callable[[Tensor], Any], tuple[int, ...], int, list[int]]] = [
    ("elementwise", lambda x: torch.relu(x * 2 + 1).clamp(0) ** 2, HIDDEN, 1, [1]),
    ("two operands", lambda x: x + torch.ones(T, 1), HIDDEN, 1, [1]),
    ("broadcast to more", lambda x: x + torch.ones(2, 1, 1), HIDDEN, 1, [1]),
    ("casts", lambda x: x.to(torch.float64).half().clone().contiguous().detach(), HIDDEN, 1, [1]),
    ("where", lambda x: torch.where(x > 0, x, 0.0), HIDDEN, 1, [1]),
    ("in place", lambda x: x.clone().add_(1), HIDDEN, 1, [1]),
    ("linear", lambda x: F.linear(x, W), HIDDEN, 1, [1]),
    ("matmul", lambda x: x @ W.t(), HIDDEN, 1, [1]),
    ("einsum", lambda x: torch.einsum("btd,vd->tbv", x, W), HIDDEN, 1, [0]),
    ("layer norm", lambda x: F.layer_norm(x, (D,)), HIDDEN, 1, [1]),
    ("rms norm", lambda x: F.rms_norm(x, (D,)), HIDDEN, 1, [1]),
    ("softmax over features", lambda x: x.softmax(-1), HIDDEN, 1, [1]),
    ("cumsum over features", lambda x: x.cumsum(-1), HIDDEN, 1, [1]),
    ("sum over features", lambda x: x.sum(-1), HIDDEN, 1, [1]),
    ("mean kept", lambda x: x.mean(-1, keepdim=True), HIDDEN, 1, [1]),
    ("sum over rows", lambda x: x.sum(0), HIDDEN, 1, [0]),
    ("max over features", lambda x: x.max(-1), HIDDEN, 1, [1, 1]),
    ("norm", lambda x: x.norm(dim=-1), HIDDEN, 1, [1]),
    ("transpose", lambda x: x.transpose(0, 1), HIDDEN, 1, [0]),
    ("permute", lambda x: x.permute(2, 0, 1), HIDDEN, 1, [2]),
    ("movedim", lambda x: x.movedim(1, 0), HIDDEN, 1, [0]),
    ("T", lambda x: x.T, ROW, 1, [0]),
    ("unsqueeze and squeeze", lambda x: x.unsqueeze(0).squeeze(1), HIDDEN, 1, [1]),
    ("view", lambda x: x.view(T, D), HIDDEN, 1, [0]),
    ("view of heads", lambda x: x.view(1, T, 2, 2).transpose(1, 2), HIDDEN, 1, [2]),
    ("flatten features", lambda x: x.flatten(1), HEADS, 0, [0]),
    ("reshape", lambda x: x.reshape(-1, D), HIDDEN, 1, [0]),
    ("expand", lambda x: x.expand(3, T, D), HIDDEN, 1, [1]),
    ("cat of features", lambda x: torch.cat((x, x * 2), -1), HIDDEN, 1, [1]),
    ("cat of rows", lambda x: torch.cat((x, x)), HIDDEN, 1, [1]),
    ("stack", lambda x: torch.stack((x, x), 1), HIDDEN, 1, [2]),
    ("chunk features", lambda x: x.chunk(2, -1), HIDDEN, 1, [1, 1]),
    ("split features", lambda x: x.split([1, 3], 2), HIDDEN, 1, [1, 1]),
    ("unbind features", lambda x: x.unbind(-1)[:2], HIDDEN, 1, [1, 1]),
    ("select a feature", lambda x: x[..., 1], HIDDEN, 1, [1]),
    ("select the row", lambda x: x[0], HIDDEN, 1, [0]),
    ("slice features", lambda x: x[:, :, 1:], HIDDEN, 1, [1]),
    ("new dimension", lambda x: x[:, None], HIDDEN, 1, [2]),
    ("narrow features", lambda x: x.narrow(-1, 0, 2), HIDDEN, 1, [1]),
    ("gather features", lambda x: x.gather(-1, torch.zeros_like(x[..., :2]).long()), HIDDEN, 1, [1]),
    ("pad features", lambda x: F.pad(x, (0, 2)), HIDDEN, 1, [1]),
    ("roll features", lambda x: x.roll(1, -1), HIDDEN, 1, [1]),
    ("roll tokens", lambda x: x.roll(1, 1), HIDDEN, 1, [1]),
    ("roll tokens, and the one row", lambda x: x.roll((1, 1), (0, 1)), HIDDEN, 1, [1]),
    ("flip features", lambda x: x.flip(-1), HIDDEN, 1, [1]),
    ("dropout", lambda x: F.dropout(x, 0.5), HIDDEN, 1, [1]),
    ("attention", lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True), HIDDEN, 1, [1]),
    ("attention with dropout", lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.5), HIDDEN, 1, [1]),
    ("filled in order", lambda x: x.masked_scatter(x > 0, torch.zeros(1, T, D)), HIDDEN, 1, [1]),
    ("own roll", lambda x: packpass.ops.packed_roll(x, CU, 1, 1, 0), HIDDEN, 1, [1]),
    ("checkpoint", lambda x: checkpoint(lambda h: F.linear(h, W), x, use_reentrant=False), HIDDEN, 1, [1]),
]

LOST: list[tuple[str, Callable[[Tensor], Any], tuple[int, ...], int]] = [
    ("sum over tokens", lambda x: x.sum(1), HIDDEN, 1),
    ("sum of everything", lambda x: x.sum(), HIDDEN, 1),
    ("running sum", lambda x: x.cumsum(1), HIDDEN, 1),
    ("roll tokens and features", lambda x: x.roll((1, 2), (1, 2)), HIDDEN, 1),
    ("sort", lambda x: x.sort(1).values, HIDDEN, 1),
    ("flip", lambda x: x.flip(1), HIDDEN, 1),
    ("softmax over tokens", lambda x: x.softmax(1), HIDDEN, 1),
    ("slice of tokens", lambda x: x[:, 1:], HIDDEN, 1),
    ("slice of slots", lambda x: x[:, ::2], HIDDEN, 1),
    ("padded row", lambda x: F.pad(x, (0, 0, 1, 0)), HIDDEN, 1),
    ("rows one after the other", lambda x: torch.cat((x, x), 1), HIDDEN, 1),
    ("flattened with features", lambda x: x.flatten(), HIDDEN, 1),
    ("regrouped", lambda x: x.reshape(1, D, T), HIDDEN, 1),
    ("repeated", lambda x: x.repeat_interleave(2, 1), HIDDEN, 1),
    ("gather tokens", lambda x: x.gather(1, torch.zeros(1, T, D, dtype=torch.long)), HIDDEN, 1),
    ("read in order", lambda x: torch.zeros(1, T, D).masked_scatter(torch.ones(1, T, D) > 0, x), HIDDEN, 1),
    ("index of tokens", lambda x: x[:, torch.arange(T)], HIDDEN, 1),
    ("convolution", lambda x: F.conv1d(x.transpose(1, 2), torch.ones(2, D, 3), padding=1), HIDDEN, 1),
    ("scores of all pairs", lambda x: x @ x.transpose(1, 2), HIDDEN, 1),
    ("fft", lambda x: torch.fft.fft(x, dim=1).real, HIDDEN, 1),
    ("diff", lambda x: torch.diff(x, dim=1, append=x[:, :1]), HIDDEN, 1),
]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(("fn", "shape", "dim", "expected"), [c[1:] for c in KEPT], ids=[c[0] for c in KEPT])
def test_kept(fn: Any, shape: tuple[int, ...], dim: int, expected: list[int], dynamic: bool) -> None:
    assert packed_dims(fn, shape, dim, dynamic=dynamic) == expected


@pytest.mark.parametrize(("fn", "shape", "dim"), [c[1:] for c in LOST], ids=[c[0] for c in LOST])
def test_lost(fn: Any, shape: tuple[int, ...], dim: int) -> None:
    assert set(packed_dims(fn, shape, dim)) == {None}


def test_embedding_and_one_hot() -> None:
    table = torch.randn(3, D)
    assert packed_dims(lambda x: (F.embedding(x, table), F.one_hot(x, 3)), ROW, 1, integer=True) == [1, 1]


def test_losses_bind_scores_and_targets() -> None:
    def fn(logits: Tensor, labels: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
        logits = packpass.packed(logits, cu, 1)
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
        return loss, labels + 1

    assert packed_results(fn, torch.randn(1, T, 5), torch.randint(0, 5, (1, T)), CU) == [0, 1]


@pytest.mark.parametrize(("scores", "targets", "linked"), [(-1, 1, True), (-2, 2, True), (-1, 2, False)])
def test_losses_bind_rows_that_are_cut_by_a_shift(scores: int, targets: int, linked: bool) -> None:
    def fn(logits: Tensor, labels: Tensor, cu: Tensor) -> Tensor:
        logits = packpass.packed(logits, cu, 1)
        if scores + targets:
            logits = logits[:, 1:]
        loss = F.cross_entropy(logits[:, :scores].flatten(0, 1), labels[:, targets:].flatten(), reduction="none")
        return loss.sum() + labels * 2

    expected = [1] if linked else [None]
    assert packed_results(fn, torch.randn(1, T, 5), torch.randint(0, 5, (1, T)), CU) == expected


def test_a_row_is_known_backwards_too() -> None:
    """What is declared late holds for the tensors it was made from."""

    def fn(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
        y = x.transpose(0, 1)
        return packpass.packed(x * 2, cu, 1), y.contiguous()

    assert packed_results(fn, torch.randn(1, T), CU) == [1, 0]


def test_varlen_attention_packs_queries_keys_and_result() -> None:
    def fn(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
        q = x.view(T, 1, D)
        return packpass.ops.varlen_attention(q, q * 2, q, cu, cu, is_causal=True), x + 1

    gm, layouts = analyzed(fn, torch.randn(T, D), CU)
    found = [layouts.packed_dim(n) for n in results(gm)]
    assert [f and f[0] for f in found] == [0, 0]
    assert {f[1].kind for f in found if f} == {"attention"}


def test_cross_attention_keys_have_boundaries_of_their_own() -> None:
    def fn(x: Tensor, y: Tensor, cu: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
        q, k = x.view(T, 1, D), y.view(7, 1, D)
        return packpass.ops.varlen_attention(q, k, k, cu, other), y + 1

    assert packed_results(fn, torch.randn(T, D), torch.randn(7, D), CU, torch.tensor([0, 3, 7], dtype=torch.int32)) == [
        0,
        None,
    ]


# === Rows that only meet =====================================================================================

TABLE = torch.randn(T)

MEETING: list[tuple[str, Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]]] = [
    ("type_as", lambda a, b: (a.type_as(b), b + 1)),
    ("to a tensor", lambda a, b: (a.to(b), b + 1)),
    ("isin", lambda a, b: (torch.isin(a, b), b + 1)),
    ("new_zeros", lambda a, b: (a + 1, a.new_zeros(T) + b)),
    ("zeros_like", lambda a, b: (a + 1, torch.zeros_like(a) + b)),
    ("memory of the same form", lambda a, b: (a + 1, torch.empty_like(a).copy_(b))),
    ("one range of positions", lambda a, b: (a + torch.arange(T), b + torch.arange(T).float())),
    ("one weight for both", lambda a, b: (a * TABLE, b * TABLE)),
    ("one constant for both", lambda a, b: (a + (ones := torch.ones(T)), b + ones)),
    ("one causal mask", lambda a, b: ((a * (m := torch.ones(T, T).tril())).sum(-1), (b * m).sum(-1))),
    ("embedded", lambda a, b: (a + 1, torch.embedding(b[:, None], torch.zeros_like(a).long())[:, 0])),
]

TOGETHER: list[tuple[str, Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]]] = [
    ("sum", lambda a, b: (a + b, b + 1)),
    ("where", lambda a, b: (torch.where(a > 0, a, b), b + 1)),
    ("through zeros that are filled", lambda a, b: (a + (z := torch.zeros(T).copy_(b)), z)),
    ("in a loss", lambda a, b: (F.mse_loss(a, b), b + 1)),
    ("positions of one row", lambda a, b: (a + (p := torch.arange(T)), p + 1)),
    ("a weight of one row", lambda a, b: (a * (w := TABLE + 1), w + 1)),
]


def of_two(fn: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]], both: bool = False) -> list[int | None]:
    """The packed dimensions where the first row is declared; ``both``: the second as well, by the same boundaries."""

    def declared(a: Tensor, b: Tensor, cu: Tensor) -> Any:
        return fn(packpass.packed(a, cu), packpass.packed(b, cu) if both else b)

    return packed_results(declared, torch.randn(T), torch.randn(T), CU)


@pytest.mark.parametrize("fn", [c[1] for c in MEETING], ids=[c[0] for c in MEETING])
def test_rows_that_only_meet_are_two_rows(fn: Any) -> None:
    """Of one length, and with a type, a shape or positions in common: still no token of one is one of the other."""
    assert of_two(fn)[1:] == [None]


@pytest.mark.parametrize("fn", [c[1] for c in TOGETHER], ids=[c[0] for c in TOGETHER])
def test_rows_that_are_combined_are_one(fn: Any) -> None:
    assert of_two(fn)[-1] == 0


def test_positions_of_two_rows_with_the_same_boundaries_have_them_too() -> None:
    assert of_two(lambda a, b: (a + (p := torch.arange(T)), b + p, p * 2), both=True) == [0, 0, 0]


def test_rows_with_boundaries_of_their_own_may_meet() -> None:
    """Neither is the other: there is nothing to complain about."""

    def fn(a: Tensor, b: Tensor, cu: Tensor, other: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        a, b, p = packpass.packed(a, cu), packpass.packed(b, other), torch.arange(T)
        return a + p, b + p, torch.zeros_like(a) + b

    _, layouts = analyzed(fn, torch.randn(T), torch.randn(T), CU, torch.tensor([0, 7, T], dtype=torch.int32))
    assert {p.boundaries.name for p in layouts.packings.values()} == {"l_cu_", "l_other_"}


# === Sources =================================================================================================


def layouts_of(fn: Callable[..., Any], **kwargs: Tensor) -> tuple[Layouts, list[str]]:
    """The layout of a call, and the names of its packed inputs."""
    gm, layouts = analyzed(fn, *kwargs.values())
    places = [n for n in gm.graph.nodes if n.op == "placeholder"]
    return layouts, [n.name for n in places if layouts.packed_dim(n) is not None]


def ids_and_more(input_ids: Tensor, other: Tensor, cu_seqlens: Tensor) -> list[Tensor]:
    return [input_ids + 0, other + 0, cu_seqlens + 0]


def test_well_known_inputs() -> None:
    ids = torch.zeros(1, T, dtype=torch.long)
    layouts, packed = layouts_of(ids_and_more, input_ids=ids, other=torch.zeros(1, T), cu_seqlens=CU)
    assert packed == ["l_input_ids_"]
    assert layouts.doubts == ()
    assert "input cu_seqlens" in str(layouts)


@pytest.mark.parametrize(
    ("ids", "cu", "code"),
    [
        (torch.zeros(2, T, dtype=torch.long), CU, "ambiguous-rows"),
        (torch.zeros(1, T, dtype=torch.long), CU.float(), "not-boundaries"),
        (torch.zeros(1, T, dtype=torch.long), CU[None], "not-boundaries"),
        (torch.zeros(1, T, dtype=torch.long), torch.zeros(T + 2, dtype=torch.int32), "not-boundaries"),
    ],
)
def test_doubts(ids: Tensor, cu: Tensor, code: str) -> None:
    layouts, packed = layouts_of(ids_and_more, input_ids=ids, other=torch.zeros(1, T), cu_seqlens=cu)
    assert packed == []
    assert [d.code for d in layouts.doubts] == [code]
    assert layouts.if_doubts_were_wrong().packings


def test_two_candidates() -> None:
    def fn(input_ids: Tensor, cu_seqlens: Tensor, cu_seqlens_q: Tensor) -> list[Tensor]:
        return [input_ids + 0, cu_seqlens + 0, cu_seqlens_q + 0]

    layouts, packed = layouts_of(fn, input_ids=torch.zeros(1, T, dtype=torch.long), cu_seqlens=CU, cu_seqlens_q=CU + 0)
    assert packed == []
    assert [d.code for d in layouts.doubts] == ["ambiguous-boundaries"]


def test_declarations_that_contradict_each_other() -> None:
    def fn(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return packpass.packed(packpass.packed(x, a) * 2, b)

    with pytest.raises(LayoutError, match="contradicts"):
        analyzed(fn, torch.zeros(T), CU, CU + 0)


def test_sources_of_one_rank_that_disagree_void_each_other() -> None:
    def fn(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
        q = x.view(T, 1, D)
        return packpass.ops.varlen_attention(q, q, q, a, a) + packpass.ops.varlen_attention(q, q, q, b, b)

    gm, layouts = analyzed(fn, torch.randn(T, D), CU, CU + 0)
    assert layouts.contradictory
    assert layouts.packed_dim(results(gm)[0]) is None


def test_a_graph_without_boundaries_has_no_layout() -> None:
    _, layouts = analyzed(lambda x: F.linear(x, W).relu(), torch.randn(1, T, D))
    assert layouts.packings == {}
    assert "value" in str(layouts)
