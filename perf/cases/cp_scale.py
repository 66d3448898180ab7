"""Large groups: what one rank sends and compiles at world sizes that this machine cannot run, and a model of the time.

A fake process group makes everything but the sending happen. World size, collectives, bytes and compile time are
measured; seconds on a network are modelled.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from packpass.measuring.compare_render import bytes_text, seconds_text
from perf.cp.scale import EAGER, FEATURES, OPS, PACKPASS, SECTIONS, TOKENS, UNROLLED, Counted
from perf.registry import Context, case
from perf.results import CaseResult, Lines, Table, Target

DOCUMENTS = 16
UNROLLED_DOCUMENTS = 2  # compiling takes minutes for more
LARGEST_TRACED = 128
CPU_S = 50  # of one process, the start included; wall time may be three times that where cores are busy


@dataclasses.dataclass(frozen=True)
class Network:
    """A latency and bandwidth model of an all-to-all: ``launch + per_peer * (W - 1) + bytes sent / bandwidth``.

    The figures are assumptions about a cluster of GPUs with one 400 Gbit/s adapter each, not measurements.
    """

    launch_s: float = 20e-6
    per_peer_s: float = 0.5e-6
    bandwidth: float = 40e9

    def seconds(self, counted: Counted) -> float:
        latency = self.launch_s + self.per_peer_s * (counted.world_size - 1)
        return counted.collectives * latency + counted.sent_bytes / self.bandwidth


@case(
    "cp_scale",
    "context parallelism at world sizes 8 to 1024: fake process groups, and a model of the network",
    devices=("cpu",),
)
def run(ctx: Context, result: CaseResult) -> None:
    sizes = (8,) if ctx.quick else (8, 16, 32, 64, 128, 256, 512, 1024) if ctx.full else (8, 1024)
    jobs = [(size, EAGER) for size in sizes]
    # Tracing the naive program means 2 * world size chunks per document and section: minutes for the largest.
    jobs += [(size, PACKPASS) for size in sizes if ctx.full or size <= LARGEST_TRACED]
    jobs += [(size, OPS) for size in sizes if not ctx.full and size > LARGEST_TRACED]
    if ctx.full:
        jobs += [(size, UNROLLED) for size in sizes]
    else:
        result.notes.append(
            "--full has all powers of two, compiles the naive program beyond "
            f"{LARGEST_TRACED} ranks, and stock's unrolled"
        )
    ctx.progress(f"world sizes {', '.join(map(str, sizes))}")
    found = _run_all(jobs, result)
    left_alone = [c for c in found.values() if c.way == PACKPASS and not c.rewritten]
    if left_alone:
        result.notes.append(f"packpass left the naive program alone: {left_alone[0].why_not or 'no reason recorded'}")
    rewritten = {c.world_size for c in found.values() if c.way == PACKPASS and c.rewritten}
    found.update(_run_all([(size, OPS) for size in sizes if size not in rewritten and (size, OPS) not in jobs], result))
    _tables(result, found, sizes)
    _targets(result, found, sizes)


def _run_all(jobs: Sequence[tuple[int, str]], result: CaseResult) -> dict[tuple[int, str], Counted]:
    """Every job in a process of its own, as many at a time as there are cores; those that fail are left out."""
    with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        answers = list(pool.map(_run_one, jobs))
    for job, answer in zip(jobs, answers, strict=True):
        if isinstance(answer, str):
            result.notes.append(f"world size {job[0]}, {job[1]}: {answer}")
    return {job: answer for job, answer in zip(jobs, answers, strict=True) if isinstance(answer, Counted)}


def _run_one(job: tuple[int, str]) -> Counted | str:
    size, way = job
    documents = UNROLLED_DOCUMENTS if way == UNROLLED else DOCUMENTS
    command = [sys.executable, "-m", "perf.cp.scale", str(size), way, str(documents), str(CPU_S)]
    # No pool of compilers beside it: what it leaves behind would hold the pipes open.
    own = {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1", "TORCH_LOGS": "-dynamo"}
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **own},
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=3 * CPU_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return f"did not end in {3 * CPU_S} s"
    if process.returncode == -signal.SIGXCPU:
        return f"did not end in {CPU_S} s of CPU time (start of the process included)"
    lines = out.strip().splitlines()
    if process.returncode != 0 or not lines:
        return (err.strip().splitlines() or ["no output"])[-1][:300]
    return Counted(**json.loads(lines[-1]))


def _tables(result: CaseResult, found: dict[tuple[int, str], Counted], sizes: Sequence[int]) -> None:
    network = Network()
    rows: list[list[str]] = []
    series: dict[str, list[tuple[float, float]]] = {}
    for size in sizes:
        for way in (EAGER, UNROLLED, PACKPASS, OPS):
            counted = found.get((size, way))
            if counted is None:
                continue
            modelled = network.seconds(counted)
            first = seconds_text(counted.first_step_s) if counted.graphs else ""
            name = f"{way}, {UNROLLED_DOCUMENTS} documents" if way == UNROLLED else way
            row = [str(size), name, str(counted.collectives), bytes_text(counted.sent_bytes), first]
            rows.append([*row, str(counted.graphs or ""), seconds_text(modelled)])
            if way != UNROLLED:
                series.setdefault(way, []).append((float(size), modelled))
    headers = [
        "world size",
        "way",
        "collectives",
        "bytes sent by a rank",
        "first step, CPU time",
        "graphs",
        "network, MODELLED",
    ]
    title = (
        f"cp_to_hp forward + backward, {DOCUMENTS} documents, {len(SECTIONS)} sections, {TOKENS} tokens of {FEATURES} "
        "features (float32) per rank, fake process group"
    )
    result.tables.append(Table(title, headers, rows))
    result.plots.append(Lines("a MODEL of the network, not a measurement", "world size", "seconds", series))
    result.notes.append(
        f"model: {network.launch_s * 1e6:.0f} µs per collective + {network.per_peer_s * 1e6:.1f} µs per peer + bytes / "
        f"({network.bandwidth / 1e9:.0f} GB/s); all three are assumptions"
    )
    result.data["counted"] = [dataclasses.asdict(counted) for counted in found.values()]
    result.data["model"] = dataclasses.asdict(network)


def _targets(result: CaseResult, found: dict[tuple[int, str], Counted], sizes: Sequence[int]) -> None:
    for size in sizes:
        ours, naive = found.get((size, PACKPASS)), found.get((size, EAGER))
        if naive is None:
            continue
        if ours is None or not ours.rewritten:
            note = "no result: see the notes" if ours is None else "packpass left the naive program alone"
            result.targets.append(Target(f"world size {size}: collectives", None, 2, "exactly", note))
            continue
        result.targets += [
            Target(f"world size {size}: collectives", ours.collectives, 2, "exactly"),
            Target(f"world size {size}: bytes over naive", ours.sent_bytes / naive.sent_bytes, 1.0),
        ]
