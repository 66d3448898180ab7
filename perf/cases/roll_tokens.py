"""Next-token shift of token ids, int64 [1, T], by documents."""

from __future__ import annotations

import functools

import torch

from packpass.ops import packed_roll
from perf.programs import boundaries, roll_by_hand, roll_loop
from perf.race import CALL, FLOOR, HAND, LOOP, OP, PACKPASS, SHORT, STOCK, Way, code_targets, race_table, run_race
from perf.registry import Context, case
from perf.results import CaseResult, Lines


@case("roll_tokens", "packed roll of token ids, int64 [1, T]")
def run(ctx: Context, result: CaseResult) -> None:
    ratios: dict[str, list[tuple[float, float]]] = {LOOP: [], STOCK: [], HAND: [], OP: [], PACKPASS: []}
    compiled_clone = torch.compile(torch.clone, backend="inductor", dynamic=False)
    for total in (16_384, 131_072):
        for documents in (8, 64, 512) if ctx.full else (8, 512):
            title = f"int64 [1, {total}], N={documents}"
            ctx.progress(title)
            x = torch.arange(1, total + 1, device=ctx.device)[None]
            cu = boundaries(documents, total, ctx.device)
            ways = [
                Way(LOOP, roll_loop),
                Way(PACKPASS, roll_loop, PACKPASS),
                Way(STOCK, roll_loop, "inductor"),
                Way(HAND, roll_by_hand),
                Way(OP, lambda x, cu: packed_roll(x, cu, -1, -1, fill=0)),
            ]
            race = run_race(ctx, ways, (x, cu), x.clone, compiled_floor=functools.partial(compiled_clone, x))
            result.tables.append(race_table(title, race, result))
            if (over_call := race.ratio(PACKPASS, CALL)) is not None:
                result.notes.append(
                    f"{title}: {over_call:.2f} of a compiled clone, which does nothing but the call and a copy"
                )
            result.targets.append(race.hand_target(title))
            if total == 131_072:
                for name, points in ratios.items():
                    if (ratio := race.ratio(name)) is not None:
                        points.append((documents, ratio))
            if documents == 512:
                if total == 131_072:
                    limit = 1.5 if ctx.device == "cpu" else 1 / 0.85
                    floor = CALL if race.floors[FLOOR].seconds < SHORT else FLOOR
                    result.targets.append(race.target(f"{title}: over {floor}", limit, over=floor))
                result.targets.append(
                    race.target(
                        f"{title}: times faster than the eager loop", 100, way=LOOP, over=PACKPASS, kind="at least"
                    )
                )
                result.targets += code_targets(title, race, 1, ctx.device)
    result.plots.append(
        Lines(
            "int64 [1, 131072]: time over clone()",
            "documents",
            "time, clone = 1",
            {k: v for k, v in ratios.items() if v},
        )
    )
