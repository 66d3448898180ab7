"""``pack`` and ``unpack`` of real text: against a copy of the bytes that they must read and write."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from packpass import _compat, ops
from packpass.engine.backend import Backend
from packpass.engine.compile import compile_afresh
from packpass.measuring.compare_render import bytes_text, seconds_text
from packpass.measuring.measure import interleave
from packpass.measuring.variants import CodeCount, count_code
from packpass.ops import PackedBatch
from perf.data import documents
from perf.models.padded import IGNORE, Batch, batch_of
from perf.race import target_on
from perf.registry import Context, case
from perf.results import CaseResult, Table, Target

LIMIT = 1.5
CLONE = "clones"
FILLS = {"ids": 0, "labels": IGNORE, "loss_mask": 0, "rewards": 0.0}
Fields = dict[str, Tensor]


@dataclasses.dataclass(frozen=True)
class Data:
    """Fields ``[B, S, ...]`` that are packed together, and their mask ``[B, S]``."""

    fields: Fields
    mask: Tensor
    fills: dict[str, float]


@case("pack_ops", "pack and unpack, all fields by one plan: against clones of the bytes that they must move")
def run(ctx: Context, result: CaseResult) -> None:
    rows = []
    for name, data in _data(ctx).items():
        ctx.progress(name)
        rows += _measure(ctx, result, name, data)
    headers = ["fields", "real", "way", "bytes moved", "pack + unpack", "of the clones"]
    result.tables.append(Table("pack and unpack, rows of the standard library's definitions", headers, rows))
    result.notes.append(
        "bytes moved: what pack must read (mask, real tokens) and write (packed fields, plan), what unpack must read "
        "(packed fields, plan) and write (padded fields)"
    )


def _data(ctx: Context) -> dict[str, Data]:
    batch, small = _text(ctx, 256, 4096), _text(ctx, 16, 512)
    generator = torch.Generator(ctx.device).manual_seed(0)
    fields = {
        "ids": batch.ids,
        "labels": batch.labels,
        "loss_mask": batch.labels != IGNORE,
        "rewards": torch.randn(batch.ids.shape, generator=generator, device=ctx.device),
    }
    hidden = torch.randn(*small.ids.shape, 512, generator=generator, device=ctx.device)
    return {
        f"token fields {_size(batch.ids)}": Data(fields, batch.mask, FILLS),
        f"hidden states {_size(hidden)}": Data({"x": hidden}, small.mask, {"x": 0.0}),
    }


def _text(ctx: Context, rows: int, length: int) -> Batch:
    rows = rows // 8 if ctx.quick else rows
    return batch_of(itertools.islice(documents(4_000_000), rows), length, next_token=True).to(ctx.device)


def _size(x: Tensor) -> str:
    return "[" + ", ".join(map(str, x.shape)) + "]"


def _measure(ctx: Context, result: CaseResult, name: str, data: Data) -> list[list[str]]:
    """Rows of the table; targets and wrong results go to ``result``."""
    torch._dynamo.reset()

    def pack(fields: Fields, mask: Tensor, total: int) -> tuple[Fields, PackedBatch]:
        return ops.pack(fields, mask, fill=data.fills, total=total)

    def unpack(fields: Fields, batch: PackedBatch) -> Fields:
        return ops.unpack(fields, batch)

    total = int(data.mask.sum())
    with _compat.empty_compile_caches(), _compat.generated_code() as sources:
        ways = {"eager": (pack, unpack), "compiled": tuple(compile_afresh(f, Backend(), {}) for f in (pack, unpack))}
        for way, (there, back) in ways.items():
            why = wrong(data, there, back, total)
            if why:
                result.wrong.append(f"{name}, {way}: {why}")
        code = count_code(sources[:1])
    # Both ops in one sample beside both copies in one: what else the machine does slows the two down alike.
    floors = _floors(data, *pack(data.fields, data.mask, total))
    timed: dict[str, Callable[[], object]] = {CLONE: lambda: [floor.clone() for floor in floors]}
    for way, (there, back) in ways.items():
        timed[way] = functools.partial(_both, there, back, (data.fields, data.mask, total))
    timings = interleave(timed, budget=ctx.budget, min_rounds=3 if ctx.quick else 7)
    rows = []
    for way, timing in timings.items():
        over = timings.quotient(way, CLONE)
        assert over is not None  # they share every round
        moved = bytes_text(2 * sum(floor.numel() for floor in floors))
        time = f"{seconds_text(timing.seconds)} ±{timing.spread:.0%}"
        rows.append([name, f"{data.mask.float().mean():.0%}", way, moved, time, f"{over.ratio:.2f}"])
        if way != CLONE:
            result.targets.append(target_on(f"{name}: {way}, of clones of the bytes moved", over, LIMIT))
    result.data[name] = {way: timing.ratio for way, timing in timings.items()}
    moves = _moves(code, data.mask.device)
    result.targets.append(Target(f"{name}: kernels for {len(data.fields)} field(s)", moves, 1, "exactly"))
    return rows


def _both(pack: Callable[..., Any], unpack: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    unpack(*pack(*arguments))


def _floors(data: Data, packed: Fields, batch: PackedBatch) -> list[Tensor]:
    """What to clone, so that as many bytes are read and written as pack and unpack must."""
    real, padded = list(packed.values()), list(data.fields.values())
    plan = [batch.source, batch.slots, batch.position_ids, batch.padding_mask]
    moved = ([data.mask, *real, *real, *plan], [*real, batch.slots, *padded])
    return [torch.ones(sum(t.nbytes for t in both) // 2, dtype=torch.uint8, device=data.mask.device) for both in moved]


def wrong(
    data: Data, pack: Callable[..., tuple[Fields, PackedBatch]], unpack: Callable[..., Fields], total: int
) -> str:
    """Why what comes out is not what goes in, or nothing."""
    packed, batch = pack(data.fields, data.mask, total)
    for name, x in data.fields.items():
        if not torch.equal(packed[name], x[data.mask]):
            return f"{name} is not its real tokens"
    restored = unpack(packed, batch)
    for name, x in data.fields.items():
        mask = data.mask.view(*data.mask.shape, *[1] * (x.dim() - 2))
        if not torch.equal(restored[name], torch.where(mask, x, torch.zeros_like(x))):
            return f"{name} does not come back"
    return ""


def _moves(code: CodeCount, device: torch.device) -> int:
    """Calls in the generated code of pack that move fields: on a GPU kernels (which compute the plan as well)."""
    return code.kernels if device.type != "cpu" else sum("pack" in name and "plan" not in name for name in code.externs)
