"""What the ranks run for test_every_pass_on_ranks.py: one program for every pass that exchanges data."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import packpass
from packpass.engine.verify import VerificationError
from tests.dist import naive, p2p_programs
from tests.dist.cp_programs import group_of
from tests.passes.planted import planted, planted_after_autograd


def side_by_side(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """Two all-to-alls of one size."""
    parts = []
    for i in (1, 2):
        part = torch.empty_like(x)
        dist.all_to_all_single(part, x * i, group=group)
        parts.append(part)
    return torch.stack(parts) + 1


class Warnings(logging.Handler):
    """Keeps what is said."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


PROGRAMS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "fuse_all_to_all": (side_by_side, {"packpass.inner_backend": "eager"}),
    "fuse_boundary_exchange": (p2p_programs.requests, {"packpass.inner_backend": "eager"}),
    "bucket_all_to_all": (side_by_side, {"packpass.disable": ["fuse_all_to_all"], "packpass.bucket_bytes": 2**20}),
}


def judge(name: str, wrong: bool = False, **options: Any) -> tuple[bool, bool, str]:
    """Was there a rewrite by this pass, is the result that of eager, and what did verify say?"""
    torch._dynamo.reset()
    program, needed = PROGRAMS[name]
    group = group_of(2)
    cu = torch.tensor([0, 4, 12, 16])
    whole = torch.arange(1.0, 17)
    x = naive.shard(whole, cu.tolist(), 2, dist.get_rank(group), 0)
    want = program(x.clone(), cu, group)
    given = {**needed, "packpass.agreement_timeout": 30.0}
    for key, value in options.items():
        given[f"packpass.{key}"] = [*needed.get("packpass.disable", []), *value] if key == "disable" else value
    plant = planted_after_autograd() if name == "bucket_all_to_all" else planted(name)
    warnings = Warnings()
    log = logging.getLogger("packpass.verify")
    log.addHandler(warnings)
    try:
        with plant if wrong else contextlib.nullcontext(), torch._inductor.utils.fresh_cache():
            report = packpass.explain(program, options=given)(x.clone(), cu, group)
    except VerificationError as error:
        return True, False, str(error)
    finally:
        log.removeHandler(warnings)
    rules = {r.rule for r in report.rewrites} | {r.rule for r in report.refusals}
    return name in rules, torch.equal(report.result, want), "".join(warnings.said)
