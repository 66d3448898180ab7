"""megatron-core 0.13: rotary embeddings document by document, joined with ``cat``."""

from __future__ import annotations

from tests.wild import megatron
from tests.wild.case import Program, case

VERSION = "0.13"


@case("megatron-core==0.13.1")
def megatron_0_13_rope() -> Program:
    return megatron.rope(VERSION)


@case("megatron-core==0.13.1")
def megatron_0_13_rope_of_latent_attention() -> Program:
    return megatron.rope(VERSION, multi_latent_attention=True, mscale=1.25)


@case("megatron-core==0.13.1")
def megatron_0_13_rope_interleaved() -> Program:
    return megatron.rope(VERSION, rotary_interleaved=True)


@case("megatron-core==0.13.1")
def megatron_0_13_positions_and_masks() -> Program:
    return megatron.positions_and_masks(VERSION)
