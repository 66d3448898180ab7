"""Agreement between the ranks of a process group before a compiled graph runs collectives that packpass wrote.

A rank that compiled something else (other code, other options, a rewrite refused) would leave the others waiting in a
collective, or exchange what does not belong together. So before the first call of such a graph its ranks compare the
ordered list of its collectives (`packpass.ranks.collectives`) through the group's store. No collective is added, and
later calls ask nobody; what becomes of them if a rank fails in one is in `packpass.ranks.calls`.

The list's digest is the key: every rank publishes that it came to this list, and goes on when all have. A rank that ran
an equal graph before, and need not compile it again, has published it already: compiling again on one rank alone is no
mismatch. It is one if a rank waits with another list, which this rank has never come to: it waits for this rank, and so
would this rank for it, in a collective. Then, or after ``packpass.agreement_timeout`` seconds, all raise the same
`AgreementError`. The default of a minute is longer than ranks are apart in a step, and shorter than people look at a
job that hangs; that one rank compiles what others find in a cache may take longer, so nobody is given up while it
compiles (`packpass.ranks.compiling`), for ten times the time-out at most.

Loops of messages that one rank leaves as they are written are in `packpass.ranks.leaving`.

Ranks that come to a list together are about to run the same call. So its sizes and boundaries are compared as well,
where they are inputs of the graph (boundaries on a GPU are read once for that). Boundaries of later calls are not
compared, they would need a message per step: exchanges are of equal parts, so boundaries of other contents but the same
total exchange wrong tokens without an error. ``packpass.verify`` compares them through the store in every call.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from packpass._compat import fake_mode_of, process_group_of
from packpass._options import Options
from packpass.decisions.records import Rewrite
from packpass.ranks.calls import Calls
from packpass.ranks.collectives import Collective, Sizes, collectives, decisions, placeholders
from packpass.ranks.meeting import AgreementError, Board, Meeting, Record
from packpass.ranks.numbers import SHOWN, Numbers

log = logging.getLogger("packpass.agreement")


class Agreement:
    """What the ranks of a graph's groups must agree on before it runs."""

    def __init__(self, meetings: Sequence[Meeting], left: Sequence[Meeting], sizes: Sizes, every_call: bool) -> None:
        """``left``: groups in which nobody meets, as their collectives stay as they are written."""
        self.meetings, self.left, self.sizes, self.every_call = meetings, left, sizes, every_call

    def before(self, compiled: Callable[..., Any]) -> Callable[..., Any]:
        """``compiled``, with the agreement before its first call."""
        if not self.meetings and not self.left:
            return compiled
        agreed, calls = False, Calls(self.meetings, self.left)

        def run(*inputs: Any) -> Any:
            nonlocal agreed
            if not agreed or self.every_call:
                if any(fake_mode_of(x) is not None for x in inputs):
                    return compiled(*inputs)
                try:
                    self._meet(inputs, agreed)
                except AgreementError as error:
                    calls.fail(error)
                    raise
                if not agreed:
                    calls.begin()
                agreed = True
            return calls.run(compiled, *inputs)

        return run

    def _meet(self, inputs: Sequence[Any], agreed: bool) -> None:
        for meeting in self.meetings:
            numbers = _numbers(meeting.found, self.sizes, inputs)
            if not agreed:
                meeting.agree(numbers)
            if self.every_call:
                meeting.check_call(numbers)


def agreement(gm: fx.GraphModule, rewrites: Sequence[Rewrite], settings: Options) -> Agreement:
    """What to do before the graph runs; nothing if no collective in it is packpass's, or may become so.

    Call it before the inner backend changes the graph. The groups of a graph meet one after the other, in the order of
    their names: groups that share ranks must not wait for each other crosswise.
    """
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    found = collectives(gm) if settings.agreement and distributed else []
    meetings, left = [], []
    for name in sorted({c.group for c in found if c.group is not None}):
        board = board_of(name)
        if board is None:
            continue
        compared = to_compare(found, name, rewrites, settings)
        if compared:
            meetings.append(Meeting(board, compared, settings.agreement_timeout))
        else:
            as_written = [c for c in found if c.group == name]
            _announce(board, as_written)
            left.append(Meeting(board, as_written, settings.agreement_timeout))
    return Agreement(meetings, left, Sizes(placeholders(gm) if meetings else []), settings.verify)


def to_compare(
    found: Sequence[Collective], group: str, rewrites: Sequence[Rewrite], settings: Options
) -> list[Collective]:
    """What the ranks of one group compare of a graph with these collectives; nothing if all are left as written."""
    mine = [c for c in found if c.group == group]
    joined = may_be_joined(mine, settings)
    agreed = any(r.claims.agreement and r.claims.group == group for r in rewrites)
    return [*mine, *joined, *decisions(rewrites, group)] if joined or agreed or any(c.ours for c in mine) else []


def board_of(name: str) -> Board | None:
    """The store of a group as this rank uses it; None where there is nobody to agree with."""
    try:
        group = process_group_of(name)
        if group.size() == 1 or torch.distributed.get_backend(group) == "fake":
            return None
        return Board(group)
    except Exception as error:  # groups of other makes have no store
        log.warning("process group %r has no store to compare collectives through: %s", name, error)
        return None


def may_be_joined(found: Sequence[Collective], settings: Options) -> list[Collective]:
    """What decides, after autograd, which all-to-alls become one."""
    parts = sum(c.ours or c.joinable for c in found)
    if parts < 2 or not settings.runs("bucket_all_to_all"):
        return []
    figures = (settings.collective_latency_us, settings.collective_bandwidth_gbs, settings.copy_bandwidth_gbs)
    text = f"{parts} exchanges that may be joined, bucket_bytes={settings.bucket_bytes}, figures of the group={figures}"
    return [Collective(None, True, text, "the options of the compiler")]


def _announce(board: Board, found: Sequence[Collective]) -> None:
    """Collectives that stay as they are written wait for nobody; others may wait for this rank, and name them. If these
    give up, this rank hears it in its call."""
    entries = [(c.text, c.location) for c in found]
    try:
        attempt = board.count(f"attempt/{board.rank}")
        board.put(f"now/{board.rank}", Record("compiled", attempt, "", entries, []).to_json())
    except AgreementError as error:
        log.info("%s", error)


def _numbers(found: Sequence[Collective], sizes: Sizes, inputs: Sequence[Any]) -> list[Numbers]:
    numbers = []
    for c in found:
        for shape in c.operands:
            known = [sizes.of(size, inputs) for size in shape]
            numbers.append(Numbers(f"sizes of {c.text} at {c.location}", known))
    read: set[int] = set()
    for c in found:
        if c.boundaries is not None and c.boundaries not in read:
            read.add(c.boundaries)
            entries = _entries(inputs[c.boundaries])
        else:
            entries = None
        numbers.append(Numbers(f"boundaries (cu_seqlens) of {c.text} at {c.location}", entries))
    return numbers


def _entries(boundaries: Any) -> list[int | None] | None:
    if type(boundaries) is not torch.Tensor or boundaries.is_meta:
        return None
    entries: list[int | None] = boundaries.tolist()
    if len(entries) <= SHOWN:
        return entries
    rest = hashlib.sha256(json.dumps(entries[SHOWN:]).encode()).digest()
    return [*entries[:SHOWN], int.from_bytes(rest[:6], "big")]
