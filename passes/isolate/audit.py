"""The last word: does any document of the example see another in the rewritten graph?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

Run = Callable[[Sequence[Any]], Sequence[Any]]


def audit_graph(
    run: Run, inputs: Sequence[Any], given: dict[int, int], returned: dict[int, int], cu_seqlens: Tensor, most: int = 3
) -> list[tuple[int, int, int]]:
    """Change one document of the inputs, and look at what the others return.

    Args:
        run: the graph, eagerly.
        given, returned: packed dimension of the inputs and results that are rows, by their number.
        most: documents that are changed.

    Returns:
        ``(result, changed document, first other document that it reaches)``, empty if none does.
    """
    spans = [(a, b) for a, b in pairwise([0, *cu_seqlens.tolist()]) if b > a]
    if len(spans) < 2 or not given or not returned:
        return []
    devices = range(torch.cuda.device_count())
    with torch.no_grad(), torch.random.fork_rng(devices=devices):
        torch.manual_seed(0)
        before = run(_copies(inputs))
    leaks = []
    for changed in range(min(most, len(spans))):
        with torch.no_grad(), torch.random.fork_rng(devices=devices):
            other = _copies(inputs)
            for i, dim in given.items():
                _change(other[i].narrow(dim, spans[changed][0], spans[changed][1] - spans[changed][0]), inputs[i])
            torch.manual_seed(0)
            after = run(other)
        for j, dim in returned.items():
            for d, (start, stop) in enumerate(spans):
                if d != changed and _differs(*(x[j].narrow(dim, start, stop - start) for x in (before, after))):
                    leaks.append((j, changed, d))
                    break
    return leaks


def _copies(inputs: Sequence[Any]) -> list[Any]:
    return [x.detach().clone() if isinstance(x, Tensor) else x for x in inputs]


def _change(part: Tensor, whole: Tensor) -> None:
    """Other numbers of the same range: tokens of the row in another order, shifted numbers."""
    if part.dtype.is_floating_point:
        part.add_(
            torch.randn(part.shape, device=part.device).to(part.dtype) * (whole.std() if whole.numel() > 1 else 1)
        )
    elif part.dtype is not torch.bool and part.numel():
        pool = whole.flatten()
        part.copy_(pool[torch.randint(len(pool), part.shape, device=part.device)])


def _differs(a: Tensor, b: Tensor) -> bool:
    if not a.dtype.is_floating_point:
        return not torch.equal(a, b)
    bound = {torch.float64: 1e-10, torch.float32: 1e-5}.get(a.dtype, 2e-2)
    return (
        bool(((a - b).abs().nan_to_num() > bound * (1e-3 + a.abs().nan_to_num().max())).any()) if a.numel() else False
    )
