"""A gated-delta-net-like layer under context parallelism: time of one iteration, forward and backward."""

from __future__ import annotations

from perf.cp.layer import CONFIG
from perf.cp.programs import Setup
from perf.cp.race import Race, Races, details, gain_of, oversubscribed, ratio, rewritten
from perf.cp.ranks import ranks_of
from perf.cp.work import HAND, HAND_COMPILED, NAIVE, OPS, PACKPASS
from perf.registry import Context, case
from perf.results import CaseResult, Target

TOTAL, DOCUMENTS = 4096, 16
# What hand-written fusion of the all-to-alls is reported to gain on its own hardware (16K tokens, 4 ranks), per cent.
REPORTED = 10


@case("cp_layer", "context parallelism: one iteration of a gated-delta-net-like layer, on gloo ranks", devices=("cpu",))
def run(ctx: Context, result: CaseResult) -> None:
    ranks = ranks_of(4 if ctx.full else 2)
    races = Races(ctx, result, ranks)
    for cp in (2, 4):
        if cp > ranks.size or (cp == 4 and not ctx.full):
            continue
        # cp_exchange has what is fused by hand beside packpass, exchange by exchange.
        ways = (NAIVE, HAND_COMPILED, PACKPASS) if ctx.full else (NAIVE, PACKPASS)
        race = races.run(Setup("layer", cp, DOCUMENTS, total=TOTAL), ways, exact=False, budget=2.5)
        title = (
            f"layer, cp={cp}: T={TOTAL}, N={DOCUMENTS}, hidden {CONFIG.hidden}, {CONFIG.heads} heads of {CONFIG.size}, "
            f"float32, {oversubscribed(cp)}"
        )
        result.tables.append(details(title, race, floor=False))
        if cp == ranks.size:
            not_run = "not run: it gives the loop up and runs it eagerly, after compiling for a minute (--full)"
            result.gains = [gain_of(race, "exchange layer", f"{title}, forward + backward", not_run)]
        entry = rewritten(race)
        note = "" if entry else "packpass left the naive program alone"
        count = entry.most("collectives") if entry else None
        result.targets += [
            Target(
                f"cp={cp}: iteration time saved, per cent of naive", _saved(race, PACKPASS), REPORTED, "at least", note
            ),
            Target(f"cp={cp}: collectives forward + backward", count, 4, "exactly", note),
        ]
        saved = {way: _saved(race, way) for way in (HAND, HAND_COMPILED, OPS, PACKPASS)}
        result.notes.append(
            f"cp={cp}: of naive eager's iteration time are saved: "
            + ", ".join(f"{way} {share:.0f} %" for way, share in saved.items() if share is not None)
            + " (hand-written fusion reports 7-10 % on its own hardware, with 16K tokens on 4 GPUs)"
        )
    result.notes.append(
        "eager and compiled layers round differently: they are compared within the tolerance of float32"
    )


def _saved(race: Race, way: str) -> float | None:
    over = ratio(race, way, NAIVE)
    return None if over is None else 100 * (1 - over)
