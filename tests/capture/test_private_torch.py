"""Private torch functions that capture and the passes reach through `packpass._compat`, used as they use them."""

from __future__ import annotations

import importlib

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from packpass import _compat


@pytest.fixture
def mode() -> FakeTensorMode:
    return FakeTensorMode(shape_env=ShapeEnv())


def test_the_shape_env_of_what_is_being_traced(mode: FakeTensorMode) -> None:
    with mode:
        assert _compat.current_shape_env() is mode.shape_env
    with pytest.raises(RuntimeError, match="outside tracing"):
        _compat.current_shape_env()


def test_unbacked_symbols_are_told_from_others(mode: FakeTensorMode) -> None:
    assert mode.shape_env is not None
    unknown = mode.shape_env.create_unbacked_symint()
    torch._check(unknown >= 2)
    assert _compat.free_unbacked_symbols(unknown)
    assert _compat.free_unbacked_symbols(unknown + 1 > 3)
    assert not _compat.free_unbacked_symbols(7)
    assert _compat.statically_known_true(unknown > 1)
    assert not _compat.statically_known_true(unknown > 2)
    assert not _compat.statically_known_true(unknown < 2)
    assert mode.shape_env.guards == []


def test_fake_tensors_know_their_mode(mode: FakeTensorMode) -> None:
    assert _compat.fake_mode_of(mode.from_tensor(torch.ones(2))) is mode
    assert _compat.fake_mode_of(torch.ones(2)) is None


def test_size_obliviousness_is_a_setting_with_a_scope() -> None:
    assert not _compat.is_size_oblivious()
    with _compat.size_oblivious():
        assert _compat.is_size_oblivious()
        with _compat.size_oblivious(False):
            assert not _compat.is_size_oblivious()
    assert not _compat.is_size_oblivious()


def test_symbols_of_a_fake_run_need_no_graph(mode: FakeTensorMode) -> None:
    env = mode.shape_env
    assert env is not None
    with _compat.ignore_fresh_symbols(mode):
        env.create_unbacked_symint()
    assert env.pending_fresh_unbacked_symbols == []
    env.create_unbacked_symint()
    assert len(env.pending_fresh_unbacked_symbols) == 1
    with _compat.ignore_fresh_symbols(None):
        pass


def test_pad_is_what_dynamo_calls_it() -> None:
    seen: list[object] = []

    def backend(gm: torch.fx.GraphModule, inputs: object) -> object:
        seen.extend(node.target for node in gm.graph.nodes)
        return gm.forward

    torch.compile(lambda x: F.pad(x, (0, 1)), backend=backend)(torch.ones(2, 3))
    assert _compat.native_pad() in seen


def test_collectives_are_recognised() -> None:
    importlib.import_module("packpass.ops")  # registers ours
    ops = torch.ops._c10d_functional
    assert _compat.is_collective(ops.all_to_all_single.default)
    assert not _compat.is_collective(ops.wait_tensor.default)
    assert _compat.is_collective(ops.all_to_all_single)  # the packet, as in Dynamo's graphs
    assert not _compat.is_collective(ops.wait_tensor)
    assert _compat.is_collective(torch.ops.packpass.all_to_all_group.default)
    assert _compat.is_collective(torch.ops.packpass.cp_to_hp.default)
    assert not _compat.is_collective(torch.ops.packpass.shard_rows.default)
    assert _compat.is_collective(torch.distributed.all_reduce)
    assert not _compat.is_collective(torch.add)
    assert not _compat.is_collective("relu")
