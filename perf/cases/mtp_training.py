"""Training the multi-token-prediction model on packed text: with packpass it learns what it learns from the documents
one by one; as it is written, it learns something else."""

from __future__ import annotations

import time

import torch
from torch import Tensor

from packpass import _compat
from packpass.engine.backend import Backend
from packpass.engine.compile import compile_afresh
from perf.cases.mtp import attention
from perf.data import pack, paragraphs
from perf.models.batches import Batch, Model, backward, backward_one_by_one, batch_of
from perf.models.gpt import Config
from perf.models.mtp import MTPModel
from perf.race import PACKPASS
from perf.registry import Context, case
from perf.results import CaseResult, Lines, Table, Target

CONFIG = Config(hidden=64, heads=4, layers=1, depths=3)
ROW, STEPS = 512, 60
ONE_BY_ONE, NAIVE = "documents one by one", "packed, naive shifts"
SMALLEST = 1e-8  # what a difference of 0 is drawn as


@case("mtp_training", f"{STEPS} steps of multi-token prediction on packed text: loss curves")
def run(ctx: Context, result: CaseResult) -> None:
    steps = STEPS // (8 if ctx.quick else 1)
    batches = [batch_of(row).to(ctx.device) for row in pack(paragraphs(int(ROW * (steps + 4) * 1.1)), ROW)][:steps]
    curves, rows = {}, []
    for way in (ONE_BY_ONE, PACKPASS, NAIVE):
        ctx.progress(f"{steps} steps: {way}")
        started = time.perf_counter()
        curves[way] = train(way, batches, ctx.device)
        final = curves[way][-steps // 10 :].mean(0)
        difference = (curves[way] - curves[ONE_BY_ONE]).abs()
        rows.append(
            [
                way,
                *(f"{loss:.4f}" for loss in final.tolist()),
                f"{difference.max():.1e}",
                f"{difference.mean():.1e}",
                f"{time.perf_counter() - started:.0f} s",
            ]
        )
    depths = ["next token", *(f"depth {depth}" for depth in range(1, CONFIG.depths + 1))]
    headers = ["way", *depths, "largest difference", "mean difference", "time"]
    result.tables.append(Table(f"loss per token over the last {steps // 10} of {steps} steps", headers, rows))
    result.plots += [
        Lines(
            "loss per token, mean of all depths",
            "step",
            "loss",
            {way: _points(curve.mean(1)) for way, curve in curves.items()},
            log_x=False,
            log_y=False,
        ),
        Lines(
            "difference from documents one by one, largest of all depths",
            "step",
            "difference of the loss",
            {way: _points(_difference(curves, way).clamp(min=SMALLEST)) for way in (PACKPASS, NAIVE)},
            log_x=False,
        ),
    ]
    packed, naive = (float(_difference(curves, way).max()) for way in (PACKPASS, NAIVE))
    result.targets += [
        Target("packpass: largest difference of the first step", float(_difference(curves, PACKPASS)[0]), 1e-5),
        Target("packpass: largest difference of all steps", packed, 1e-3),
        Target("naive shifts: largest difference", naive, 1e-2, "at least"),
    ]
    if packed > 1e-2:
        result.wrong.append(f"with packpass the losses differ by up to {packed:.1e} from those of documents one by one")
    result.data["curves"] = {way: curve.tolist() for way, curve in curves.items()}
    result.notes.append(
        "packpass runs with its inner backend aot_eager here: Inductor would compile for longer than training takes; "
        "the case mtp checks a step through Inductor"
    )


def train(way: str, batches: list[Batch], device: str) -> Tensor:
    """Losses ``[steps, 1 + depths]`` of one run; every run starts from the same parameters."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = MTPModel(CONFIG, attention).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    call: Model = model
    if way == PACKPASS:
        call = compile_afresh(model, Backend(), {"options": {"packpass.inner_backend": "aot_eager"}})
    step = backward_one_by_one if way == ONE_BY_ONE else backward
    losses = []
    with _compat.empty_compile_caches():
        for batch in batches:
            losses.append(step(call, batch).losses)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    return torch.tensor(losses)


def _difference(curves: dict[str, Tensor], way: str) -> Tensor:
    return (curves[way] - curves[ONE_BY_ONE]).abs().amax(1)


def _points(curve: Tensor, at_most: int = 50) -> list[tuple[float, float]]:
    """Means over stretches of equal length, so that a plot shows a curve and no noise."""
    length = max(1, len(curve) // at_most)
    return [(float(i), float(curve[i : i + length].mean())) for i in range(0, len(curve), length)]
