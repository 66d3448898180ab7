"""What the ranks run for test_each.py."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import packpass
from packpass.decisions.records import collecting
from packpass.reports.report import Report
from tests.dist import each_programs
from tests.dist.cp_programs import check, executed, group_of
from tests.dist.loop_ranks import boundaries


def _batch(cp: int, count: int) -> tuple[Tensor, Tensor]:
    cu = boundaries(cp, count, seed=count, parts=1)
    torch.manual_seed(dist.get_rank() + count)
    return torch.randint(-8, 9, (int(cu[-1]) // cp, 4 * cp)).float().requires_grad_(), cu


def rewritten(cp: int, name: str, inner: str) -> None:
    """Eager's results and gradients for 3, 1 and 4 documents, with one message for each collective of the body."""
    case, group = each_programs.REWRITTEN[name], group_of(cp)
    torch._dynamo.reset()

    def program(x: Tensor, cu: Tensor) -> Tensor:
        return case.program(x, cu, group)

    program.__code__ = program.__code__.replace(co_name=name)  # ranks remember what they agreed on by the function
    options: Any = {"packpass.inner_backend": inner}
    compiled, report = torch.compile(program, backend=packpass.backend, options=options), Report()
    with collecting(report):
        for count in (3, 1, 4):
            x, cu = _batch(cp, count)
            y, sent = executed(group, lambda: compiled(x, cu))  # noqa: B023
            wanted = case.program(x, cu, group)
            torch.testing.assert_close(y, wanted)
            check(sent == case.exchanges, name, count, "collectives forward", sent)
            if wanted.requires_grad:
                weights = torch.randn(y.shape)
                (grad,), back = executed(group, lambda: torch.autograd.grad(y, x, weights))  # noqa: B023
                (by_hand,) = torch.autograd.grad(wanted, x, weights)
                torch.testing.assert_close(grad, by_hand)
                check(back == (case.exchanges if case.differentiable else 0), name, count, "backward", back)
    check(not report.refusals, name, report.refusals)


def left(cp: int, name: str) -> list[str]:
    """Eager's results of a program that is not rewritten, and the codes of the refusals."""
    case, group = each_programs.LEFT[name], group_of(cp)
    torch._dynamo.reset()

    def program(x: Tensor, cu: Tensor) -> Tensor:
        return case(x, cu, group)

    program.__code__ = program.__code__.replace(co_name=name)
    options: Any = {"packpass.inner_backend": "eager"}
    compiled, report = torch.compile(program, backend=packpass.backend, options=options), Report()
    with collecting(report):
        for count in (3, 4):
            x, cu = _batch(cp, count)
            torch.testing.assert_close(compiled(x, cu), case(x, cu, group))
    check(not [r for r in report.rewrites if r.claims.agreement], name, "is rewritten")
    return [refusal.code for refusal in report.refusals]
