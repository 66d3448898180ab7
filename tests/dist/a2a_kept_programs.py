"""Exchanges of documents that get a dimension where they are cut, and exchanges that functions finish which the loop
has put into a list. Each is ``f(x, cu, group)`` as in `a2a_hard_programs`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tests.dist.a2a_moves import gathered, size_of, unzigzag
from tests.dist.a2a_waited_programs import shares, started


def between_lists(x: Tensor, scatter: int, gather: int, group: Any, later: bool = False) -> Any:
    """As in verl: what is received, or a function that waits for it."""
    cp = size_of(group)
    sent = [part.contiguous() for part in torch.tensor_split(x, cp, scatter)]
    received = [torch.empty_like(sent[0]) for _ in range(cp)]
    work = dist.all_to_all(received, sent, group=group, async_op=later)
    if later:

        def wait() -> Tensor:
            work.wait()
            return torch.cat(received, dim=gather).contiguous()

        return wait
    return torch.cat(received, dim=gather).contiguous()


class Between(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, group: Any, x: Tensor, scatter: int, gather: int) -> Tensor:
        ctx.group, ctx.scatter, ctx.gather = group, scatter, gather
        return between_lists(x, scatter, gather, group)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor, None, None]:
        return None, between_lists(grads[0], ctx.gather, ctx.scatter, ctx.group), None, None


class BetweenWrong(Between):
    """The backward exchanges nothing."""

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor, None, None]:
        return None, grads[0].flip(0), None, None


# === Rewritten ==================================================================================================


def batch_in_front(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    cp, rows = size_of(group), []
    for start, stop in shares(cu, cp):
        document = Between.apply(group, x[None, start:stop], 2, 1)
        rows.append(unzigzag(document, cp, 1).squeeze(0))
    return torch.cat(rows)


def batch_behind(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    cp, rows = size_of(group), []
    for start, stop in shares(cu, cp):
        rows.append(unzigzag(Between.apply(group, x[start:stop, None], 2, 0), cp)[:, 0])
    return torch.cat(rows)


def heads_with_batch(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """Heads come back, along dimensions that are counted with the batch."""
    cp, rows = size_of(group), []
    for i in range(len(cu) - 1):
        chunks = x[None, cu[i] : cu[i + 1]].chunk(2 * cp, 1)
        mine = torch.cat([chunks[k] for r in range(cp) for k in (r, 2 * cp - 1 - r)], 1)
        rows.append(Between.apply(group, mine, 1, 2).squeeze(0))
    return torch.cat(rows)


def called_behind(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """A function for each document, with a list that it keeps."""
    cp, waits = size_of(group), []
    for start, stop in shares(cu, cp):
        waits.append(between_lists(x[start:stop], 1, 0, group, later=True))
    return torch.cat([unzigzag(wait(), cp) for wait in waits])


def lambdas(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """Waits in one list and results in another."""
    cp, waits, parts = size_of(group), [], []
    for start, stop in shares(cu, cp):
        received, work = started(x[start:stop], group)
        waits.append(lambda work=work: work.wait())
        parts.append(received)
    for wait in waits:
        wait()
    return torch.cat([unzigzag(received.flatten(0, 1), cp) for received in parts])


def bound_methods(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    cp, waits, parts = size_of(group), [], []
    for start, stop in shares(cu, cp):
        received, work = started(x[start:stop], group)
        waits.append(work.wait)
        parts.append(received)
    for wait in waits:
        wait()
    return torch.cat([unzigzag(received.flatten(0, 1), cp) for received in parts])


def _finished(work: Any, received: Tensor, cp: int, scale: float = 1.0) -> Tensor:
    work.wait()
    return unzigzag(received.flatten(0, 1), cp) * scale


def partials(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    cp, waits = size_of(group), []
    for start, stop in shares(cu, cp):
        received, work = started(x[start:stop], group)
        waits.append(functools.partial(_finished, work, received, cp, scale=2.0))
    return torch.cat([wait() for wait in waits])


def shared_variable_changes(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """What all functions share is read when they are called."""
    cp, waits, scale = size_of(group), [], 2.0
    for start, stop in shares(cu, cp):
        received, work = started(x[start:stop], group)

        def wait(received: Tensor = received, work: Any = work) -> Tensor:
            return _finished(work, received, cp, scale)

        waits.append(wait)
    scale = 3.0
    return torch.cat([wait() for wait in waits])


def functions_in_rows(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """A function beside what it is called with, and with a gradient."""
    cp, rows = size_of(group), []
    for start, stop in shares(cu, cp):
        rows.append((gathered(x[start:stop], group), lambda t, n=stop - start: t * n))
    return torch.cat([scaled(document) for document, scaled in rows])


# === Left alone =================================================================================================


def _with(start: Callable[..., Callable[[], Tensor]]) -> Callable[..., Tensor]:
    def program(x: Tensor, cu: Tensor, group: Any) -> Tensor:
        cp, waits = size_of(group), []
        for begin, stop in shares(cu, cp):
            waits.append(start(x[begin:stop], group))
        for wait in waits:
            wait()
        return torch.cat([unzigzag(wait(), cp) for wait in waits])

    program.__name__ = start.__name__.strip("_")
    return program


def _counts_its_calls(document: Tensor, group: Any) -> Callable[[], Tensor]:
    received, work = started(document, group)
    calls = 0

    def wait() -> Tensor:
        nonlocal calls
        calls += 1
        work.wait()
        return received.flatten(0, 1) * calls

    return wait


def _grows_its_list(document: Tensor, group: Any) -> Callable[[], Tensor]:
    received, work = started(document, group)
    got = [received.flatten(0, 1)]

    def wait() -> Tensor:
        work.wait()
        got.append(got[-1] * 2)
        return got[-1]

    return wait


counts_its_calls, grows_its_list = _with(_counts_its_calls), _with(_grows_its_list)


def last_document_for_all(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """The loop's own variable, which holds the last document when the functions are called."""
    cp, waits = size_of(group), []
    for start, stop in shares(cu, cp):
        received, work = started(x[start:stop], group)
        work.wait()
        waits.append(lambda: unzigzag(received.flatten(0, 1), cp))  # noqa: B023
    return torch.cat([wait() for wait in waits])


def wrong_way_with_batch(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """The backward is not the way back."""
    cp, rows = size_of(group), []
    for start, stop in shares(cu, cp):
        document = BetweenWrong.apply(group, x[None, start:stop], 2, 1)
        rows.append(unzigzag(document, cp, 1).squeeze(0))
    return torch.cat(rows)


def written_with_batch(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    cp, rows, x = size_of(group), [], x.clone()
    for start, stop in shares(cu, cp):
        document = x[None, start:stop]
        document.mul_(2)
        rows.append(unzigzag(Between.apply(group, document, 2, 1), cp, 1).squeeze(0))
    return torch.cat(rows) + x.sum()
