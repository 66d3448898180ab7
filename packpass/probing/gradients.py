"""Gradients of one document's outputs, which must not reach another document's inputs."""

from __future__ import annotations

import dataclasses

import torch

from packpass.probing.documents import PADDING, Documents, Hit


@dataclasses.dataclass
class Recorded:
    """A forward whose gradients can be asked for. ``along``: by `id`, where the row lies in a value, if that is known;
    elsewhere it is found by its size."""

    wanted: list[tuple[str, torch.Tensor]]
    outputs: list[torch.Tensor]
    along: dict[int, tuple[int, ...]] = dataclasses.field(default_factory=dict)

    def dims(self, value: torch.Tensor) -> tuple[int, ...]:
        return self.along.get(id(value), ())


def halves(documents: Documents) -> list[Documents]:
    """The documents in two classes: 1, whose outputs are asked, and 2. Of four documents in a row two neighbours are
    asked, so that both a later and an earlier neighbour is in the other class; of fewer than four, each class is."""
    numbers = documents.numbers
    asked = [{n for k, n in enumerate(numbers) if k % 4 in (1, 2)}]
    if len(numbers) < 4:
        asked = [set(numbers[::2]), set(numbers[1::2])]
    made = []
    for these in filter(None, asked):
        labels = torch.where(torch.isin(documents.labels, torch.tensor(sorted(these))), 1, 2)
        made.append(Documents(labels.masked_fill(documents.labels == PADDING, PADDING), documents.source))
    return made


def cotangents(recorded: Recorded, documents: Documents, label: int) -> list[torch.Tensor]:
    """Random numbers at one document's slots, 0 elsewhere."""
    generator = torch.Generator().manual_seed(2)
    made = []
    for output in recorded.outputs:
        foreign = documents.foreign(output.shape, label, recorded.dims(output))
        assert foreign is not None
        own = torch.ones((), dtype=torch.bool)
        for dims in [recorded.dims(output)] if recorded.dims(output) else documents.placements(output.shape):
            own = own & (documents.laid(output.shape, dims) == label)
        noise = torch.randn(output.shape, generator=generator) * own
        made.append(noise.to(output.device, output.dtype))
    return made


def foreign_gradients(recorded: Recorded, documents: Documents, label: int) -> dict[str, Hit]:
    """Inputs at which a gradient of one document's outputs is found at other documents."""
    given = cotangents(recorded, documents, label)
    wanted = [tensor for _, tensor in recorded.wanted]
    found = torch.autograd.grad(recorded.outputs, wanted, given, retain_graph=True, allow_unused=True)
    hits: dict[str, Hit] = {}
    for (name, value), gradient in zip(recorded.wanted, found, strict=True):
        hit = None if gradient is None else outside(gradient, documents, label, recorded.dims(value))
        if hit is not None:
            hits.setdefault(name, hit)
    return hits


def outside(gradient: torch.Tensor, documents: Documents, label: int, along: tuple[int, ...] = ()) -> Hit | None:
    """Where a gradient is not 0 outside its document; rounding is measured by its largest value."""
    if not gradient.numel() or not (along or documents.placements(gradient.shape)):
        return None
    largest = float(gradient.abs().max())
    noise = 8 * torch.finfo(gradient.dtype).eps * largest
    return documents.hit(torch.zeros_like(gradient), gradient, label, noise, along)
