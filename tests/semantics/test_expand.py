"""Taking operations apart: what they are made of holds for every size, or they are not taken apart."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx
from torch._subclasses.fake_tensor import unset_fake_temporarily

from packpass._compat import sizes_of_nobody
from packpass.semantics.expand import expand, fails_when_empty
from packpass.semantics.names import op_name
from tests.semantics.graphs import node_of


@pytest.fixture
def rows() -> Iterator[tuple[torch.Tensor, torch.Tensor, int]]:
    """Two fakes of documents, of one length that nobody knows; the first requires a gradient."""
    with sizes_of_nobody() as (mode, size):
        length = size(0)
        x, y = torch.empty(length, 4, requires_grad=True), torch.empty(length, 4)
    with mode:
        yield x, y, length


Rows = tuple[torch.Tensor, torch.Tensor, int]


def test_a_function_of_others_is_these(rows: Rows) -> None:
    pieces = expand(node_of(F.softmin, rows[0], 1))
    assert pieces is not None
    assert [op_name(piece) for piece in pieces.nodes] == ["neg", "softmax"]
    assert pieces.composite
    assert pieces.results == pieces.nodes[-1:]


def test_pieces_are_computed_from_the_operands_alone(rows: Rows) -> None:
    node = node_of(torch.logaddexp2, *rows[:2])
    pieces = expand(node)
    assert pieces is not None
    known = {placeholder for placeholder, _ in pieces.inputs}
    assert [operand for _, operand in pieces.inputs] == node.all_input_nodes
    for piece in pieces.nodes:
        assert set(piece.all_input_nodes) <= known
        known.add(piece)
    assert set(pieces.results) <= known


@pytest.mark.parametrize("call", [F.softmin, F.tanhshrink, F.softsign, torch.fliplr, torch.sinc])
def test_pieces_compute_what_the_call_computes(rows: Rows, call: Any) -> None:
    pieces = expand(node_of(call, rows[1], *((1,) if call is F.softmin else ())))
    assert pieces is not None
    with unset_fake_temporarily():
        x = torch.randn(6, 4)
        env: dict[fx.Node, Any] = {pieces.inputs[0][0]: x}
        for piece in pieces.nodes:
            target: Any = piece.target
            args, kwargs = fx.map_arg((piece.args, dict(piece.kwargs)), env.__getitem__)
            method = piece.op == "call_method"
            env[piece] = getattr(args[0], target)(*args[1:], **kwargs) if method else target(*args, **kwargs)
        torch.testing.assert_close(env[pieces.results[0]], call(x, 1) if call is F.softmin else call(x))


def test_a_definition_says_nothing_about_gradients(rows: Rows) -> None:
    pieces = expand(node_of(torch.ops.aten.huber_loss.default, *rows[:2]))
    assert pieces is not None
    assert not pieces.composite


def test_random_numbers_are_not_taken_apart(rows: Rows) -> None:
    node = node_of(F.dropout, rows[0], run=False)
    node.meta["example_value"] = rows[0]
    assert expand(node) is None


def test_what_writes_its_operand_is_not_taken_apart(rows: Rows) -> None:
    assert expand(node_of(F.relu, rows[1], True)) is None


def test_kernels_without_a_definition_are_not_taken_apart(rows: Rows) -> None:
    node = node_of(torch.ops.aten._fft_c2r.default, rows[1], [0], 0, 6, run=False)
    node.meta["example_value"] = rows[1]
    assert expand(node) is None


def test_what_asks_for_a_length_is_not_taken_apart(rows: Rows) -> None:
    """The first dimension of size 3 is the one of the products: which that is, only the length says."""
    node = node_of(torch.cross, *rows[:2], run=False)
    node.meta["example_value"] = rows[1]
    assert expand(node) is None


def test_a_result_of_another_dtype_is_none_of_the_call(rows: Rows) -> None:
    node = node_of(F.softmin, rows[1], 1)
    assert expand(node) is not None
    node.meta["example_value"] = rows[1].double()
    assert expand(node) is None


def test_whether_documents_without_slots_raise(rows: Rows) -> None:
    largest, total = (node_of(call, rows[1], 0) for call in (torch.amax, torch.sum))
    assert fails_when_empty(largest, [(largest.all_input_nodes[0], 0)]) is True
    assert fails_when_empty(total, [(total.all_input_nodes[0], 0)]) is False


def test_modes_are_not_entered() -> None:
    """To take such a call apart is to make it: autocast would stay entered, and weights that it has cast stay as they
    were through all later steps."""
    graph = fx.Graph()
    enter = graph.call_function(torch.amp.autocast_mode._enter_autocast, ("cpu", torch.bfloat16, True, True))
    leave = graph.call_function(torch._C._set_grad_enabled, (False,))
    assert expand(enter) is None
    assert expand(leave) is None
    assert torch.is_grad_enabled()
    assert not torch.is_autocast_enabled("cpu")
