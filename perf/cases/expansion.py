"""Images that become many tokens behind their boundaries: what that does to the probabilities of tokens, and that
packpass carries the boundaries along."""

from __future__ import annotations

import time

import torch

from packpass import _compat
from packpass.decisions.records import collecting
from packpass.engine.backend import Backend
from packpass.engine.compile import compile_afresh
from packpass.measuring.compare_render import seconds_text
from packpass.reports.report import Report
from perf.models import llava
from perf.race import PACKPASS
from perf.registry import Context, case
from perf.results import CaseResult, Table, Target

SAMPLES = (1, 4, 16)
EAGER = "eager, boundaries of the data loader"
RULE = "remap_boundaries"
LIMIT, STALE = 1.0001, 1.05
GRAPHS = 2


@case("expansion", "boundaries that count image placeholders: probabilities of tokens with and without the remap")
def run(ctx: Context, result: CaseResult) -> None:
    config = llava.Config()
    torch.manual_seed(0)
    model = llava.Llava(config)
    torch._dynamo.reset()
    # Errors of probabilities hardly depend on who compiles; Inductor takes longer than everything else here.
    inner = "inductor" if ctx.full else "aot_eager"
    call = compile_afresh(model, Backend(), {"options": {"packpass.inner_backend": inner}})
    report, rows = Report(), []
    graphs = _compat.dynamo_counters("stats")
    before = graphs["unique_graphs"]
    errors: dict[int, tuple[float, float]] = {}
    with collecting(report), torch.no_grad(), _compat.empty_compile_caches():
        for count in SAMPLES:
            ctx.progress(f"{count} samples")
            documents = llava.samples(count, config, seed=count)
            arguments, alone = llava.batch(documents), llava.reference(model, documents, config)
            stale = llava.token_mult_prob_error(model(*arguments), alone)
            started = time.perf_counter()
            out = call(*arguments)
            first = time.perf_counter() - started
            error = llava.token_mult_prob_error(out, alone)
            errors[count] = stale, error
            tokens, slots = int(sum(int(o.tokens) for o in alone)), sum(o.logprobs.numel() for o in alone)
            if int(out.tokens) != tokens:
                result.wrong.append(f"{count} samples: {int(out.tokens)} tokens count instead of {tokens}")
            images = arguments[2].numel()
            row = [str(count), str(images), str(arguments[0].numel()), str(slots), f"{stale:.4f}", f"{error:.6f}"]
            rows.append([*row, seconds_text(first)])
    headers = ["samples", "images", "tokens before", "slots after", EAGER, PACKPASS, "first call"]
    result.tables.append(Table("token_mult_prob_error: exp |logprob - of the document alone|, mean", headers, rows))
    remapped = [item for item in report.rewrites if item.rule == RULE]
    refused = "; ".join(f"[{item.code}] {item.reason}" for item in report.refusals)
    result.targets.append(Target("boundaries remapped, at least once", len(remapped), 1, "at least", refused))
    for count, (stale, error) in errors.items():
        result.targets += [
            Target(f"{count} samples: {PACKPASS}", error, LIMIT),
            Target(f"{count} samples: {EAGER}", stale, STALE, "at least"),
        ]
        if remapped and not error <= LIMIT:
            result.wrong.append(f"{count} samples: token_mult_prob_error is {error:.6f} with remapped boundaries")
    result.targets.append(Target("graphs for all batches", graphs["unique_graphs"] - before, GRAPHS))
    result.data["token_mult_prob_error"] = {str(count): list(pair) for count, pair in errors.items()}
    result.data["report"] = report.to_dict()
    result.notes.append(f"images of one to three tiles become {config.tile_tokens} tokens each tile; through {inner}")
