"""What must hold for every document of a loop, where eager fails otherwise: a marker, of which passes make a check."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from packpass import markers

if TYPE_CHECKING:
    from packpass.capture.region import Region


def must_hold(tx: Any, region: Region, holds: Any, message: str, iteration: int | None = None) -> None:
    """Write down that ``holds``, the proxy of a condition on numbers, must be true in the iteration that is traced, or
    in that one."""
    args = (holds, message, region.id, region.iteration if iteration is None else iteration)
    tx.output.create_proxy("call_function", markers.LOOP_CHECK, args, {})
