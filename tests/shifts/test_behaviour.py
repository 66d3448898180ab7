"""What surrounds the rewrite: options, boundaries of every kind, explanations, compiled code, cost."""

from __future__ import annotations

import dataclasses
import re
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo.utils import counters

import packpass
from packpass.decisions.records import RefusedError
from tests.shifts import codebases, models
from tests.shifts.harness import EAGER, REWRITE, ROWS, cotangents, differences, inputs, one_by_one, run

IDS = torch.arange(5, 25).view(1, 20)
CU = torch.tensor([0, 5, 6, 6, 14, 20], dtype=torch.int32)


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> None:
    torch._dynamo.reset()
    counters.clear()


def labels_of(input_ids: Tensor, cu_seqlens: Tensor) -> Tensor:
    labels = torch.roll(input_ids, -1, 1)
    labels[:, -1] = -100
    return labels


def wanted(x: Tensor, cu: Tensor, shift: int = -1, fill: Any = -100, **padded: Tensor) -> Tensor:
    out: Tensor = packpass.ops.packed_roll(x, cu, shift, -1, fill, **padded)
    return out


def compiled(fn: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    settings = {**EAGER, **{f"packpass.{k}": v for k, v in options.items()}}
    return torch.compile(fn, backend=packpass.backend, options=settings)


# === Options =================================================================================================


@pytest.mark.parametrize("options", [{"fix_shifts": "off"}, {"fix_shifts": "declared"}, {"disable": ["pack_shifts"]}])
def test_switched_off(options: dict[str, Any]) -> None:
    report = packpass.explain(labels_of, options={**EAGER, **{f"packpass.{k}": v for k, v in options.items()}})(IDS, CU)
    assert torch.equal(report.result, labels_of(IDS, CU))
    assert (report.rewrites, report.refusals) == ([], [])


def test_verify_accepts_what_is_changed_on_purpose() -> None:
    def fn(input_ids: Tensor, cu_seqlens: Tensor) -> tuple[Tensor, Tensor]:
        rolled = input_ids.clone()
        for s, e in zip(cu_seqlens[:-1].tolist(), cu_seqlens[1:].tolist(), strict=False):
            rolled[:, s:e] = torch.roll(input_ids[:, s:e], 1, 1)
        first = labels_of(input_ids, cu_seqlens)
        return rolled, labels_of(first, cu_seqlens)

    rolled, second = compiled(fn, verify=True)(IDS, CU)
    assert torch.equal(rolled, packpass.ops.packed_roll(IDS, CU, 1, -1, None))
    assert torch.equal(second, wanted(IDS, CU, -2))


def look_ahead(input_ids: Tensor, cu_seqlens: Tensor) -> Tensor:
    return torch.roll(input_ids, -1, 1) == 7


def test_on_refusal() -> None:
    with pytest.raises(RefusedError, match="no-fill"):
        compiled(look_ahead, on_refusal="raise")(IDS, CU)
    torch._dynamo.reset()
    with pytest.warns(UserWarning, match="no-fill"):
        compiled(look_ahead, on_refusal="warn")(IDS, CU)
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled(look_ahead)(IDS, CU)


# === Boundaries ==============================================================================================


def padded_labels(input_ids: Tensor, cu_seqlens_q: Tensor, cu_seqlens_q_padded: Tensor) -> Tensor:
    return labels_of(input_ids, cu_seqlens_q)


def test_padded_boundaries_give_logical_ends() -> None:
    cu, padded = torch.tensor([0, 3, 8, 9]), torch.tensor([0, 4, 12, 16])
    x = torch.arange(16).view(1, -1) + 50
    out = compiled(padded_labels)(x, cu, padded)
    assert torch.equal(out, wanted(x, cu, cu_seqlens_padded=padded))
    assert out[0, 2] == -100
    assert out[0, 8] == -100


class Parameters:
    """What a training framework passes along."""

    def __init__(self, cu: Tensor, padded: Tensor | None = None) -> None:
        self.qkv_format = "thd"
        self.cu_seqlens_q, self.cu_seqlens_kv = cu, cu
        self.cu_seqlens_q_padded, self.cu_seqlens_kv_padded = padded, padded
        self.max_seqlen_q = int((cu[1:] - cu[:-1]).max())


def by_parameters(input_ids: Tensor, packed_seq_params: Any = None) -> Tensor:
    return labels_of(input_ids, input_ids)


def test_parameter_objects() -> None:
    assert torch.equal(compiled(by_parameters)(IDS, Parameters(CU)), wanted(IDS, CU))
    torch._dynamo.reset()
    cu, padded = torch.tensor([0, 3, 8, 9]), torch.tensor([0, 4, 12, 16])
    x = torch.arange(16).view(1, -1) + 50
    out = compiled(by_parameters)(x, packed_seq_params=Parameters(cu, padded))
    assert torch.equal(out, wanted(x, cu, cu_seqlens_padded=padded))
    torch._dynamo.reset()
    assert torch.equal(compiled(by_parameters)(x), by_parameters(x))


@dataclasses.dataclass
class Batch:
    input_ids: Tensor
    cu_seqlens: Tensor | None = None


class Named(NamedTuple):
    input_ids: Tensor
    cu_seqlens: Tensor


def by_attribute(batch: Any) -> Tensor:
    return labels_of(batch.input_ids, batch.input_ids)


def by_item(batch: dict[str, Any]) -> Tensor:
    return labels_of(batch["input_ids"], batch["input_ids"])


def by_keyword(input_ids: Tensor, **kwargs: Any) -> Tensor:
    return labels_of(input_ids, input_ids)


@pytest.mark.parametrize(
    ("fn", "arguments"),
    [
        (by_attribute, {"batch": Batch(IDS, CU)}),
        (by_attribute, {"batch": Named(IDS, CU)}),
        (by_item, {"batch": {"input_ids": IDS, "cu_seqlens": CU}}),
        (by_item, {"batch": {"input_ids": IDS, "packed_seq_params": Parameters(CU)}}),
        (by_keyword, {"input_ids": IDS, "cu_seq_lens_q": CU, "cu_seq_lens_k": CU, "max_length_q": 8}),
        (by_keyword, {"input_ids": IDS, "packed_seq_params": Parameters(CU)}),
    ],
)
def test_boundaries_in_containers_that_nobody_reads(fn: Callable[..., Tensor], arguments: dict[str, Any]) -> None:
    assert torch.equal(compiled(fn)(**arguments), wanted(IDS, CU))


def test_containers_without_boundaries() -> None:
    assert torch.equal(compiled(by_attribute)(Batch(IDS)), by_attribute(Batch(IDS)))


@pytest.mark.parametrize(
    "cu",
    [
        CU * 2,  # of a longer row: this is a shard
        CU.flip(0),
        CU - 1,
    ],
)
def test_values_that_do_not_fit_change_nothing(cu: Tensor) -> None:
    report = packpass.explain(labels_of, options=EAGER)(IDS, cu)
    assert len(report.rewrites) == 1
    assert torch.equal(report.result, labels_of(IDS, cu))


@pytest.mark.parametrize("cu", [CU.float(), CU.view(1, -1), torch.arange(40)])
def test_what_cannot_be_boundaries_is_refused(cu: Tensor) -> None:
    report = packpass.explain(labels_of, options=EAGER)(IDS, cu)
    assert [r.code for r in report.refusals] == ["not-boundaries"]
    assert report.rewrites == []
    assert torch.equal(report.result, labels_of(IDS, cu))


def test_copies_of_the_last_boundary() -> None:
    cu = torch.cat((CU, CU[-1:].expand(7)))
    assert torch.equal(compiled(labels_of)(IDS, cu), wanted(IDS, CU))


@pytest.mark.parametrize("fullgraph", [False, True])
@pytest.mark.parametrize("dynamic", [None, True, False])
def test_any_way_of_compiling(fullgraph: bool, dynamic: bool | None) -> None:
    fn = torch.compile(labels_of, backend=packpass.backend, options=EAGER, fullgraph=fullgraph, dynamic=dynamic)
    assert torch.equal(fn(IDS, CU), wanted(IDS, CU))
    x, cu = torch.arange(9).view(1, 9), torch.tensor([0, 9], dtype=torch.int32)
    assert torch.equal(fn(x, cu), wanted(x, cu))


def test_fifty_batches_two_graphs() -> None:
    fn = compiled(labels_of)
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        n, total = (
            int(torch.randint(1, 30, (), generator=generator)),
            int(torch.randint(30, 90, (), generator=generator)),
        )
        cuts = torch.randint(0, total + 1, (n - 1,), generator=generator).sort().values
        cu = torch.cat((torch.tensor([0]), cuts, torch.tensor([total]))).int()
        x = torch.randint(0, 99, (1, total), generator=generator)
        assert torch.equal(fn(x, cu), wanted(x, cu))
    assert counters["stats"]["unique_graphs"] <= 2


def test_a_distance_that_changes_from_call_to_call() -> None:
    def fn(input_ids: Tensor, cu_seqlens: Tensor, depth: int) -> Tensor:
        y = torch.roll(input_ids, shifts=-depth, dims=-1)
        y[..., -depth:] = 0
        return y

    call = compiled(fn)
    for depth in (1, 2, 3):
        assert torch.equal(call(IDS, CU, depth), wanted(IDS, CU, -depth, 0))


def test_rows_of_other_lengths_are_left_alone_from_then_on() -> None:
    def fn(input_ids: Tensor, labels: Tensor, cu_seqlens: Tensor) -> tuple[Tensor, Tensor]:
        return labels_of(input_ids, cu_seqlens), labels * 2

    call = compiled(fn)
    for total in (20, 23, 26):
        x, cu = torch.arange(total).view(1, -1), torch.tensor([0, 9, total])
        assert torch.equal(call(x, x, cu)[0], wanted(x, cu))
    assert torch.equal(call(x, IDS, cu)[0], labels_of(x, cu))


def test_boundaries_may_be_refilled_before_the_backward() -> None:
    def fn(hidden_states: Tensor, cu_seqlens: Tensor) -> Tensor:
        y = torch.roll(hidden_states, 1, 1)
        y[:, 0] = 0
        return y

    x, cu = torch.randn(1, 20, 3, requires_grad=True), CU.clone()
    out = compiled(fn, inner_backend="aot_eager")(x, cu)
    cu.fill_(0)
    g = torch.randn_like(out)
    (grad,) = torch.autograd.grad(out, x, g)
    assert torch.equal(grad, packpass.ops.packed_roll(g, CU, -1, 1, 0))


def test_no_value_crosses_a_boundary() -> None:
    x = torch.randn(1, 20, 3)
    x[:, :5] = float("nan")
    x.requires_grad_()

    def fn(hidden_states: Tensor, cu_seqlens: Tensor) -> Tensor:
        return F.pad(hidden_states, (0, 0, 1, -1))

    out = compiled(fn, inner_backend="aot_eager")(x, CU)
    assert not out[:, 5:].isnan().any()
    (grad,) = torch.autograd.grad(out[:, 5], x, torch.full((1, 3), float("inf")))
    assert torch.equal(grad, torch.zeros_like(grad))


def test_a_graph_break_in_between() -> None:
    def fn(input_ids: Tensor, cu_seqlens: Tensor) -> tuple[Tensor, Tensor]:
        first = labels_of(input_ids, cu_seqlens)
        torch._dynamo.graph_break()
        return first, labels_of(first, cu_seqlens) + 0 * cu_seqlens.sum()

    report = packpass.explain(fn, options=EAGER)(IDS, CU)
    assert torch.equal(report.result[0], wanted(IDS, CU))
    assert report.graph_breaks == 1


def test_inputs_that_are_shifted_in_place() -> None:
    def fn(input_ids: Tensor, cu_seqlens: Tensor) -> Tensor:
        input_ids[:, :-1] = input_ids[:, 1:].clone()
        input_ids[:, -1] = 0
        return input_ids * 2

    x = IDS.clone()
    out = compiled(fn)(x, CU)
    assert torch.equal(x, wanted(IDS, CU, fill=0))
    assert torch.equal(out, x * 2)


# === Explained ===============================================================================================


def test_explains_where_and_why() -> None:
    report = packpass.explain(labels_of, options=EAGER)(IDS, CU)
    (rewrite,) = report.rewrites
    assert re.search(r"test_behaviour\.py:\d+$", rewrite.location)
    assert rewrite.before == "shift by -1 along dim 1, -100 at the row's end"
    assert rewrite.after == "packed_roll by -1, -100 at every document's end"
    assert rewrite.details["source"] == "input cu_seqlens"
    assert "input cu_seqlens" in str(report)
    assert "l_input_ids_" in report.layout
    assert "input cu_seqlens" in report.to_json()


def test_without_packed_rows_there_is_no_layout() -> None:
    assert packpass.explain(lambda x: x * 2, options=EAGER)(IDS).layout == ""


def test_the_command_line_prints_the_layout(capsys: pytest.CaptureFixture[str]) -> None:
    from packpass.cli.main import main

    command = ["explain", "tests.shifts.codebases:packed_batch", "--option", "packpass.inner_backend=eager"]
    assert main(command) == 0
    assert "packed dim" not in capsys.readouterr().out
    assert main([*command, "--layout"]) == 0
    assert "packed dim" in capsys.readouterr().out


# === Compiled code ===========================================================================================


@pytest.mark.parametrize(
    "name", ["TokenShift", *(pytest.param(n, marks=pytest.mark.slow) for n in ("MultiTokenPrediction", "CausalLM"))]
)
def test_end_to_end_through_inductor(name: str) -> None:
    assert codebases
    assert models
    prog = REWRITE[name]
    module = prog.instance()
    fn = torch.compile(module, backend=packpass.backend)
    for row in ROWS[:3]:
        got = run(fn, inputs(prog, row), module, cotangents(row))
        assert differences(one_by_one(prog, row, got), got, row) == []
    assert counters["stats"]["unique_graphs"] <= 2


def test_depths_and_fields_are_one_kernel() -> None:
    def fn(input_ids: Tensor, labels: Tensor, loss_mask: Tensor, cu_seqlens: Tensor) -> list[Tensor]:
        out = []
        for _ in range(3):
            input_ids, labels = torch.roll(input_ids, -1, -1), torch.roll(labels, -1, -1)
            loss_mask = torch.roll(loss_mask, -1, -1)
            input_ids[..., -1], labels[..., -1], loss_mask[..., -1] = 0, -100, 0
            out += [input_ids, labels, loss_mask]
        return out

    from packpass._compat import empty_compile_caches, generated_code

    x = torch.randint(0, 9, (1, 256))
    cu = torch.tensor([0, 100, 101, 256], dtype=torch.int32)
    with empty_compile_caches(), generated_code() as sources:
        out = torch.compile(fn, backend=packpass.backend)(x, x, x.float(), cu)
    for d in range(3):
        assert torch.equal(out[3 * d], wanted(x, cu, -d - 1, 0))
        assert torch.equal(out[3 * d + 1], wanted(x, cu, -d - 1))
        assert torch.equal(out[3 * d + 2], wanted(x.float(), cu, -d - 1, 0))
    kernels = set(re.findall(r"\bcpp_fused_\w+", "".join(sources)))
    assert len(kernels) == 1, kernels


# === Cost ====================================================================================================


class Plain(nn.Module):
    """Nothing to find: no boundaries."""

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(250):
            x = torch.cat((x[:, 1:], x[:, :1] * 2), 1)
        return x


def test_a_graph_without_boundaries_is_only_glanced_at() -> None:
    from passes import pack_shifts
    from passes.context import PassContext

    graphs = []

    def keep(gm: Any, inputs: Any) -> Any:
        graphs.append(gm)
        return gm.forward

    torch.compile(Plain(), backend=keep)(torch.randn(2, 8))
    gm = graphs[0]
    nodes, code = len(gm.graph.nodes), gm.code
    best = min(_seconds(lambda: pack_shifts.run(gm, PassContext())) for _ in range(5))
    assert best < 5e-6 * nodes  # 2 us on an idle machine
    assert gm.code == code


def _seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def test_a_frame_without_shifts_does_not_get_its_boundaries() -> None:
    """Compiled as under stock torch: an argument that nothing uses is no input of the graph."""
    seen: list[list[str]] = []

    def fn(input_ids: Tensor, cu_seqlens: Tensor) -> Tensor:
        return torch.cat((input_ids, input_ids), 1) * 2

    from packpass.engine import backend

    original = backend.run_passes

    def spy(gm: Any, *args: Any) -> Any:
        seen.append([n.name for n in gm.graph.nodes if n.op == "placeholder"])
        return original(gm, *args)

    backend.run_passes = spy  # type: ignore[assignment]
    try:
        compiled(fn)(IDS, CU)
    finally:
        backend.run_passes = original
    assert seen == [["l_input_ids_"]]


def test_a_declared_row_without_a_group_asks_no_rank(caplog: pytest.LogCaptureFixture) -> None:
    def declared(x: Tensor, cu: Tensor) -> Tensor:
        return labels_of(packpass.packed(x, cu), cu)

    with caplog.at_level("WARNING", logger="packpass"):
        got = torch.compile(declared, backend=packpass.backend, options=EAGER)(IDS, CU)
    assert torch.equal(got, wanted(IDS, CU))
    assert not caplog.records
