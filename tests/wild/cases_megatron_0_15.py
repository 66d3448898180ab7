"""megatron-core 0.15: a branch on the last boundary, frequencies document by document, applied once."""

from __future__ import annotations

from tests.wild import megatron
from tests.wild.case import Program, case

VERSION = "0.15"


@case("megatron-core==0.15.3")
def megatron_0_15_rope() -> Program:
    return megatron.rope(VERSION)


@case("megatron-core==0.15.3")
def megatron_0_15_rope_of_latent_attention() -> Program:
    return megatron.rope(VERSION, multi_latent_attention=True)


@case("megatron-core==0.15.3")
def megatron_0_15_positions_and_masks() -> Program:
    return megatron.positions_and_masks(VERSION)
