"""The library as a whole: what is registered, once; its version in the compile caches; what importing costs."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from packpass.ops import ops_version
from packpass.ops._version import TAG_PREFIX, tag_compile_caches

NAMES = [
    "boundaries_passed", "check_cu_seqlens", "host_check_cu_seqlens", "host_packed_roll", "packed_flip", "packed_roll",
    "position_ids", "segment_ids", "window_mask",
]  # fmt: skip


def run(program: str) -> str:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.parametrize("name", NAMES)
def test_ops_are_compliant(name: str) -> None:
    op = getattr(torch.ops.packpass, name).default
    assert torch.Tag.pt2_compliant_tag in op.tags
    assert not op._schema.is_mutable


def test_schemas() -> None:
    """Other parts build these calls by position."""
    schemas = {
        "packed_roll": "(Tensor x, Tensor cu_seqlens, int shift, int dim, Scalar? fill, "
        "Tensor? cu_seqlens_padded=None) -> Tensor",
        "packed_flip": "(Tensor x, Tensor cu_seqlens, int dim) -> Tensor",
        "position_ids": "(Tensor cu_seqlens, SymInt total) -> Tensor",
        "segment_ids": "(Tensor cu_seqlens, SymInt total) -> Tensor",
        "window_mask": "(Tensor cu_seqlens, SymInt total, int front, int back) -> Tensor",
        "check_cu_seqlens": "(Tensor cu_seqlens, SymInt total, Tensor? cu_seqlens_padded=None) -> ()",
    }
    for name, schema in schemas.items():
        assert str(getattr(torch.ops.packpass, name).default._schema) == f"packpass::{name}{schema}"


def test_registering_twice_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="Only a single TORCH_LIBRARY"):
        torch.library.Library("packpass", "DEF")


def test_decompositions_cannot_be_replaced_by_accident() -> None:
    from packpass._compat import register_inductor_decomposition

    with pytest.raises(RuntimeError, match="already has an Inductor decomposition"):
        register_inductor_decomposition(torch.ops.packpass.packed_roll.default, lambda *_: None)


def test_check_is_impure_everywhere() -> None:
    graph = torch.fx.Graph()
    cu = graph.placeholder("cu")
    for op in (torch.ops.packpass.check_cu_seqlens.default, torch.ops.packpass.host_check_cu_seqlens.default):
        assert graph.call_function(op, (cu, 4)).is_impure()
    graph.output(cu)
    graph.eliminate_dead_code()
    assert sum(node.op == "call_function" for node in graph.nodes) == 2


def test_version_is_in_the_cache_keys() -> None:
    assert len(ops_version()) == 16
    assert TAG_PREFIX + ops_version() in torch.compiler.config.cache_key_tag.split(";")


def test_version_keeps_the_users_tag() -> None:
    ours = TAG_PREFIX + ops_version()
    with torch.compiler.config.patch(cache_key_tag="team a"):
        tag_compile_caches()
        tag_compile_caches()
        assert torch.compiler.config.cache_key_tag == f"team a;{ours}"


def test_another_process() -> None:
    """Importing is enough to register, and the version is the same everywhere."""
    program = "import torch, packpass; print(packpass.ops.ops_version()); print(torch.ops.packpass.window_mask.default)"
    assert run(program).split() == [ops_version(), "packpass.window_mask.default"]
