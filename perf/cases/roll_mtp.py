"""Multi-token prediction: three depths, four fields, a token count per depth, in one graph."""

from __future__ import annotations

import torch

from perf.programs import boundaries, mtp_by_hand, mtp_loop
from perf.race import HAND, LOOP, PACKPASS, STOCK, Way, code_targets, race_table, run_race
from perf.registry import Context, case
from perf.results import CaseResult

DEPTHS = 3


@case("roll_mtp", "three depths of four fields with their sums")
def run(ctx: Context, result: CaseResult) -> None:
    if not (ctx.full or ctx.quick):
        result.notes.append("measured with --full only: the case megatron compiles the same rolls, of unmodified code")
        return
    documents = 64
    for total in (16_384, 131_072) if ctx.full else (131_072,):
        title = f"{DEPTHS} depths x 4 fields [1, {total}], N={documents}"
        ctx.progress(title)
        ids = torch.arange(1, total + 1, device=ctx.device)[None]
        fields = [ids, ids * 2, ids * 3, torch.ones(1, total, device=ctx.device)]
        cu = boundaries(documents, total, ctx.device)
        ways = [
            Way(LOOP, mtp_loop),
            Way(PACKPASS, mtp_loop, PACKPASS),
            Way(STOCK, mtp_loop, "inductor"),
            Way(HAND, mtp_by_hand),
        ]

        def floor(fields: list[torch.Tensor] = fields) -> None:
            for _ in range(DEPTHS):
                for field in fields:
                    field.clone()

        race = run_race(ctx, ways, (*fields, cu), floor, budget=2 * ctx.budget)
        result.tables.append(race_table(title, race, result))
        result.targets += [
            race.target(f"{title}: over the {DEPTHS * 4} clones", 1.3),
            race.hand_target(title),
            *code_targets(title, race, 1, ctx.device),
        ]
