"""What the runner tells every pass about the graph."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from packpass._options import Options


@dataclasses.dataclass(frozen=True)
class PassContext:
    """Facts from capture.

    ``locations``: captured loop id -> the user's ``file.py:123``. ``user_checks``: the graph holds assertions that the
    user wrote outside captured loops; they look like Dynamo's own and must stay. ``options``: the user's.
    """

    locations: Mapping[int, str] = dataclasses.field(default_factory=dict)
    user_checks: bool = False
    options: Options = dataclasses.field(default_factory=Options)
