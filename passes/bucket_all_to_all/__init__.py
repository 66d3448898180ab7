"""Join independent all-to-all of one group after autograd: the fallback for what no earlier pass has seen as one.

Before, in a forward or backward graph of Inductor's::

    w1 = wait_tensor(all_to_all_single(x1, [k1] * n, [k1] * n, group))        # x1: [n * k1, ...]
    w2 = wait_tensor(all_to_all_single(x2, [k2] * n, [k2] * n, group))        # x2: [n * k2, ...], independent of w1

After: one collective; the cat and the copies are fused with their neighbours by Inductor::

    joined = cat([x1.reshape(n, -1), x2.reshape(n, -1)], 1)
    parts = wait_tensor(all_to_all_single(joined, [1] * n, [1] * n, group)).split(..., 1)
    w1, w2 = parts[0].reshape(x1.shape).clone(), parts[1].reshape(x2.shape).clone()

Why it is safe: with equal splits, rank r gets the rows that each rank r' holds for it, whatever travels beside them.
The members do not depend on each other. The collective starts where the last member did; no write to memory, no
random number, no unknown op and no collective of another group lies in between, so that everything keeps its order but
the results. What is joined follows from the graph, the options and the agreed figures of the group, never from names,
local sizes or hints, so that all ranks join alike.

Does not handle: uneven splits, several waits or none, work between a collective and its wait (somebody overlaps them),
dependent collectives, collectives of another group, writes to memory or random numbers in between, float8 and complex
tensors, groups of one rank, collectives other than all_to_all_single; what the cost model finds too large to copy.
"""

from __future__ import annotations

import functools
import hashlib
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch.distributed as dist
from torch import Tensor, fx
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from packpass import _links
from packpass._compat import process_group_of
from packpass._links import Link, link_of
from packpass._options import Options
from packpass.decisions.location import location_of_node
from packpass.decisions.records import Claims, Refusal, Rewrite
from passes import exchange_cost, nodes
from passes.bucket_all_to_all.find import NAME, Left, Member, find
from passes.bucket_all_to_all.find import is_collective as is_collective
from passes.bucket_all_to_all.rewrite import NotJoined, join
from passes.exchange_cost import estimate, worth_joining
from passes.nodes import KNOWN, namespace_of


def could_matter(gm: fx.GraphModule, inputs: Sequence[Any]) -> bool:
    """A cheap look: may the graph, or its backward, come to hold an all-to-all?"""
    if not dist.is_available() or not dist.is_initialized():
        return False
    if any(isinstance(value, Tensor) and is_traceable_wrapper_subclass(value) for value in inputs):
        return True  # a DTensor becomes tensors and collectives only later
    return any(
        node.op == "call_function" and namespace_of(node.target) not in (*_PLAIN, None)
        for module in gm.modules()
        if isinstance(module, fx.GraphModule)
        for node in module.graph.nodes
    )


_PLAIN = KNOWN - {"packpass"}


def uuid(settings: Options) -> str:
    """Changes with the sources of this pass and with all that its decisions depend on besides the graph."""
    figures = (
        settings.bucket_bytes,
        settings.verify,
        settings.collective_latency_us,
        settings.collective_bandwidth_gbs,
        settings.copy_bandwidth_gbs,
        _links.TYPICAL,
        _links.measured(),
    )
    return hashlib.sha256(repr((_sources(), figures)).encode()).hexdigest()


@functools.cache
def _sources() -> str:
    others = (pathlib.Path(str(module.__file__)) for module in (_links, exchange_cost, nodes))
    files = [*sorted(pathlib.Path(__file__).parent.glob("*.py")), *others]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


# === The pass ====================================================================================================


def bucket(
    graph: fx.Graph, settings: Options, group_named: Callable[[str], Any] = process_group_of
) -> list[Rewrite | Refusal]:
    """Join what may and should be joined in one graph of Inductor's, in place."""
    found = find(graph)
    results: list[Rewrite | Refusal] = list(found.refusals)
    stage = "backward" if any(n.op == "placeholder" and "tangents" in n.name for n in graph.nodes) else "forward"
    for members in found.buckets:
        if len(members) == 1:
            continue
        link = link_of(group_named(members[0].group), members[0].key[2].type, settings)
        small = [member for member in members if worth_joining(member.exchange, link)]
        if len(small) < len(members):
            results.append(_too_large([member for member in members if member not in small], link))
        for part in _parts(small, settings.bucket_bytes):
            results += _join(graph, part, link, stage, settings.verify)
    if any(isinstance(result, Rewrite) for result in results):
        graph.lint()
    return results


def _parts(members: Sequence[Member], limit: int) -> Iterator[list[Member]]:
    """Neighbours that together stay below the limit; symbolic sizes count as nothing, ranks may see other hints."""
    part: list[Member] = []
    total = 0
    for member in members:
        size = member.exchange.bytes if member.exchange.exact else 0
        if part and total + size > limit:
            yield part
            part, total = [], 0
        part.append(member)
        total += size
    if part:
        yield part


def _join(graph: fx.Graph, members: Sequence[Member], link: Link, stage: str, verify: bool) -> list[Rewrite | Refusal]:
    if len(members) < 2:
        return []
    first, size = members[0], members[0].group_size
    cost = estimate([member.exchange for member in members], size, link)
    if not cost.worthwhile:
        return [_too_large(members, link)]
    places = [location_of_node(member.node) or "<unknown>" for member in members]
    try:
        join(graph, members, f"{NAME} at {places[0]}" if verify else "")
    except NotJoined as reason:
        return [Left("emit", f"the joined collective cannot be built: {reason}", first.node).refusal()]
    details = {
        "stage": stage,
        "collectives_saved": len(members) - 1,
        "group_size": size,
        "dtype": str(first.key[1]),
        "device": str(first.key[2]),
        "members": list(dict.fromkeys(places)),
        **cost.details(),
        "latency_us": link.latency_us,
        "bandwidth_gbs": link.bandwidth_gbs,
        "copy_gbs": link.copy_gbs,
    }
    claims = Claims(collectives_saved=len(members) - 1 if stage == "forward" else 0)
    before = f"{len(members)} all_to_all_single ({stage})"
    return [Rewrite(NAME, places[0], before, "1 all_to_all_single", details, claims)]


def _too_large(members: Sequence[Member], link: Link) -> Refusal:
    cost = estimate([member.exchange for member in members], members[0].group_size, link)
    reason = (
        f"{cost.count} all-to-all of {cost.bytes} bytes in all: the copies that joining needs cost more than the "
        f"collectives it saves, {cost.after_us:.0f} us instead of {cost.before_us:.0f} us (latency {link.latency_us:g} "
        f"us, {link.bandwidth_gbs:g} GB/s sent, {link.copy_gbs:g} GB/s copied)"
    )
    return Left("not-worthwhile", reason, members[0].node).refusal()
