"""Rows of a padded batch as ``x.unbind(0)`` gives them: as many as there are documents, which torch takes for a number
of the program's own."""

from __future__ import annotations

from typing import Any

from packpass.capture.dynamo import ListVariable, TensorVariable, TupleVariable
from packpass.capture.state import current_frame, restart
from packpass.capture.watch import batches
from packpass.semantics import op_of
from packpass.semantics.binding import example


def watch(tx: Any, rows: Any) -> None:
    """Something that goes along with documents is not known to have one entry for each: the frame is traced again if it
    is the rows of a batch."""
    frame, rows = current_frame(), rows.realize()
    if not isinstance(rows, (ListVariable, TupleVariable)) or type(rows.items) is not list or not rows.items:
        return
    entry = rows.items[0].realize()
    part: Any = entry.as_proxy().node if isinstance(entry, TensorVariable) else None
    made: Any = part.args[0] if part is not None and op_of(part) == "getitem" else None
    if made is None or op_of(made) != "unbind":
        return
    count = example(made.args[0]).shape[0]
    if type(count) is not int or count != len(rows.items):
        return
    new = set(batches(tx, {count}, bounds=False)) - frame.batches
    if new:
        frame.batches |= new
        frame.dynamic_sources |= new
        raise restart(f"{', '.join(sorted(new))} has one row for each document")
