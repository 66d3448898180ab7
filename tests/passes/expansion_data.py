"""Rows with images, their boundaries before and after expansion, and how a rewrite is asked for and counted."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

import packpass
from tests.passes.expansion_programs import IMAGE, VOCABULARY, WIDTH

OPTIONS: dict[str, Any] = {"packpass.inner_backend": "eager"}


@dataclasses.dataclass(frozen=True)
class Documents:
    """``texts``: per document its tokens, "." for text and a digit for an image of that many tokens. ``head`` and
    ``tail``: slots of text in front of the first and behind the last document."""

    texts: tuple[str, ...]
    head: int = 0
    tail: int = 0

    @property
    def row(self) -> str:
        return "." * self.head + "".join(self.texts) + "." * self.tail

    @property
    def sizes(self) -> list[int]:
        return [int(c) for c in self.row if c != "."]

    def ids(self) -> Tensor:
        text = 1 + torch.arange(len(self.row)) % (VOCABULARY - 1)
        return torch.where(torch.tensor([c == "." for c in self.row]), text, IMAGE)[None]

    def boundaries(self, dtype: torch.dtype = torch.int32) -> tuple[Tensor, Tensor]:
        """In tokens before expansion and in slots after it."""
        before = torch.tensor([self.head, *(len(text) for text in self.texts)])
        after = torch.tensor([self.head, *(sum(1 if c == "." else int(c) for c in text) for text in self.texts)])
        return before.cumsum(0).to(dtype), after.cumsum(0).to(dtype)

    def arguments(self) -> tuple[Tensor, Tensor, Tensor]:
        """Ids, features and sizes."""
        features = torch.randn(sum(self.sizes), WIDTH, generator=torch.Generator().manual_seed(len(self.row)))
        return self.ids(), features, torch.tensor(self.sizes)


ROW = Documents((".3..", "..", "4.1.5", ".", "2"))
EMPTY = Documents(("", ".5.", "", "33", ""))
ONE = Documents(("..4...2.",))
TAILS = Documents((".3.", "2..", ".."), head=2, tail=3)
LONGER = Documents((".3..", "....2", "41.....5", ".3.", "2", ".....", "6.6"))
EQUAL = Documents((".3..", "..3", "3.3.."))
"""Images of one width."""


def explained(program: Any, *args: Any, **options: Any) -> packpass.Report:
    torch._dynamo.reset()
    given = {**OPTIONS, **{f"packpass.{name}": value for name, value in options.items()}}
    return packpass.explain(program, fullgraph=True, options=given)(*args)


def remaps(report: packpass.Report) -> list[Any]:
    return [rewrite for rewrite in report.rewrites if rewrite.rule == "remap_boundaries"]


def codes(report: packpass.Report) -> list[str]:
    return [refusal.code for refusal in report.refusals if refusal.rule == "remap_boundaries"]


def first(result: Any) -> Tensor:
    return result[0] if isinstance(result, tuple) else result
