"""Real text: the standard library's own sources as bytes, cut into definitions, packed first-fit into rows."""

from __future__ import annotations

import dataclasses
import pathlib
import re
import sysconfig
from collections.abc import Iterator

import torch

PAD = 0


@dataclasses.dataclass(frozen=True)
class PackedRow:
    """One row: ``ids`` int64 [1, T], ``cu_seqlens`` int32 [N + 1]; slots behind the last document hold ``PAD``."""

    ids: torch.Tensor
    cu_seqlens: torch.Tensor

    @property
    def documents(self) -> int:
        return self.cu_seqlens.numel() - 1


def documents(limit: int) -> Iterator[bytes]:
    """Top-level definitions of the standard library's modules, in the order of their files, ``limit`` bytes in all."""
    left = limit
    for path in sorted(pathlib.Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        for text in re.split(rb"\n(?=def |class |async def )", path.read_bytes()):
            if not text.strip():
                continue
            yield text[:left]
            left -= len(text)
            if left <= 0:
                return


def paragraphs(limit: int) -> Iterator[bytes]:
    """The same text cut at empty lines: short documents, so that a row has many."""
    for text in documents(limit):
        yield from (part for part in re.split(rb"\n\s*\n", text) if part.strip())


def pack(texts: Iterator[bytes], row_length: int) -> list[PackedRow]:
    """First fit: every document goes into the first row with room for it; longer ones are cut at ``row_length``."""
    rows: list[list[bytes]] = []
    room: list[int] = []
    for text in texts:
        for start in range(0, len(text), row_length):
            piece = text[start : start + row_length]
            row = next((index for index, free in enumerate(room) if free >= len(piece)), None)
            if row is None:
                rows.append([])
                room.append(row_length)
                row = len(rows) - 1
            rows[row].append(piece)
            room[row] -= len(piece)
    return [_row(pieces, row_length) for pieces in rows]


def _row(pieces: list[bytes], row_length: int) -> PackedRow:
    ids = torch.full((1, row_length), PAD, dtype=torch.int64)
    text = torch.frombuffer(bytearray(b"".join(pieces)), dtype=torch.uint8)
    ids[0, : text.numel()] = text
    lengths = torch.tensor([0, *(len(piece) for piece in pieces)])
    return PackedRow(ids, lengths.cumsum(0).to(torch.int32))
