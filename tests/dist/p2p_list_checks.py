"""What the ranks run for the programs of `p2p_lists`: each function raises, or returns figures, on every rank."""

from __future__ import annotations

import torch
import torch.distributed as dist

import packpass
from tests.dist import naive, p2p_lists, p2p_lists_leave
from tests.dist.cp_programs import check, executed, group_of, whole_row
from tests.dist.p2p_checks import OPTIONS, Recorder, stays


def lists(cp: int, name: str) -> list[tuple[int, int]]:
    """Exchanges per call and messages left for 2, 1, 5 and 3 documents, values as eager's. Where slots are cut out of
    the row, a document without slots is an error, unless it is the last one of the row."""
    torch._dynamo.reset()
    group, recorder, program = group_of(cp), Recorder(), p2p_lists.REWRITTEN[name]
    zigzag, of_row = name in p2p_lists.ZIGZAGS, name in p2p_lists.FROM_THE_ROW
    filled = of_row or name in p2p_lists.HALOS
    compiled = torch.compile(program, backend=recorder, options=OPTIONS)
    figures = []
    for seed, lengths in enumerate(([3, 5], [4], [3, 6, 3, 4, 7], [4, 3, 5] if filled else [4, 0, 3])):
        cu = torch.tensor([0, *((1 + zigzag) * cp * n for n in lengths)]).cumsum(0)
        whole = whole_row((int(cu[-1]), 3), torch.float64, seed)
        x = naive.shard(whole, cu.tolist(), cp, dist.get_rank(group), zigzag=zigzag)
        want = program(x, cu, group)
        got, exchanges = executed(group, lambda: compiled(x, cu, group))  # noqa: B023
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)
        figures.append((exchanges, recorder.count("p2p_")))
    if of_row:
        _without_slots(cp, name)
    return figures


def _without_slots(cp: int, name: str) -> None:
    group, program = group_of(cp), p2p_lists.REWRITTEN[name]
    compiled = torch.compile(program, backend=packpass.backend, options=OPTIONS)
    if name == "out_of_the_row":
        cu = torch.tensor([0, 3, 5, 5, 5]) * cp
        x = whole_row((5, 3), torch.float64, dist.get_rank(group))
        torch.testing.assert_close(compiled(x, cu, group), program(x, cu, group))
    try:
        compiled(torch.ones(7, 3, dtype=torch.float64), torch.tensor([0, 3, 3, 7]) * cp, group)
    except RuntimeError as error:
        check("without slots" in str(error), name, error)
    else:
        raise AssertionError(f"{name}: no error for a document whose slots are those of the next one")


def left(cp: int, name: str) -> None:
    """A program of `p2p_lists_leave`."""
    stays(cp, (p2p_lists_leave.LEFT | p2p_lists_leave.DIFFER)[name])
