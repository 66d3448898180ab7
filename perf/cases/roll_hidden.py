"""Shift of hidden states by documents, forward and with its backward."""

from __future__ import annotations

import torch

from packpass.ops import packed_roll
from perf.programs import boundaries, roll_rows_by_hand, roll_rows_loop
from perf.race import HAND, LOOP, OP, PACKPASS, STOCK, Way, code_targets, race_table, run_race
from perf.registry import Context, case
from perf.results import CaseResult

ROW, ROW_ON_GPU = (16_384, 1_024), (65_536, 4_096)
"""Of a smaller row a GPU's copy takes less time than the launch of a kernel."""


@case("roll_hidden", "packed roll of hidden states, [16384, 1024] (on a GPU [65536, 4096])")
def run(ctx: Context, result: CaseResult) -> None:
    tokens, width = (2_048, 1_024) if ctx.quick else ROW if ctx.device == "cpu" else ROW_ON_GPU
    documents = 16
    cu = boundaries(documents, tokens, ctx.device)
    for dtype in (torch.float32, torch.bfloat16):
        # The forward of bfloat16 is part of its forward and backward.
        for backward in (False, True) if ctx.full or dtype == torch.float32 or ctx.device != "cpu" else (True,):
            work = "forward + backward" if backward else "forward"
            title = f"{str(dtype).removeprefix('torch.')} [{tokens}, {width}], N={documents}, {work}"
            ctx.progress(title)
            x = torch.randn(tokens, width, device=ctx.device).to(dtype).requires_grad_(backward)
            source, gradient = x.detach(), torch.randn_like(x)
            ways = [
                Way(LOOP, roll_rows_loop),
                Way(PACKPASS, roll_rows_loop, PACKPASS),
                # Stock torch.compile gives the loop up and runs it eagerly: once is enough to show it.
                *(
                    [Way(STOCK, roll_rows_loop, "inductor")]
                    if ctx.full or (dtype, backward) == (torch.float32, False)
                    else []
                ),
                Way(HAND, roll_rows_by_hand),
                Way(OP, lambda x, cu: packed_roll(x, cu, -1, 0, fill=0)),
            ]

            def floor(source: torch.Tensor = source, gradient: torch.Tensor = gradient, both: bool = backward) -> None:
                source.clone()
                if both:
                    gradient.clone()

            # A round of large tensors is long, and steadier than one of small ones.
            race = run_race(ctx, ways, (x, cu), floor, backward=backward, budget=ctx.budget, rounds=4)
            result.tables.append(race_table(title, race, result))
            limit = (1.2 if backward else 1.15) if ctx.device == "cpu" else 1 / 0.85
            clones = "two clones" if backward else "clone"
            result.targets += [
                race.target(f"{title}: over {clones}", limit),
                race.hand_target(title),
                # On a GPU every direction has a search of its own: its rows come from elsewhere.
                *code_targets(title, race, 2 if backward else 1, ctx.device, beside=3 if backward else 2),
            ]
