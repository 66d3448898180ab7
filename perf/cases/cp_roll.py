"""Next-token shifts under context parallelism: messages per document against one exchange."""

from __future__ import annotations

from perf.cp.programs import ROLLS, Setup
from perf.cp.race import Races, details, oversubscribed, quotient, rewritten
from perf.cp.ranks import ranks_of
from perf.cp.work import HAND, HAND_COMPILED, NAIVE, PACKPASS, STOCK
from perf.race import target_on
from perf.registry import Context, case
from perf.results import CaseResult, Target

TOTAL, DOCUMENTS = 32_768, 64


@case("cp_roll", "context parallelism: next token per document, fields and depths, on gloo ranks", devices=("cpu",))
def run(ctx: Context, result: CaseResult) -> None:
    ranks = ranks_of(4 if ctx.full else 2)
    races = Races(ctx, result, ranks)
    for cp in (2, 4):
        if cp > ranks.size:
            continue
        for program, (fields, depths) in ROLLS.items():
            if not ctx.full and (cp == 4 or (program == "roll" and not ctx.quick)):
                continue  # many fields and depths are the harder case
            stock = (STOCK,) if (program, cp) == ("roll", 2) and ctx.full else ()
            setup = Setup(program, cp, DOCUMENTS, "int64", total=TOTAL)
            race = races.run(setup, (NAIVE, HAND, HAND_COMPILED, PACKPASS, *stock))
            name = f"{fields} field(s), {depths} depth(s), cp={cp}"
            title = f"{name}: int64 [1, {TOTAL}], N={DOCUMENTS}, {oversubscribed(cp)}"
            result.tables.append(details(title, race))
            entry = rewritten(race)
            note = "" if entry else "packpass left the naive program alone"
            count = entry.most("collectives") if entry else None
            over = quotient(race, PACKPASS, HAND_COMPILED, both=False) if entry else None
            result.targets += [
                Target(f"{name}: exchanges", count, 1, "exactly", note),
                target_on(f"{name}: over hand-fused compiled code", over, 1.0, note=note),
            ]
    result.notes.append("token ids have no gradient: rolls are measured forward only; messages count as collectives")
