"""The same programs in other surroundings: bad boundaries, grad modes, dynamic settings, tiny rows, aliased results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import packpass

from .compiling import compiled, fresh, hold_against_eager
from .harness import COUNTED, Program, Shape, build, compare, outcome
from .programs_leave import PROGRAMS as LEAVE
from .programs_rewrite import PROGRAMS

# Programs over one row [2, T] or [T] with boundaries as the second argument, each with another kind of write.
PLAIN = [
    "range_len", "range_numel", "list_pairs", "in_place_slice", "into_new_full", "positions", "roll_beyond_documents",
    "shift_by_cat", "loss_mask_last_token", "write_at_the_end_slot", "coverage_by_fill", "into_zeros_added",
]  # fmt: skip

BAD: dict[str, Callable[[Tensor, int], Tensor]] = {
    "decreasing": lambda cu, t: torch.cat((cu[:2], (cu[1:2] - 2).clamp(min=0), cu[3:])),
    "all_decreasing": lambda cu, t: cu.flip(0),
    "beyond_the_row": lambda cu, t: torch.cat((cu[:-1], cu[-1:] + t)),
    "start_below_zero": lambda cu, t: torch.cat((cu[:1] - 3, cu[1:])),
    "all_beyond": lambda cu, t: cu + t,
    "overlap_by_one": lambda cu, t: torch.cat((cu[:1], cu[2:3], cu[1:2], cu[3:])),
}


@pytest.mark.parametrize("inner", ["eager", pytest.param("aot_eager", marks=pytest.mark.slow)])
@pytest.mark.parametrize("bad", list(BAD))
@pytest.mark.parametrize("name", PLAIN)
def test_bad_boundaries_are_eager_or_an_error(name: str, bad: str, inner: str) -> None:
    """Boundaries that break the contract give eager's result or an error that names them, never another result."""
    fresh()
    prog = PROGRAMS[name]
    fn = compiled(prog, inner)
    outcome(fn, build(prog, COUNTED[0]))
    call, same_call = build(prog, COUNTED[0]), build(prog, COUNTED[0])
    for each in (call, same_call):
        cu = each.args[-1]
        cu.copy_(BAD[bad](cu, COUNTED[0].total))
    try:
        want = outcome(prog.instance(), same_call)
    except (RuntimeError, IndexError):
        with pytest.raises(Exception):  # noqa: PT011, B017
            outcome(fn, call)
        return
    try:
        got = outcome(fn, call)
    except (RuntimeError, ValueError, IndexError) as error:
        text = str(error)
        if "cu_seqlens" not in text and "boundar" not in text:
            raise
        return
    compare(want, got, prog.exact)


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("keywords", [{"dynamic": True}, {"dynamic": False}, {"fullgraph": True}], ids=str)
def test_compile_keywords(name: str, keywords: dict[str, Any]) -> None:
    fresh()
    prog = PROGRAMS[name]
    fn = torch.compile(
        prog.instance(), backend=packpass.backend, options={"packpass.inner_backend": "eager"}, **keywords
    )
    hold_against_eager(prog, fn, prog.inputs()[:6])


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode], ids=lambda m: m.__name__)
def test_grad_modes(name: str, mode: Callable[[], Any]) -> None:
    fresh()
    prog = PROGRAMS[name]
    with mode():
        hold_against_eager(prog, compiled(prog), prog.inputs()[:6], grad=False)


@pytest.mark.parametrize("name", [n for n in PLAIN if n not in ("roll_beyond_documents", "into_zeros_added")])
def test_grad_modes_alternate(name: str) -> None:
    """One compiled function called with and without gradients, in turn."""
    fresh()
    prog = PROGRAMS[name]
    fn = compiled(prog)
    for shape in prog.inputs()[:4]:
        hold_against_eager(prog, fn, [shape], grad=True)
        hold_against_eager(prog, fn, [shape], grad=False)
        with torch.no_grad():
            hold_against_eager(prog, fn, [shape], grad=False)


@pytest.mark.parametrize("name", PLAIN)
def test_tiny_rows(name: str) -> None:
    """Rows of no, one and two tokens, before and after an ordinary one."""
    fresh()
    prog = PROGRAMS[name]
    tiny = [Shape(1, 1, "ones"), Shape(2, 2, "ones"), Shape(0, 1, "no_documents")]
    if name != "write_at_the_end_slot":  # an empty row has no slot to write
        tiny.append(Shape(0, 0, "no_documents"))
    hold_against_eager(prog, compiled(prog), [tiny[0], COUNTED[0], *tiny, COUNTED[1]])


@pytest.mark.parametrize("name", PLAIN)
def test_same_size_other_boundaries(name: str) -> None:
    """Nothing about the values of the boundaries is remembered between calls of one size."""
    fresh()
    prog = PROGRAMS[name]
    fn = compiled(prog)
    for seed in range(5):
        shape = Shape(6, 40, ("plain", "tail", "inner_empty", "gap")[seed % 4])
        want = outcome(prog.instance(), build(prog, shape, seed))
        compare(want, outcome(fn, build(prog, shape, seed)), prog.exact)


@pytest.mark.parametrize("name", ["range_len", "in_place_slice", "three_fields", "append_then_cat", "positions"])
def test_without_symbolic_loops(name: str) -> None:
    fresh()
    prog = PROGRAMS[name]
    fn = compiled(prog, **{"packpass.symbolic_loops": False})
    hold_against_eager(prog, fn, prog.inputs())


@pytest.mark.parametrize("name", ["range_len", "in_place_slice", "three_fields", "append_then_cat", "positions"])
def test_with_the_pass_disabled(name: str) -> None:
    fresh()
    prog = PROGRAMS[name]
    fn = compiled(prog, **{"packpass.disable": ["vectorize_segments"]})
    hold_against_eager(prog, fn, prog.inputs())


@pytest.mark.parametrize("name", ["range_len", "in_place_slice", "bfloat16_hidden", "chain_of_three", "shift_by_cat"])
def test_verified(name: str) -> None:
    """``packpass.verify`` finds nothing to complain about, and changes no result."""
    fresh()
    prog = PROGRAMS[name]
    hold_against_eager(prog, compiled(prog, **{"packpass.verify": True}), prog.inputs())


def _two_calls(fn: Callable[..., Any], prog: Program, shape: Shape) -> tuple[Any, Any]:
    return fn(*build(prog, shape, 1).args), fn(*build(prog, shape, 2).args)


@pytest.mark.parametrize("name", ["range_len", "stacked_outputs", "positions", "coverage_by_fill"])
def test_results_of_two_calls_are_separate(name: str) -> None:
    fresh()
    prog = PROGRAMS[name]
    first, second = _two_calls(compiled(prog), prog, COUNTED[1])
    want, _ = _two_calls(prog.instance(), prog, COUNTED[1])
    second.detach().zero_()
    assert torch.equal(first, want)


@pytest.mark.parametrize("name", ["index_is_ten", "break_at_third", "at_most_three_documents", "count_is_an_argument"])
def test_induction_over_few_documents_is_not_enough(name: str) -> None:
    """Programs that differ only from the fourth or eleventh document on, compiled at one to three documents first."""
    fresh()
    prog = LEAVE[name]
    sizes = [Shape(n, 8 * n, "plain") for n in (1, 2, 3, 4, 11, 12, 30)]
    hold_against_eager(prog, compiled(prog), sizes)
