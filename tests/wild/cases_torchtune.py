"""torchtune: document ids and masks of packed rows, padding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tests.wild import sources
from tests.wild.batches import ids, over
from tests.wild.case import Program, case


def _torchtune(name: str) -> Any:
    root = sources.use("torchtune")
    sources.bare(root, "torchtune", "torchtune.modules", "torchtune.data", "torchtune.utils")
    return sources.lenient(name)


def _lengths(lengths: Sequence[int]) -> Any:
    return [torch.tensor(lengths)]


@case("torchtune")
def torchtune_document_ids() -> Program:
    module = _torchtune("torchtune.modules.attention_utils")
    return Program(module._get_document_ids_from_seq_lens, over(_lengths))


@case("torchtune")
def torchtune_block_causal_mask() -> Program:
    return Program(_torchtune("torchtune.modules.attention_utils").create_block_causal_mask, over(_lengths))


@case("torchtune")
def torchtune_left_pad_sequence() -> Program:
    pad = _torchtune("torchtune.data._collate").left_pad_sequence

    def call(row: torch.Tensor, lengths: torch.Tensor) -> Any:
        return pad(list(row.split(lengths.tolist())), batch_first=True, padding_value=-100)

    return Program(call, over(lambda n: (ids(sum(n)), torch.tensor(n))))
