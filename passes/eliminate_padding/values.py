"""What the packed graph has of a value of the padded graph, and what a batch must satisfy for that."""

from __future__ import annotations

import dataclasses
from typing import Any

from torch import Tensor, fx

from passes.eliminate_padding.tile import Dims, Part


@dataclasses.dataclass(frozen=True)
class Condition:
    """What a batch must satisfy to be packed, checked on the host before each call: see `packpass.engine.unpadded`.

    ``parts``: what the slots of ``node`` count, outermost first."""

    kind: str
    value: int = 0
    node: fx.Node | None = None
    parts: tuple[Part, ...] = ()


@dataclasses.dataclass(frozen=True)
class Fill:
    """One number at all padding; ``given``: if a batch satisfies this."""

    value: float
    given: Condition | None = None


ZERO = Fill(0)


@dataclasses.dataclass(frozen=True, eq=False)
class Packed:
    """The packed form of a value: ``dims`` are those of the padded value. In ``node``'s own shape the dimension of the
    batch is gone (a merged one keeps its features) and that of the tokens has T slots.

    ``fill``: what the padded value is at all padding, where that is known, so that it can be had whole again.
    """

    node: fx.Node
    dims: Dims
    fill: Fill | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Scores:
    """Attention scores or weights that are not computed: ``softmax(q k^T * scale + bias)``.

    ``dims`` are ``[..., S, K]``. ``bias``: cells as in `facts.Table`, None for none. ``softmaxed``: these are weights.
    ``dropped``: cells, True where weights are set to 0. ``grad``: the grad mode in which they would be computed.
    """

    query: Packed
    key: Packed
    dims: Dims
    scale: float
    bias: Tensor | None = None
    softmaxed: bool = False
    dropped: Tensor | None = None
    grad: Any = None


@dataclasses.dataclass(frozen=True, eq=False)
class Value:
    """The forms of one value; ``items`` instead for a tuple that has no whole form. A whole form is a node, or a
    number."""

    whole: Any = None
    packed: Packed | Scores | None = None
    items: tuple[Value, ...] | None = None
