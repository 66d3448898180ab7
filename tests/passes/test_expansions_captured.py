"""Rows that expand by numbers in a tensor, with torch's settings as they are: there the graph ends in stock torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import packpass
from packpass import ops
from packpass.decisions.records import collecting
from tests.passes.expansion_data import OPTIONS

IMAGE, WIDTH, D = 7, 4, 8
DOCUMENTS = ([5, 3, 6], [4, 9], [1, 2, 8, 3], [14])


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch._dynamo.reset()
    assert not torch._dynamo.config.capture_dynamic_output_shape_ops


def batches() -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """``(ids [T], cu_seqlens [N+1], features [images, WIDTH, D])`` with other documents each; the last has no image."""
    for seed, lengths in enumerate([*DOCUMENTS, DOCUMENTS[0]]):
        generator = torch.Generator().manual_seed(seed)
        ids = torch.randint(8, 50, (sum(lengths),), generator=generator)
        images = 3 if seed < len(DOCUMENTS) else 0
        ids[torch.randperm(ids.numel(), generator=generator)[:images]] = IMAGE
        cu = torch.tensor([0, *lengths]).cumsum(0).int()
        yield ids, cu, torch.randn(images, WIDTH, D, generator=generator)


torch.manual_seed(0)
EMBED = nn.Embedding(50, D)


def attend(x: Tensor, cu: Tensor) -> Tensor:
    q = x.unsqueeze(1)
    return ops.varlen_attention(q, q, q, cu).squeeze(1)


def widths_of(ids: Tensor) -> Tensor:
    return torch.where(ids == IMAGE, WIDTH, 1)


def expanded(ids: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    """The row of ids behind the expansion, and its boundaries."""
    widths = widths_of(ids)
    return ids.repeat_interleave(widths), ops.remap_cu_seqlens(cu, widths)


# === Spellings ================================================================================================


def repeated(ids: Tensor, cu: Tensor, features: Tensor, after: Tensor | None = None) -> Tensor:
    row = ids.repeat_interleave(widths_of(ids))
    x = EMBED(row).masked_scatter((row == IMAGE).unsqueeze(1), features.reshape(-1, D))
    return attend(x, cu if after is None else after)


def merged(ids: Tensor, cu: Tensor, features: Tensor, after: Tensor | None = None) -> Tensor:
    image = ids == IMAGE
    places = torch.cumsum(image * (WIDTH - 1) + 1, -1) - 1
    total = int(places[-1]) + 1
    text = torch.where(~image)[0]
    x = EMBED.weight.new_zeros(total, D)
    x[places[text]] = EMBED(ids[text])
    left = torch.ones(total, dtype=torch.bool)
    left[places[text]] = False
    x[left] = features.reshape(-1, D)
    return attend(x, cu if after is None else after)


def searched(ids: Tensor, cu: Tensor, features: Tensor, after: Tensor | None = None) -> Tensor:
    ends = widths_of(ids).cumsum(0)
    source = torch.searchsorted(ends, torch.arange(ends[-1].item()), right=True)
    return attend(EMBED(ids).index_select(0, source), cu if after is None else after)


def repeated_by_name(ids: Tensor, cu: Tensor, features: Tensor, after: Tensor | None = None) -> Tensor:
    row = torch.repeat_interleave(repeats=widths_of(ids), input=ids)
    return attend(EMBED(row), cu if after is None else after)


def positioned(ids: Tensor, cu: Tensor, features: Tensor, after: Tensor | None = None) -> Tensor:
    row = torch.repeat_interleave(ids, widths_of(ids))
    cu = cu if after is None else after
    at = torch.arange(row.shape[0])
    document = torch.bucketize(at, cu[1:], right=True).clamp(max=cu.shape[0] - 2)
    return row * 1000 + at - cu[document]


def rolled(ids: Tensor, cu: Tensor, features: Tensor, after: Tensor | None = None) -> Tensor:
    """Nothing but the declaration says where documents end."""
    row = torch.repeat_interleave(ids, widths_of(ids))
    if after is not None:
        return ops.packed_roll(row, after, -1, fill=-100)
    labels = torch.roll(row, -1)
    labels[-1] = -100
    return labels


Program = Callable[..., Tensor]


def declared(program: Program) -> Program:
    def run(ids: Tensor, cu: Tensor, features: Tensor) -> Tensor:
        return program(packpass.packed(ids, cu), cu, features)

    return run


def named(program: Program) -> Program:
    def run(input_ids: Tensor, cu_seqlens: Tensor, features: Tensor) -> Tensor:
        return program(input_ids, cu_seqlens, features)

    return run


def collected(program: Program, **options: Any) -> tuple[packpass.Report, Program]:
    report = packpass.Report()
    compiled = torch.compile(program, backend=packpass.backend, options={**OPTIONS, **options})

    def call(*args: Tensor) -> Tensor:
        with collecting(report):
            result: Tensor = compiled(*args)
        return result

    return report, call


CASES = [(declared, p) for p in (repeated, merged, searched, repeated_by_name, positioned, rolled)]
CASES += [(named, p) for p in (repeated, merged, searched, positioned)]


@pytest.mark.parametrize(("make", "program"), CASES, ids=[f"{m.__name__}-{p.__name__}" for m, p in CASES])
def test_boundaries_follow(make: Any, program: Program) -> None:
    report, call = collected(make(program))
    for ids, cu, features in batches():
        torch.testing.assert_close(call(ids, cu, features), program(ids, cu, features, expanded(ids, cu)[1]))
    assert {r.rule for r in report.rewrites} == {"pack_shifts" if program is rolled else "remap_boundaries"}
    assert not report.refusals
    assert report.graphs <= 3  # rows of one length, of any length, and no image


def test_gradients() -> None:
    def program(ids: Tensor, cu: Tensor, features: Tensor) -> Tensor:
        return repeated(packpass.packed(ids, cu), cu, features).square().sum()

    _, call = collected(program, **{"packpass.inner_backend": "aot_eager"})
    for ids, cu, features in batches():
        given = (EMBED.weight, features.requires_grad_())
        want = torch.autograd.grad(repeated(ids, cu, features, expanded(ids, cu)[1]).square().sum(), given)
        got = torch.autograd.grad(call(ids, cu, features), given)
        torch.testing.assert_close(got, want)


# === Left alone: as many graphs and results as in stock torch =====================================================


def ids_of_documents(input_ids: Tensor, cu_seqlens: Tensor, features: Tensor) -> Tensor:
    """It is documents that are repeated, by their lengths."""
    document = torch.repeat_interleave(torch.arange(cu_seqlens.shape[0] - 1), cu_seqlens.diff())
    return EMBED(input_ids) * document.unsqueeze(1)


def some_tokens(ids: Tensor, cu: Tensor, features: Tensor) -> Tensor:
    """Tokens are chosen, and none expands."""
    ids = packpass.packed(ids, cu)
    chosen = torch.nonzero(ids != IMAGE).squeeze(1)
    return EMBED(ids)[chosen].sum(0)


def counted(input_ids: Tensor, cu_seqlens: Tensor, features: Tensor) -> Tensor:
    """Models check that there are as many placeholders as features."""
    if (input_ids == IMAGE).sum().item() != features.shape[0]:
        raise ValueError("features do not fit")
    return attend(EMBED(input_ids), cu_seqlens)


def after_declared(ids: Tensor, cu: Tensor, features: Tensor) -> Tensor:
    """The boundaries count the expanded row."""
    row = ids.repeat_interleave(widths_of(ids))
    x = packpass.packed(EMBED(row), cu, dim=0)
    return attend(x, cu)


def remapped_by_hand(ids: Tensor, cu: Tensor, features: Tensor) -> Tensor:
    ids = packpass.packed(ids, cu)
    widths = widths_of(ids)
    return attend(EMBED(ids.repeat_interleave(widths)), nn.functional.pad(widths.cumsum(0), (1, 0))[cu.long()].int())


def branches_behind(ids: Tensor, cu: Tensor, features: Tensor) -> Tensor:
    """The graph ends behind the expansion all the same, in front of what takes the boundaries."""
    ids = packpass.packed(ids, cu)
    x = EMBED(ids.repeat_interleave(widths_of(ids)))
    if x.sum() > 1e9:
        x = x + 1
    return attend(x, cu)


LEFT = (ids_of_documents, some_tokens, counted, after_declared, remapped_by_hand, branches_behind)


@pytest.mark.parametrize("program", LEFT, ids=lambda f: f.__name__)
def test_left_alone(program: Program) -> None:
    report, call = collected(program)
    stock_graphs = 0

    def count(gm: Any, inputs: Any) -> Any:
        nonlocal stock_graphs
        stock_graphs += 1
        return gm.forward

    for ids, cu, features in batches():
        if program is after_declared:
            cu = expanded(ids, cu)[1]
        torch.testing.assert_close(call(ids, cu, features), program(ids, cu, features))
    torch._dynamo.reset()
    stock = torch.compile(program, backend=count)
    for ids, cu, features in batches():
        stock(ids, expanded(ids, cu)[1] if program is after_declared else cu, features)
    assert not report.rewrites
    assert report.graphs <= stock_graphs


@pytest.mark.parametrize("options", [{"packpass.disable": ["remap_boundaries"]}, {"packpass.fix_shifts": "off"}])
def test_switched_off(options: dict[str, Any]) -> None:
    report, call = collected(declared(repeated), **options)
    for ids, cu, features in batches():
        torch.testing.assert_close(call(ids, cu, features), repeated(ids, cu, features))
    assert not report.rewrites


def test_features_that_do_not_fit_are_eager_s_error() -> None:
    _, call = collected(declared(repeated))
    ids, cu, features = next(batches())
    with pytest.raises(RuntimeError):
        call(ids, cu, features[:1])
