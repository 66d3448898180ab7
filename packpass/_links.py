"""What collectives and copies cost: typical figures, those of a user's options, and those measured for a group."""

from __future__ import annotations

import dataclasses
import weakref
from typing import Any

from packpass._options import Options


@dataclasses.dataclass(frozen=True)
class Link:
    """Microseconds to start one collective, GB/s that a rank sends, GB/s that a device copies (read and written)."""

    latency_us: float
    bandwidth_gbs: float
    copy_gbs: float


# gloo between processes of one machine, and NCCL over NVLink; between machines, measure.
TYPICAL = {"cpu": Link(150.0, 1.5, 4.0), "cuda": Link(25.0, 100.0, 1000.0)}

_measured: weakref.WeakKeyDictionary[Any, Link] = weakref.WeakKeyDictionary()  # as long as their groups live


def link_of(group: Any, device_type: str, options: Options) -> Link:
    """The figures to decide by for a ProcessGroup: options, else as measured, else typical of the device."""
    link = _measured.get(group) or TYPICAL.get(device_type, TYPICAL["cuda"])
    given = {
        "latency_us": options.collective_latency_us,
        "bandwidth_gbs": options.collective_bandwidth_gbs,
        "copy_gbs": options.copy_bandwidth_gbs,
    }
    return dataclasses.replace(link, **{name: value for name, value in given.items() if value is not None})


def measured() -> list[tuple[str, Link]]:
    """Names and figures of the groups that were measured, for cache keys."""
    return sorted((str(group.group_name), link) for group, link in _measured.items())


def remember(group: Any, link: Link) -> None:
    """Decide by these figures for this ProcessGroup from now on; every rank of it must be given the same."""
    _measured[group] = link
