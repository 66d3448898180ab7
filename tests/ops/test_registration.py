"""The library as a whole: what is registered, once; its version in the compile caches; what importing costs."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from packpass.ops import _version, ops_version
from packpass.ops._version import TAG_PREFIX, tag_compile_caches

NAMES = [
    "all_to_all_group", "moved_blocks", "per_block", "row_of",
    "boundaries_passed", "check_cu_seqlens", "host_check_cu_seqlens", "host_packed_roll", "packed_flip", "packed_roll",
    "ends", "entries", "must_be_some",
    "must_equal", "must_hold", "narrow_positions", "position_ids", "segment_ids", "window_mask",
    "host_segment_spread", "segment_argmax", "segment_pad", "segment_put", "segment_recurrence", "segment_reduce",
    "segment_cdist", "segment_cdist_backward", "segment_matmul", "segment_median", "segment_pick", "segment_sort",
    "segment_topk",
    "segment_scan", "segment_softmax", "segment_softmax_backward", "segment_spread", "segment_take", "segment_unpad",
    "check_shards", "cp_packed_roll", "cp_to_hp", "host_check_shards", "host_cp_packed_roll", "host_cp_to_hp",
    "host_hp_to_cp",
    "host_shard_rows", "hp_to_cp", "shard_rows",
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
        "segment_reduce": "(Tensor x, Tensor cu_seqlens, str reduce, int dim) -> Tensor",
        "segment_argmax": "(Tensor x, Tensor cu_seqlens, bool largest, int dim) -> Tensor",
        "segment_take": "(Tensor x, Tensor cu_seqlens, Tensor positions, int dim) -> Tensor",
        "segment_spread": "(Tensor values, Tensor cu_seqlens, SymInt total) -> Tensor",
        "segment_scan": "(Tensor x, Tensor cu_seqlens, str op, int dim, bool reverse=False) -> Tensor",
        "segment_sort": "(Tensor x, Tensor cu_seqlens, bool descending, bool stable, int dim) -> (Tensor, Tensor)",
        "segment_pick": "(Tensor x, Tensor cu_seqlens, str op, int k, int dim) -> Tensor",
        "segment_topk": "(Tensor x, Tensor cu_seqlens, Tensor counts, bool largest, bool in_order) -> Tensor",
        "segment_matmul": "(Tensor a, Tensor b, Tensor sizes, SymInt total, bool a_turned, bool b_turned) -> Tensor",
        "segment_median": "(Tensor x, Tensor cu_seqlens, bool ignore_nan) -> Tensor",
        "segment_softmax": "(Tensor x, Tensor cu_seqlens, int dim, bool log) -> Tensor",
        "segment_pad": "(Tensor x, Tensor cu_seqlens, int dim, Scalar fill, bool left=False) -> Tensor",
        "shard_rows": "(Tensor cu_seqlens, SymInt local, int group_size, bool inverse, bool zigzag=True) -> Tensor",
        "cp_to_hp": "(Tensor x, Tensor cu_seqlens, int[] sections, int dim, str group, int group_size, "
        "bool zigzag=True, bool documents=False, SymInt? total=None) -> Tensor",
        "hp_to_cp": "(Tensor x, Tensor cu_seqlens, int[] sections, int dim, str group, int group_size, "
        "bool zigzag=True, bool documents=False, SymInt? total=None) -> Tensor",
        "cp_packed_roll": "(Tensor[] xs, Tensor cu_seqlens, int[] fields, int[] shifts, int[] dims, Scalar[] fills, "
        "bool[] wraps, str group, int group_size, int rank, Scalar[]? end_fills, bool[]? end_wraps, "
        "bool zigzag) -> Tensor[]",
        "all_to_all_group": "(Tensor[] inputs, str group, int group_size) -> Tensor[]",
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
    assert graph.call_function(torch.ops.packpass.must_hold.default, (cu, "holds")).is_impure()
    assert graph.call_function(torch.ops.packpass.must_be_some.default, (4, "some")).is_impure()
    graph.output(cu)
    graph.eliminate_dead_code()
    assert sum(node.op == "call_function" for node in graph.nodes) == 4


def test_version_is_in_the_cache_keys() -> None:
    assert len(ops_version()) == 16
    assert TAG_PREFIX + ops_version() in torch.compiler.config.cache_key_tag.split(";")


def test_version_covers_every_source(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Also the C++ ones: what the ops compute depends on them as well."""
    copy = tmp_path / "ops"
    shutil.copytree(Path(_version.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(_version.resources, "files", lambda package: copy)
    assert ops_version.__wrapped__() == ops_version()
    for source in sorted(path for path in copy.iterdir() if path.name.startswith("_segment")):
        before = ops_version.__wrapped__()
        source.write_bytes(source.read_bytes() + b"\n")
        assert ops_version.__wrapped__() != before, source.name


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
