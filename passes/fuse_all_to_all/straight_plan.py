"""Decide which collectives of a graph share an exchange, before anything is changed.

One after the other, each joins the first group that it may join (`straight_schedule`) and that has room, or begins one.
Which of them are large is known from each alone, so the decision about one does not depend on the others. Everything
follows from the graph, the options and the agreed figures of the process group, alike on every rank.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import fx

from packpass._compat import process_group_of
from packpass._links import Link, link_of
from packpass._options import Options
from packpass.decisions.location import location_of_node
from packpass.decisions.records import Claims, Refusal, Rewrite
from passes.exchange_cost import estimate, worth_joining
from passes.fuse_all_to_all.straight_find import EXCHANGE, Member
from passes.fuse_all_to_all.straight_schedule import Schedule
from passes.refused import Refused

RULE = "fuse_all_to_all"


def refusal(refused: Refused, node: fx.Node) -> Refusal:
    return Refusal(RULE, refused.code, refused.reason, location_of_node(node) or "<unknown>")


class Plan:
    """The groups of two and more, the order of nodes that they need, and what was left out."""

    def __init__(self, graph: fx.Graph, members: Sequence[Member], options: Options) -> None:
        self.schedule = Schedule(graph, members)
        self.refusals: list[Refusal] = []
        self._options = options
        self._links: dict[tuple[str, str], Link] = {}
        buckets: list[list[Member]] = []
        for member in members:
            self._place(buckets, member)
        self.groups = [bucket for bucket in buckets if len(bucket) > 1]

    def report(self, bucket: Sequence[Member]) -> Rewrite:
        """What happens to one group."""
        first, link = bucket[0], self._link(bucket[0])
        after = "all_to_all_group" if first.kind == EXCHANGE else f"1 {first.kind}"
        dtype = str(first.dtype).removeprefix("torch.")
        # No sizes: a rank may see another value of a symbol while compiling. Those of the call itself are compared.
        said = f"{len(bucket)} {first.kind} of {dtype} in one among {first.group_size} ranks"
        details = {
            "group_size": first.group_size,
            "dtype": dtype,
            "members": list(dict.fromkeys(m.location for m in bucket)),
            **estimate([m.exchange for m in bucket], first.group_size, link).details(),
            "latency_us": link.latency_us,
            "bandwidth_gbs": link.bandwidth_gbs,
            "copy_gbs": link.copy_gbs,
            "agreement": said,
        }
        claims = Claims(agreement=(said,))
        return Rewrite(RULE, first.location, f"{len(bucket)} {first.kind}", after, details, claims)

    def _link(self, member: Member) -> Link:
        key = member.group, member.device.type
        if key not in self._links:
            self._links[key] = link_of(process_group_of(member.group), member.device.type, self._options)
        return self._links[key]

    def _place(self, buckets: list[list[Member]], member: Member) -> None:
        candidates = [b for b in buckets if b[0].like == member.like]
        if not self._is_small(member):
            if candidates:
                link = self._link(member)
                reason = (
                    f"{member.exchange.bytes} bytes: copying them next to others takes "
                    f"{member.exchange.copy_us(link):.0f} us, one collective less saves {link.latency_us:g} us"
                )
                self.refusals.append(Refusal(RULE, "not-worthwhile", reason, member.location))
            candidates = []
        refused: Refused | None = None
        for bucket in candidates:
            if not self._is_small(bucket[0]) or not self._has_room(bucket, member):
                continue
            if self.schedule.depends(bucket, member):
                continue
            try:
                _check_output(bucket, member)
                self.schedule.join(bucket, member)
            except Refused as reason:
                refused = reason
                continue
            bucket.append(member)
            return
        buckets.append([member])
        if refused is not None:
            self.refusals.append(refusal(refused, member.nodes[0]))

    def _is_small(self, member: Member) -> bool:
        return worth_joining(member.exchange, self._link(member))

    def _has_room(self, bucket: Sequence[Member], member: Member) -> bool:
        """Sizes that are symbols count as nothing: ranks may see other values."""
        sizes = [m.exchange.bytes for m in (*bucket, member) if m.exchange.exact]
        return sum(sizes) <= self._options.bucket_bytes and self._options.bucket_bytes > 0


def _check_output(bucket: Sequence[Member], member: Member) -> None:
    if member.writes is not None and any(m.writes == member.writes for m in bucket):
        raise Refused("reused-output", "both results are copied to the same memory", member.nodes[0])
