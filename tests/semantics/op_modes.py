"""The samples of `op_samples` where other passes meet them: behind a declared shift, and inside a padded model. ::

    def shift(cu, t0, t1):                                  def padded(x, mask, t1):
        r = op(packpass.packed(t0, cu, 0), t1, 2)               h = attend(x, mask)
        return (shift(r, 1),)                                   r = op(h, t1, 2)
                                                                return attend(h + 0.1 * tokens(r), mask)

A shift is right if it is eager's, or if documents are kept apart along a dimension in which every slot depends on its
own slot of the row alone (each slot is exchanged and the difference looked at). A padded model is right if every real
token, and every gradient of one, is eager's.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import packpass
from packpass.decisions.records import collecting
from packpass.reports.report import Report
from tests.sources import defined

from .op_outcomes import UNINITIALISED, Outcome, difference, only_rounding, outcome
from .op_samples import TOTAL, LeftOut, OpProgram, _leaves, _rows_of, _run, _tensors, _Writer, callable_of

LAYOUTS = ((0, 7, 11, 22, 24), (0, 10, 24))
BATCH, LONGEST, WIDTH = 3, 8, 4
LENGTHS = ((8, 3, 5), (2, 8, 1))
NOT_PADDED = frozenset({"_batch_norm_with_update"})
"""Operators that write beyond their arguments, in eager, if the sizes of these do not fit the tokens."""
EAGER = {"packpass.inner_backend": "eager"}


@dataclasses.dataclass(frozen=True)
class Found:
    """What became of one program: "rewritten"; "refused" or "left"; "mixes", left alone as slots bear on each other;
    "random", which draws numbers and cannot be held against eager; "wrong" or "raised"."""

    status: str
    code: str = ""
    reason: str = ""


def _compiled(name: str, lines: list[str], scope: dict[str, Any]) -> Callable[..., Any]:
    fn: Callable[..., Any] = defined("\n".join(lines) + "\n", f"<op program {name}>", **scope)
    return fn


def _call(sample: Any, names: dict[int, str]) -> tuple[str, dict[str, Any]]:
    """The arguments of a sample's call as source, and the constants that it names."""
    write = _Writer(names)
    given = [write(value) for value in (sample.input, *sample.args)]
    return ", ".join([*given, *(f"{k}={write(v)}" for k, v in sample.kwargs.items())]), write.constants


def _decided(report: Report, rule: str) -> Found:
    if any(r.rule == rule for r in report.rewrites):
        return Found("rewritten")
    refusals = [r for r in report.refusals if r.rule == rule] or report.refusals
    return Found("refused", refusals[0].code, refusals[0].reason) if refusals else Found("left")


# === Behind a declared shift =====================================================================================


@dataclasses.dataclass
class ShiftProgram:
    """One result of one operator of a declared row, shifted along one dimension."""

    row: OpProgram
    make: Callable[[Callable[..., Any]], Callable[..., Any]]
    """The program, with what shifts."""
    op: Callable[..., Any]
    """Result of the operator (of the row, and its other tensors)."""
    dim: int

    @property
    def name(self) -> str:
        return f"{self.row.name} along {self.dim}"


def shift_program(name: str, op: Any, sample: Any, seeds: list[list[Tensor]]) -> ShiftProgram | LeftOut:
    """The program of a sample, whose tensors are made long enough to be a row."""
    if op.name in UNINITIALISED:
        return LeftOut(name, "whatever lies in memory")
    rows, all_rows = _rows_of(seeds, seeds[0][0].shape[0])
    whole = [t.detach().clone().requires_grad_(t.requires_grad) for t in seeds[0]]
    problem = ""
    for only_first in (True, False):
        is_row = [row and (i == 0 or not only_first) for i, row in enumerate(all_rows)]
        tensors = [t if row else o for t, o, row in zip(rows, whole, is_row, strict=True)]
        out = _run(callable_of(op), sample, tensors, [False] * len(rows), (0, TOTAL))
        if isinstance(out, Exception):
            problem = problem or f"eager raises {type(out).__name__}"
            continue
        results = [(i, r) for i, r in enumerate(_leaves(out[0])) if isinstance(r, Tensor) and r.layout == torch.strided]
        places = [(i, d) for i, r in results for d in range(r.dim()) if r.shape[d] == TOTAL]
        if places:
            return _shifted(name, op, sample, tensors, is_row, *places[0], isinstance(out[0], (tuple, list)))
        problem = "no result as long as the row"
    return LeftOut(name, problem)


def _shifted(
    name: str, op: Any, sample: Any, tensors: list[Tensor], rows: list[bool], number: int, dim: int, several: bool
) -> ShiftProgram:
    names = {id(t): f"t{i}" for i, t in enumerate(_tensors(sample))}
    call, constants = _call(sample, names)
    takes = ", ".join(names.values())
    head = f"def program(cu, {takes}):"
    result = f"    r = op({call}){f'[{number}]' if several else ''}"
    scope = {"torch": torch, "op": callable_of(op), "packed": packpass.packed, **constants}

    def make(roll: Callable[..., Any]) -> Callable[..., Any]:
        lines = [head, "    t0 = packed(t0, cu, 0)", result, f"    return (roll(r, cu, {dim}),)"]
        return _compiled(name, lines, {**scope, "roll": roll})

    alone = _compiled(f"{name}, alone", [head, result, "    return r"], dict(scope))
    row = OpProgram(name, "", make(torch_roll), tuple(tensors), tuple(rows), LAYOUTS)
    return ShiftProgram(row, make, alone, dim)


def torch_roll(r: Tensor, cu: Tensor, dim: int) -> Tensor:
    """What the program says."""
    shifted = torch.roll(r, -1, dim)
    shifted[(slice(None),) * dim + (-1,)] = 0
    return shifted


def per_document(r: Tensor, cu: Tensor, dim: int) -> Tensor:
    """What it means if documents are kept apart."""
    return packpass.ops.packed_roll(r, cu, -1, dim)


def spreads(program: ShiftProgram) -> str:
    """A slot of the row that bears on another slot of the result, or an empty text."""
    tensors = [t.detach() for t in program.row.tensors]
    return _bears_on_others(
        lambda row: program.op(None, row, *tensors[1:]).detach().movedim(program.dim, 0), tensors[0]
    )


def _bears_on_others(slots_of: Callable[[Tensor], Tensor], row: Tensor) -> str:
    """A slot of ``row [T, ...]`` that bears on another of a result ``[T, ...]``; every slot is exchanged in turn."""
    total = row.shape[0]
    torch.manual_seed(3)
    want = slots_of(row)
    for slot in range(total):
        changed = row.clone()
        changed[slot] = row[(slot + 1 + total // 3) % total]
        torch.manual_seed(3)
        got = slots_of(changed)
        if got.shape != want.shape:
            return f"slot {slot} of the row decides how many there are"
        differs = (
            ((got != want) & ~((got != got) & (want != want))).reshape(total, -1).any(1).nonzero().flatten().tolist()
        )
        if any(s != slot for s in differs):
            return f"slot {slot} of the row bears on slots {differs}"
    return ""


def _held_against(mixed: str, found: Found) -> Found:
    """What was found, given what slots bear on."""
    if not mixed or found.status == "wrong":
        return found
    if found.status == "rewritten":
        return Found("wrong", "rewritten", mixed)
    return Found("mixes", found.code, found.reason)


def _outcome(program: OpProgram, fn: Callable[..., Any], layout: tuple[int, ...], wide: bool = False) -> Outcome:
    """As `outcome`, of rows without a tail."""
    plain = dataclasses.replace(program, rows=(False,) * len(program.rows))
    return outcome(fn, plain, layout, wide=wide)


def judge_shift(program: ShiftProgram) -> Found:
    """Compile the program and compare it with both that it may mean."""
    torch._dynamo.reset()
    report = Report(program.name)
    compiled = torch.compile(program.row.fn, backend=packpass.backend, options=EAGER)
    apart = program.make(per_document)
    for layout in LAYOUTS:
        try:
            with collecting(report):
                got = _outcome(program.row, compiled, layout)
        except Exception as error:
            return Found("raised", type(error).__name__, str(error).strip().splitlines()[0])
        found = _decided(report, "pack_shifts")
        meant = apart if found.status == "rewritten" else program.row.fn
        want = _outcome(program.row, meant, layout)
        differs = difference(want, got)
        if differs and not only_rounding(want, got, _outcome(program.row, meant, layout, wide=True)):
            return Found("wrong", found.status, f"{layout}: {differs}")
    return _held_against(spreads(program), found)


# === Inside a padded model =======================================================================================


@dataclasses.dataclass
class PaddedProgram:
    """One operator of the hidden states of padded rows, between two attentions."""

    name: str
    fn: Callable[..., Any]
    op: Callable[..., Any]
    """Result of the operator (of tokens ``[B, S, D]``, the mask, and its other tensors)."""
    tensors: tuple[Tensor, ...]


def attend(x: Tensor, mask: Tensor) -> Tensor:
    """Attention of one head that padding is hidden from."""
    shown = mask[:, None, None, :].bool()
    return x + F.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None], attn_mask=shown)[:, 0]


def tokens(r: Tensor) -> Tensor:
    """A number per token ``[B, S, 1]`` of a result ``[B, S, ...]``."""
    real = torch.view_as_real(r.resolve_conj()) if r.is_complex() else r
    return real.float().nan_to_num(0, 1, -1).clamp(-9, 9).reshape(BATCH, LONGEST, -1).mean(-1, keepdim=True)


def _as_given(dtype: torch.dtype) -> list[str]:
    """The hidden states as an operator of this dtype takes them, and a second operand of that shape."""
    form = "h"
    if dtype is torch.int64:
        form = "(h * 3).round().long()"
    elif dtype is torch.bool:
        form = "h > 0"
    return [f"    given = {form}", "    other = given.flip(-1)"]


def padded_program(name: str, op: Any, sample: Any, seeds: list[list[Tensor]]) -> PaddedProgram | LeftOut:
    """The program of a sample; its first operand, and others of that shape, become tokens."""
    found = _tensors(sample)
    dtype = found[0].dtype
    if op.name in UNINITIALISED:
        return LeftOut(name, "whatever lies in memory")
    if op.name in NOT_PADDED:
        return LeftOut(name, "writes beyond its arguments, in eager")
    if dtype.is_complex:
        return LeftOut(name, "complex tokens")
    first, rest = found[0], [t for t in found[1:] if t.shape != found[0].shape]
    names = {id(t): "other" for t in found[1:]} | {id(t): f"t{i}" for i, t in enumerate(rest)} | {id(first): "given"}
    call, constants = _call(sample, names)
    takes = "".join(f", t{i}" for i in range(len(rest)))
    lines = [f"def program(x, mask{takes}):", "    h = attend(x, mask)", *_as_given(dtype), f"    r = op({call})"]
    lines += ["    r = r[0] if isinstance(r, (tuple, list)) else r", "    return attend(h + 0.1 * tokens(r), mask)"]
    scope = {"torch": torch, "op": callable_of(op), "attend": attend, "tokens": tokens, **constants}
    fn = _compiled(name, lines, scope)
    alone = [line.replace("attend(x, mask)", "x") for line in lines[:-1]]
    probe = _compiled(f"{name}, alone", [*alone, "    return r"], dict(scope))
    tensors = tuple(t.detach().clone() for t in rest)
    try:
        result = probe(*padded_batch(LENGTHS[0]), *tensors)
        _padded_outcome(fn, tensors, LENGTHS[0])
    except Exception as error:
        return LeftOut(name, f"eager raises {type(error).__name__}")
    if result.shape[:2] != (BATCH, LONGEST):
        return LeftOut(name, "the result is not one per token")
    return PaddedProgram(name, fn, probe, tensors)


def padded_batch(lengths: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Tokens ``[B, S, D]`` and the mask ``[B, S]`` of what is real."""
    rng = torch.Generator().manual_seed(sum(lengths))
    mask = (torch.arange(LONGEST) < torch.tensor(lengths)[:, None]).long()
    return torch.rand(BATCH, LONGEST, WIDTH, generator=rng), mask


def _padded_outcome(
    fn: Callable[..., Any], tensors: tuple[Tensor, ...], lengths: tuple[int, ...], seed: int = 3
) -> Outcome:
    """Real tokens, and gradients from them."""
    x, mask = padded_batch(lengths)
    x.requires_grad_(True)
    torch.manual_seed(seed)
    out = fn(x, mask, *(t.clone() for t in tensors))
    real = mask[..., None].bool()
    kept = torch.where(real, out, 0)
    kept.mul(torch.arange(kept.numel()).reshape(kept.shape) % 7 - 3.0).sum().backward()
    assert x.grad is not None
    return Outcome([kept.detach()], [torch.where(real, x.grad, 0)])


def judge_padded(program: PaddedProgram) -> Found:
    """Compile the program and compare real tokens with eager."""
    torch._dynamo.reset()
    report = Report(program.name)
    options = {**EAGER, "packpass.eliminate_padding": True}
    compiled = torch.compile(program.fn, backend=packpass.backend, options=options)
    for lengths in LENGTHS:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            want = _padded_outcome(program.fn, program.tensors, lengths)
            try:
                with collecting(report):
                    got = _padded_outcome(compiled, program.tensors, lengths)
            except Exception as error:
                return Found("raised", type(error).__name__, str(error).strip().splitlines()[0])
        if differs := difference(want, got):
            if difference(want, _padded_outcome(program.fn, program.tensors, lengths, 4)):
                return Found("random", reason="other numbers are drawn for fewer slots")
            return Found("wrong", _decided(report, "eliminate_padding").status, f"{lengths}: {differs}")
    x, mask = padded_batch(LENGTHS[0])
    mixed = _bears_on_others(
        lambda row: program.op(row.view(x.shape), mask, *program.tensors).reshape(BATCH * LONGEST, -1), x.flatten(0, 1)
    )
    return _held_against(mixed, _decided(report, "eliminate_padding"))
