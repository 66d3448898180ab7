"""What an audit found: `Leak` and `Audit`."""

from __future__ import annotations

import dataclasses
import json
import os
from typing import Any

PADDING_NAME = "padding"
"""Stands for a document where slots of no document are meant."""


class NothingToCompare(ValueError):
    """An audit has nothing to compare; the message says what to give."""


Direction = str
"""``"forward"``, ``"backward"``, or ``"forward and backward"``."""


@dataclasses.dataclass(frozen=True)
class Leak:
    """An operation that lets one document see another.

    Attributes:
        location: the user's ``file.py:123``; ``<not located>`` where no single operation was found.
        operation: its name, as ``python -m packpass ops`` has it.
        source_document: number (from 0) of the document whose tokens were changed, or ``"padding"``.
        seen_by: numbers of the documents that it was seen by, at this operation, in increasing order.
        distance: where they saw it, from the changed document: "the next 3 slots", "all later slots" ...
        advice: what to do about an operation of this kind.
        kind: of the operation: convolution, attention, recurrence, cumulative, shift, pooling ...
        direction: "forward": outputs depend on the other document; "backward": gradients do.
        calls: how many calls of the operation at this line did.
        size: the largest difference there, in the units of the value.
        also: other operations of the same recurrence, chunked scan or the like, with their lines.
    """

    location: str
    operation: str
    source_document: int | str
    seen_by: tuple[int, ...]
    distance: str
    advice: str
    kind: str = "unknown"
    direction: Direction = "forward"
    calls: int = 1
    size: float = 0.0
    also: tuple[str, ...] = ()


class Audit:
    """The answer of :func:`packpass.audit`.

    Attributes:
        clean: no document sees another, in anything that was compared.
        leaks: a :class:`Leak` for each operation that lets one through.
        not_covered: what could not be looked at, in sentences.
        on_purpose: values that all documents share by what they are (batch statistics, losses that sum over
            tokens, statistics of routers); not leaks.
        documents, source: how many documents there are, and where their boundaries came from.
        probed: numbers of the documents whose tokens were changed; "padding" among them where there is some.
        changed, held: arguments whose tokens were changed, and those that were not, with the reason.
        compared: paths of outputs that have a value per token, and of inputs whose gradients were looked at.
        runs: how often the model ran. seconds: wall time.
    """

    def __init__(self, title: str, documents: int, source: str) -> None:
        self.title, self.documents, self.source = title, documents, source
        self.leaks: list[Leak] = []
        self.not_covered: list[str] = []
        self.on_purpose: list[str] = []
        self.probed: tuple[int | str, ...] = ()
        self.changed: tuple[str, ...] = ()
        self.held: tuple[tuple[str, str], ...] = ()
        self.compared: tuple[str, ...] = ()
        self.runs = 0
        self.seconds = 0.0

    @property
    def clean(self) -> bool:
        return not self.leaks

    def to_dict(self) -> dict[str, Any]:
        """The audit as plain data, ready for JSON."""
        return {
            "title": self.title,
            "clean": self.clean,
            "documents": self.documents,
            "boundaries": self.source,
            "probed": list(self.probed),
            "changed": list(self.changed),
            "held": [{"argument": name, "reason": reason} for name, reason in self.held],
            "compared": list(self.compared),
            "leaks": [dataclasses.asdict(leak) for leak in self.leaks],
            "on_purpose": list(self.on_purpose),
            "not_covered": list(self.not_covered),
            "runs": self.runs,
            "seconds": self.seconds,
        }

    def to_json(self, indent: int | None = 2) -> str:
        """The audit as JSON text."""
        return json.dumps(self.to_dict(), indent=indent, default=str)

    def to_html(self, path: str | os.PathLike[str]) -> None:
        """Write the audit as one self-contained HTML page, with the lines that leak."""
        from packpass.leaks.render import audit_page

        with open(path, "w", encoding="utf-8") as file:
            file.write(audit_page(self))

    def __str__(self) -> str:
        from packpass.leaks.render import audit_text

        return audit_text(self)

    def __repr__(self) -> str:
        return f"<packpass.Audit of {self.title}: {'clean' if self.clean else f'{len(self.leaks)} leaks'}>"
