"""When is it worth to join all-to-all? Fewer collectives start, but what no kernel writes or reads anyway is copied.

The bytes that travel are the same either way. Joining k all-to-all saves k - 1 latencies. The join is a cat, which
Inductor fuses with the kernel that makes a tensor, and slices, which it fuses with the kernels that read them; where a
tensor comes from (goes to) memory that an extern kernel, the caller or another collective owns, it is one more copy.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from packpass._links import Link


@dataclasses.dataclass(frozen=True)
class Exchange:
    """One all-to-all: the bytes a rank puts in, and copies (0 to 2) that only joining makes necessary.

    With ``exact`` off, a size is symbolic and ``bytes`` only its value at compile time, which may differ between ranks
    that compile at different steps: no decision may depend on it.
    """

    bytes: int
    copies: int
    exact: bool = True

    def copy_us(self, link: Link) -> float:
        return self.copies * self.bytes / (link.copy_gbs * 1e3)


@dataclasses.dataclass(frozen=True)
class Cost:
    """Estimated microseconds for a bucket as it is and joined, and the decision."""

    bytes: int
    count: int
    before_us: float
    after_us: float
    exact: bool
    worthwhile: bool

    def details(self) -> dict[str, Any]:
        """For the report."""
        return {
            "bytes": self.bytes,
            "count": self.count,
            "estimated_us_before": round(self.before_us, 1),
            "estimated_us_after": round(self.after_us, 1),
            "sizes": "static" if self.exact else "symbolic: always joined, figures are those while compiling",
        }


def worth_joining(exchange: Exchange, link: Link) -> bool:
    """Does this one save more than its copies cost?"""
    return not exchange.exact or exchange.copy_us(link) <= link.latency_us


def estimate(exchanges: Sequence[Exchange], group_size: int, link: Link) -> Cost:
    """Compare joining all of these with leaving them as they are."""
    total = sum(exchange.bytes for exchange in exchanges)
    transfer = total * (group_size - 1) / group_size / (link.bandwidth_gbs * 1e3)
    before = len(exchanges) * link.latency_us + transfer
    copies = sum(exchange.copy_us(link) for exchange in exchanges)
    fixed = sum(exchange.copy_us(link) for exchange in exchanges if exchange.exact)
    saved = (len(exchanges) - 1) * link.latency_us
    return Cost(
        bytes=total,
        count=len(exchanges),
        before_us=before,
        after_us=link.latency_us + transfer + copies,
        exact=all(exchange.exact for exchange in exchanges),
        worthwhile=len(exchanges) > 1 and fixed <= saved,
    )
