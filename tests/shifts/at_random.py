"""Random spellings of a shift, some with a mistake: either all shifts of a program stop at documents, or none."""

from __future__ import annotations

import random
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import packpass
from tests.fuzz.found import UNDEFINED, Found
from tests.shifts.harness import EAGER, LONG, Row
from tests.sources import defined

FORMS = {"row": ("ids", 1), "flat": ("ids.view(-1)", 0), "column": ("ids.t()", 0), "copy": ("ids.t().contiguous()", 0)}


def program(rng: random.Random) -> str:
    """Source text of ``f(ids, cu_seqlens)``."""
    form = rng.choice(list(FORMS))
    source, dim = FORMS[form]
    k, right, fill = rng.randint(1, 3), rng.random() < 0.4, rng.choice([0, -100, 7])
    opened = max(1, k + rng.choice([0] * 8 + [1, -1]))  # how many slots are filled: rarely the wrong number
    lines = [f"x = {source}", f"n = x.size({dim})"]

    def at(cut: str) -> str:
        if form == "row":
            return rng.choice([f"[:, {cut}]", f"[..., {cut}]"])
        return f"[{cut}]" if form == "flat" else rng.choice([f"[{cut}]", f"[{cut}, :]"])

    keep, take, end = (f"{k}:", f":-{k}", f":{opened}") if right else (f":-{k}", f"{k}:", f"-{opened}:")
    shift = k if right else -k
    if rng.random() < 0.4:
        lines.append(rng.choice(["x = x + 1", "x = x.int()", "x = x.clone()", "x = torch.where(x > 3, x, 2)"]))
    rank_one = form == "flat"
    pad = [0] * (2 if form in ("row", "flat") else 4)
    if rng.random() < 0.2:
        lines.append("z = x * 2")
    kind = rng.randint(0, 7)
    if kind == 0:
        start = "0" if right else f"n - {opened}"
        lines.append(f"y = torch.roll(x, {shift}, {dim})")
        fills = [
            f"y{at(end)} = {fill}",
            f"y{at(end)}.fill_({fill})",
            f"y.narrow({dim}, {start}, {opened}).fill_({fill})",
        ]
        lines += [rng.choice(fills)] if rng.random() < 0.9 else []
    elif kind == 1:
        lines += [f"y = torch.full_like(x, {fill})", f"y{at(keep)} = x{at(take)}"]
    elif kind == 2:
        lines += ["y = x.clone()", f"y{at(keep)} = y{at(take)}.clone()", f"y{at(end)} = {fill}"]
    elif kind == 3:
        new = f"torch.full_like(x{at(f':{opened}')}, {fill})"
        lines.append(
            f"y = torch.cat(({new}, x{at(take)}), {dim})" if right else f"y = torch.cat((x{at(take)}, {new}), {dim})"
        )
    elif kind == 4:
        pad[-2 if right else -1] = k
        lines += [f"y = F.pad(x, {tuple(pad)}, value={fill})", f"y = y{at(':n' if right else f'{k}:')}"]
    elif kind == 5:
        pad[-2:] = [k, -k] if right else [-k, k]
        lines.append(f"y = F.pad(x, {tuple(pad)}, value={fill})")
    elif kind == 6:
        where = f"torch.arange(n) < {opened}" if right else f"torch.arange(n) >= n - {opened}"
        shape = "(-1,)" if rank_one else "(1, -1)" if form == "row" else "(-1, 1)"
        lines.append(f"y = torch.where(({where}).view{shape}, {fill}, torch.roll(x, {shift}, {dim}))")
    else:
        lines += ["y = torch.zeros_like(x)", f"y{at(keep)}.copy_(x{at(take)})", f"y{at(end)} = {fill}"]
    if rng.random() < 0.3:
        lines.append(rng.choice(["y = y * 2 + 1", "y = y.float()", "y = y.long()"]))
    next_depth = rng.random() < 0.3
    if next_depth:
        end = f":{k}" if right else f"-{k}:"
        lines += [f"w = torch.roll(y, {shift}, {dim})", f"w{at(end)} = {rng.choice([fill, 0])}"]
    lines.append("return y, w" if next_depth else "return (y,)")
    return "def f(ids, cu_seqlens):\n    " + "\n    ".join(lines) + "\n"


def documents(f: Any, ids: Tensor, row: Row) -> list[Tensor]:
    """The program on every document alone, put together."""
    parts = [f(ids[:, s:e].clone(), None) for s, e in zip(row.cuts, row.cuts[1:], strict=False)]
    return [torch.cat([part[i] for part in parts], 1 if parts[0][i].shape[0] == 1 else 0) for i in range(len(parts[0]))]


def judge(seed: int) -> Found:
    """The program of one seed, held against both that it may mean."""
    rng = random.Random(seed)
    code, row = program(rng), rng.choice(LONG)
    f = defined(code, f"shift_{seed}.py", "f", torch=torch, F=F)
    ids = torch.randint(10, 90, (1, row.total), generator=torch.Generator().manual_seed(seed))
    naive = f(ids.clone(), None)
    if any(row.total not in t.shape for t in naive):
        return UNDEFINED  # a mistake that changes the row's length
    torch._dynamo.reset()
    report = packpass.explain(f, options=EAGER, dynamic=rng.choice([None, True]))(ids.clone(), row.cu())
    rewrites = [r for r in report.rewrites if r.rule == "pack_shifts"]
    if len(rewrites) == len(naive):
        wanted = documents(f, ids, row)
    elif not rewrites:
        wanted = list(naive)
    else:
        return UNDEFINED  # one of two depths: neither
    right = all(torch.equal(got, want) for got, want in zip(report.result, wanted, strict=True))
    return Found("right" if right else "wrong", bool(rewrites), "" if right else code)
