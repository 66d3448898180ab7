"""megatron-core's own ``roll_tensor``, unmodified, with packed parameters: three depths of four fields."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

import torch

from perf.programs import boundaries, mtp_by_hand
from perf.race import HAND, LOOP, PACKPASS, STOCK, Way, code_targets, race_table, run_race
from perf.registry import Context, case
from perf.results import CaseResult

DEPTHS = 3


@case("megatron", "megatron-core's roll_tensor, unmodified, fullgraph")
def run(ctx: Context, result: CaseResult) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it misses optional packages that play no part here
            roll_tensor: Any = importlib.import_module("megatron.core.transformer.multi_token_prediction").roll_tensor
            parameters: Any = importlib.import_module("megatron.core.packed_seq_params").PackedSeqParams
    except ImportError as error:
        result.notes.append(f"not run: {error}; pip install --no-deps megatron-core")
        return

    def depths(*fields_and_boundaries: torch.Tensor) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        *fields, cu = fields_and_boundaries
        packed = parameters(qkv_format="thd", cu_seqlens_q=cu, cu_seqlens_kv=cu)
        rolled, counts = [], []
        for _ in range(DEPTHS):
            pairs = [roll_tensor(field, shifts=-1, dims=-1, packed_seq_params=packed) for field in fields]
            fields = [field for field, _ in pairs]
            rolled += fields
            counts.append(pairs[-1][1])
        return rolled, counts

    for total, documents in ((16_384, 64), (131_072, 512)):
        if not ctx.full and total != (16_384 if ctx.quick else 131_072):
            continue
        title = f"roll_tensor: {DEPTHS} depths x 4 fields [1, {total}], N={documents}"
        ctx.progress(title)
        ids = torch.arange(1, total + 1, device=ctx.device)[None]
        fields = [ids, ids * 2, ids * 3, torch.ones(1, total, device=ctx.device)]
        cu = boundaries(documents, total, ctx.device)
        ways = [
            Way(LOOP, depths),
            Way(PACKPASS, depths, PACKPASS, fullgraph=True),
            Way(STOCK, depths, "inductor"),
            Way(HAND, mtp_by_hand),
        ]

        def floor(fields: list[torch.Tensor] = fields) -> None:
            for _ in range(DEPTHS):
                for field in fields:
                    field.clone()

        race = run_race(ctx, ways, (*fields, cu), floor, budget=2 * ctx.budget)
        result.tables.append(race_table(title, race, result))
        detail = f"roll_tensor unmodified, {DEPTHS} depths of 4 fields [1, {total}], {documents} documents, forward"
        result.gains = [race.gain("megatron-core rolls", detail, ctx.device, eager=LOOP)]
        result.targets += [
            race.target(f"{title}: over the {DEPTHS * 4} clones", 1.3),
            race.target(f"{title}: times faster than the eager loop", 100, way=LOOP, over=PACKPASS, kind="at least")
            if documents == 512
            else race.hand_target(title),
            *code_targets(title, race, 1, ctx.device),
        ]
