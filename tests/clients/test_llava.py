"""A LLaVA-like model, packed, with the boundaries of its data loader: against every document alone."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

import packpass
from perf.models import llava

CONFIG = llava.Config()
SMALL = llava.Config(layers=1, vision_layers=1)


def model(config: llava.Config = CONFIG) -> llava.Llava:
    torch.manual_seed(0)
    return llava.Llava(config)


@pytest.fixture(scope="module")
def compiled() -> Any:
    torch._dynamo.reset()
    options: dict[str, Any] = {"packpass.inner_backend": "aot_eager"}
    module = model()
    return module, torch.compile(module, backend=packpass.backend, fullgraph=True, options=options)


@torch.no_grad()
@pytest.mark.parametrize("count", [4, 16, 1])
def test_token_mult_prob_error(compiled: Any, count: int) -> None:
    """Stale boundaries change probabilities by ten percent; remapped ones by nothing."""
    module, packed = compiled
    documents = llava.samples(count, CONFIG, seed=count)
    arguments, alone = llava.batch(documents), llava.reference(module, documents, CONFIG)
    out = packed(*arguments)
    assert llava.token_mult_prob_error(module(*arguments), alone) > 1.05
    assert llava.token_mult_prob_error(out, alone) <= 1.0001
    assert int(out.tokens) == sum(int(o.tokens) for o in alone)
    assert torch.equal(out.counts, torch.cat([o.counts for o in alone]))


@torch.no_grad()
def test_boundaries_of_the_expanded_row_stay(compiled: Any) -> None:
    """Another data loader counts what images become."""
    module, packed = compiled
    documents = llava.samples(4, CONFIG, seed=4)
    right = llava.expanded_boundaries(documents, CONFIG)
    out = packed(*llava.batch(documents)[:3], right)
    assert llava.token_mult_prob_error(out, llava.reference(module, documents, CONFIG)) <= 1.0001


def test_report() -> None:
    torch._dynamo.reset()
    arguments = llava.batch(llava.samples(4, CONFIG))
    report = packpass.explain(model(), fullgraph=True, options={"packpass.inner_backend": "eager"})(*arguments)
    assert [rewrite.rule for rewrite in report.rewrites] == ["remap_boundaries", "pack_shifts"]
    assert report.refusals == []
    assert report.graphs == 1
    (remap, shift) = report.rewrites
    assert remap.details["evidence"] == "input"
    assert len(remap.details["uses"]) == 2  # positions and attention
    assert shift.details["boundaries"] != "cu_seqlens"


@pytest.mark.slow
def test_training() -> None:
    """Some steps on changing batches: losses and weights of every document alone, in two graphs."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    packed = model(SMALL)
    alone = copy.deepcopy(packed)
    run = torch.compile(packed, backend=packpass.backend, fullgraph=True)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (packed, alone)]
    for step, count in enumerate((4, 9, 6, 5)):
        documents = llava.samples(count, SMALL, seed=step)
        out, expected = run(*llava.batch(documents)), llava.reference(alone, documents, SMALL)
        losses = out.loss / out.tokens, sum(o.loss for o in expected) / sum(o.tokens for o in expected)
        torch.testing.assert_close(*losses, rtol=1e-5, atol=1e-5)
        for loss, optimizer in zip(losses, optimizers, strict=True):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    for (name, a), b in zip(packed.named_parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5, msg=name)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 2


def test_images_that_are_missing(compiled: Any) -> None:
    _, packed = compiled
    ids, pixels, tiles, cu_seqlens = llava.batch(llava.samples(4, CONFIG, seed=4))
    with pytest.raises(RuntimeError, match="the placeholders do not match the images"):
        packed(ids, pixels[:-1], tiles, cu_seqlens)
