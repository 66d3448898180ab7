"""What the ranks run for test_agreement.py."""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import Tensor

import packpass
from packpass.ops import cp_packed_roll, cp_to_hp, hp_to_cp
from packpass.ranks.meeting import Board
from tests.dist import naive, p2p_leave, p2p_programs
from tests.dist.cp_programs import check, documents, executed, whole_row

QUICK = {"packpass.inner_backend": "eager", "packpass.agreement_timeout": 30.0}


def compiled(
    function: Callable[..., Any], *, dynamic: bool | None = None, fullgraph: bool = True, **options: Any
) -> Callable[..., Any]:
    torch._dynamo.reset()
    given = {**QUICK, **{f"packpass.{name}": value for name, value in options.items()}}
    return torch.compile(function, backend=packpass.backend, fullgraph=fullgraph, dynamic=dynamic, options=given)


def forth_and_back(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    y = cp_to_hp(x, cu, group)
    return hp_to_cp(y * 2, cu, group)


def forth_twice(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    y = cp_to_hp(x, cu, group)
    return cp_to_hp(x * y.mean(), cu, group)


def other_sections(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    half = x.shape[-1] // 2
    y = cp_to_hp(x, cu, group, [half, half])
    return hp_to_cp(y * 2, cu, group)


def forth(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    return cp_to_hp(x, cu, group)


def rolled(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    return cp_packed_roll(x, cu, group, -1, 0)


def as_written(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """Collectives that packpass leaves alone."""
    whole = torch.empty(x.shape[0] * group.size(), x.shape[1])
    dist.all_gather_into_tensor(whole, x, group=group)
    return whole


def new_group(cp: int) -> Any:
    """This rank's group of ``cp``, with a store in which nobody has agreed on anything."""
    ranks = range(dist.get_world_size())
    groups = [dist.new_group(list(ranks[i : i + cp])) for i in ranks[::cp]]
    return groups[dist.get_rank() // cp]


def shard(group: Any, number: int = 4, seed: int = 0) -> tuple[Tensor, Tensor]:
    """A shard and its boundaries."""
    cp = group.size()
    cu, total = documents(cp, number, seed=seed, tail=2)
    x = naive.shard(whole_row((total, 4 * cp), torch.float32, seed), cu.tolist(), cp, dist.get_rank(group))
    return x, cu


def said(call: Callable[[], Any]) -> str:
    """What the ranks hear instead of a result."""
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def store_calls(call: Callable[[], Any]) -> int:
    """How often the group's store is asked during a call."""
    with mock.patch.object(Board, "_ask", autospec=True, side_effect=Board._ask) as ask:
        call()
    return ask.call_count


# === Ranks that agree ===========================================================================================


def agree(cp: int, backend: str) -> dict[str, Any]:
    """Right results, the collectives of the ops and no others, and no question to the store after the first call."""
    group = new_group(cp)
    call = compiled(forth_and_back, dynamic=True, inner_backend=backend)
    asked, ran = [], []
    for i in range(3):
        x, cu = shard(group, number=3 + i, seed=i)
        leaf = x.clone().requires_grad_()

        def step() -> None:
            result, forward = executed(group, lambda: call(leaf, cu, group))  # noqa: B023
            check(torch.equal(result.detach(), 2 * x), "result")  # noqa: B023
            grads, backward = executed(group, lambda: torch.autograd.grad(result.sum(), leaf))  # noqa: B023
            check(torch.equal(grads[0], torch.full_like(x, 2)), "gradient")  # noqa: B023
            ran.append((forward, backward))

        asked.append(store_calls(step))
    return {"asked": asked, "ran": ran}


def off() -> int:
    """Questions to the store without the check."""
    group = new_group(2)
    x, cu = shard(group)
    return store_calls(lambda: compiled(forth_and_back, agreement=False)(x, cu, group))


def one_rank_compiles_again(cp: int) -> bool:
    """A local input of another dtype makes rank 0 compile an equal graph again: it waits for nobody."""

    def program(x: Tensor, cu: Tensor, group: Any, local: Tensor) -> tuple[Tensor, Tensor]:
        return forth_and_back(x, cu, group), local + 1

    call = compiled(program)
    group = new_group(cp)
    x, cu = shard(group)
    call(x, cu, group, torch.ones(2))
    own = torch.ones(2, dtype=torch.float64 if dist.get_rank(group) == 0 else torch.float32)
    asked = store_calls(lambda: call(x, cu, group, own))
    return asked > 0


def static_here_symbolic_there(cp: int) -> str:
    group = new_group(cp)
    x, cu = shard(group)
    call = compiled(forth_and_back, dynamic=dist.get_rank(group) == 0)
    return said(lambda: check(torch.equal(call(x, cu, group), 2 * x), "result"))


def two_groups() -> str:
    """All four ranks, and two groups of two, in one graph."""
    small, large = new_group(2), new_group(4)
    (x, cu), (y, boundaries) = shard(small), shard(large)

    def program(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return forth_and_back(x, cu, small), forth_and_back(y, boundaries, large)

    call = compiled(program)
    return said(lambda: check(torch.equal(call(x, y)[1], 2 * y), "result"))


# === Ranks that do not ==========================================================================================


def mismatch(cp: int, programs: list[Callable[..., Any]]) -> dict[str, Any]:
    """Rank r compiles the r-th program. Afterwards all do the same, in the same group."""
    group = new_group(cp)
    x, cu = shard(group)
    call = compiled(programs[dist.get_rank(group)])
    message, ran = executed(group, lambda: said(lambda: call(x, cu, group)))
    again = said(lambda: compiled(rolled)(x, cu, group))
    return {"message": message, "ran": ran, "again": again}


def mismatch_later() -> str:
    """Both ranks have run a program; then rank 0 compiles it again, and rank 1 another one."""
    group = new_group(2)
    x, cu = shard(group)
    compiled(forth_and_back)(x, cu, group)
    if dist.get_rank(group) == 0:
        time.sleep(0.5)
        return said(lambda: compiled(forth_and_back)(x, cu, group))
    return said(lambda: compiled(forth_twice)(x, cu, group))


def other_options(disable: list[str]) -> str:
    """Rank 1 must not put exchanges together, rank 0 does."""
    groups = [dist.new_group([i, i + 1], timeout=datetime.timedelta(seconds=50)) for i in (0, 2)]
    group: Any = groups[dist.get_rank() // 2]

    def exchanges(x: Tensor) -> Tensor:
        parts = x.split(2, 1)
        return torch.cat([functional.all_to_all_single(part.contiguous(), None, None, group) for part in parts], 1)

    options: dict[str, Any] = {"disable": disable} if dist.get_rank(group) == 1 else {}
    return said(lambda: compiled(exchanges, agreement_timeout=8.0, **options)(torch.ones(4, 6)))


def mismatch_of_gradients() -> str:
    """Rank 1 trains and rank 0 does not: the backward of rank 1 would wait."""
    group = new_group(2)
    x, cu = shard(group)
    call = compiled(forth_and_back)
    return said(lambda: call(x.requires_grad_(dist.get_rank(group) == 1), cu, group))


def absent(cp: int, timeout: float, last: Callable[..., Any] | None) -> str:
    """The last rank of the group stops, after ``last`` on all ranks."""
    group = new_group(cp)
    x, cu = shard(group)
    if last is not None:
        compiled(last)(x, cu, group)
    if dist.get_rank(group) == cp - 1:
        time.sleep(timeout + 1)
        return ""
    return said(lambda: compiled(forth_and_back, agreement_timeout=timeout)(x, cu, group))


def sizes_differ(cp: int) -> str:
    """Rank 0 brings a shard of another length."""
    group = new_group(cp)
    x, cu = shard(group)
    if dist.get_rank(group) == 0:
        x = torch.cat([x, x[:2]])
    return said(lambda: compiled(forth_and_back, dynamic=True)(x, cu, group))


def boundaries_differ(cp: int, verify: bool) -> list[str]:
    """Boundaries of other contents but the same number on rank 1: in the first call, or (verify) in the third."""
    group = new_group(cp)
    good = torch.tensor([0, 2 * cp, 6 * cp], dtype=torch.int32)
    bad = torch.tensor([0, 4 * cp, 6 * cp], dtype=torch.int32)
    x = torch.arange(6.0 * 4 * cp).view(6, 4 * cp)
    other = bad if dist.get_rank(group) == 1 else good
    call = compiled(forth_and_back, verify=verify)
    calls = [good, good, other, good] if verify else [other]
    return [said(lambda: call(x, cu, group)) for cu in calls]  # noqa: B023


# === Loops of messages ==========================================================================================


def two_rolls(x: Tensor, cu: Tensor, group: Any) -> tuple[Tensor, Tensor]:
    return p2p_programs.requests(x, cu, group), p2p_programs.requests(x + 1, cu, group)


def one_roll(x: Tensor, cu: Tensor, group: Any) -> tuple[Tensor, Tensor]:
    return p2p_programs.requests(x, cu, group), x + 1


def a_roll_and_no_roll(x: Tensor, cu: Tensor, group: Any) -> tuple[Tensor, Tensor]:
    """The second loop sends the wrong ends: the graph ends in front of it."""
    return p2p_programs.requests(x, cu, group), p2p_leave.last_tokens(x + 1, cu, group)


def messages(programs: list[Callable[..., Any]], options: list[dict[str, Any]], eager: int = -1) -> dict[str, Any]:
    """Rank r of a group of two runs the r-th program with the r-th options; rank ``eager`` without packpass."""
    groups = [dist.new_group([i, i + 1], timeout=datetime.timedelta(seconds=45)) for i in (0, 2)]
    group: Any = groups[dist.get_rank() // 2]
    rank = dist.get_rank(group)
    cu = torch.tensor([0, 8, 24, 28, 40], dtype=torch.int32)
    x = naive.shard(whole_row((40,), torch.float32, 0), cu.tolist(), 2, rank)
    program = programs[rank]
    call = program if rank == eager else compiled(program, fullgraph=False, **options[rank])
    found: list[Any] = []
    started = time.monotonic()
    message = said(lambda: found.append(call(x, cu, group)))
    seconds = time.monotonic() - started
    right = None
    if message == "no error":
        expected = program(x, cu, group)
        right = all(torch.equal(a, b) for a, b in zip(found[0], expected, strict=True))
    return {"message": message, "seconds": seconds, "right": right}


# === Ranks that die =============================================================================================


def die_before(cp: int, timeout: float) -> None:
    group = new_group(cp)
    x, cu = shard(group)
    if dist.get_rank(group) == 1:
        os._exit(3)
    compiled(forth_and_back, agreement_timeout=timeout)(x, cu, group)


def die_in_a_step(cp: int, how: str, seconds: float) -> None:
    """After a good step, rank 1 dies or stops between forward and backward."""
    group = dist.new_group(list(range(cp)), timeout=datetime.timedelta(seconds=seconds))
    x, cu = shard(group)
    call = compiled(forth_and_back, inner_backend="aot_eager")
    leaf = x.requires_grad_()
    call(leaf, cu, group).sum().backward()
    loss = call(leaf, cu, group).sum()
    if dist.get_rank(group) == 1:
        if how == "dies":
            os._exit(3)
        time.sleep(4 * seconds)
    loss.backward()


class Checked(torch.autograd.Function):
    """The same values; gradients must be below a limit."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, limit: Tensor) -> Tensor:
        ctx.save_for_backward(limit)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (limit,) = ctx.saved_tensors
        torch._assert_async((grad < limit).all(), "gradients are too large")
        return grad.clone(), None


def raises(direction: str, timeout: float) -> dict[str, Any]:
    """After a good step, rank 1 raises in its second; then it waits until the others must have heard of it."""
    group: Any = dist.new_group(list(range(dist.get_world_size())), timeout=datetime.timedelta(seconds=100))
    x, cu = shard(group)

    def checked(x: Tensor, cu: Tensor, group: Any, values: Tensor, gradients: Tensor) -> Tensor:
        torch._assert_async((x < values).all(), "values are too large")
        return Checked.apply(forth_and_back(x, cu, group), gradients)  # type: ignore[no-any-return]

    call = compiled(checked, inner_backend="aot_eager", agreement_timeout=timeout)
    leaf, high, low = x.requires_grad_(), torch.tensor(1e9), torch.tensor(-1e9)

    def step(limits: dict[str, Tensor]) -> None:
        loss = call(leaf, cu, group, limits.get("values", high), limits.get("gradients", high)).sum()
        if direction == "gradients" or not limits:
            loss.backward()

    step({})
    fails = dist.get_rank() == 1
    started = time.monotonic()
    heard = said(lambda: step({direction: low} if fails else {}))
    seconds = time.monotonic() - started
    if fails:
        time.sleep(timeout + 8)
    return {"heard": heard, "seconds": seconds, "later": said(lambda: step({})) if fails else ""}


# === Bad input, compiled ========================================================================================


def bad_input(cp: int, backend: str) -> dict[str, str]:
    """Lengths and sections that do not divide, on all ranks alike."""
    group = new_group(cp)
    x = torch.ones(6, 4 * cp)
    odd = torch.tensor([0, 2 * cp, 2 * cp + 3 * cp])
    functions = {"cp_to_hp": forth, "cp_packed_roll": rolled}
    heard = {name: said(lambda: compiled(f, inner_backend=backend)(x, odd, group)) for name, f in functions.items()}  # noqa: B023
    good = torch.tensor([0, 2 * cp, 4 * cp])

    def uneven(x: Tensor, cu: Tensor, group: Any) -> Tensor:
        return cp_to_hp(x, cu, group, [cp + 1, 3 * cp - 1])

    # Dynamo runs into the error while it traces, leaves the frame to eager and raises there.
    heard["sections"] = said(lambda: compiled(uneven, fullgraph=False, inner_backend=backend)(x, good, group))
    heard["afterwards"] = said(lambda: compiled(forth, inner_backend=backend)(x, good, group))
    return heard
