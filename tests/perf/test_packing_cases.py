"""The cases of packing: their data, their checks, what they make of what they found; and short runs."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest
import torch
from torch import Tensor

from packpass import ops
from packpass.decisions.records import Refusal, Rewrite
from packpass.reports.report import Report
from perf.__main__ import main
from perf.cases import pack_ops, padding
from perf.cases.padding import SHARES, TEXT, Found, Sizes, batches_of, error_of, fitting
from perf.models.padded import IGNORE, Config, Decoder, Encoder, batch_of, lengths_for
from perf.registry import Context, cases
from perf.results import CaseResult

SMALL = Config(hidden=16, heads=2, layers=1, longest=32)
SIZES = Sizes(SMALL, 4, 0.1)


def test_cases_are_there() -> None:
    assert {"padding", "pack_ops", "expansion"} <= set(cases())


# === padding: data ===============================================================================================


@pytest.mark.parametrize("rows", [1, 2, 5, 16])
@pytest.mark.parametrize("share", SHARES)
def test_lengths_leave_the_share_empty(share: float, rows: int) -> None:
    lengths = lengths_for(share, rows, 512)
    assert len(lengths) == rows
    assert all(0 < n <= 512 for n in lengths)
    assert abs(sum(lengths) - (1 - share) * rows * 512) <= 1
    assert len(set(lengths)) == (1 if share == 0 else rows)


def test_labels_are_tokens_or_the_next_ones() -> None:
    own = batch_of([b"abc", b"", b"abcdefgh"], 5, next_token=False)
    following = batch_of([b"abc", b"", b"abcdefgh"], 5, next_token=True)
    assert own.mask.sum(1).tolist() == [3, 0, 5]
    assert own.tokens == 8
    assert own.padding == pytest.approx(7 / 15)
    assert own.labels.tolist()[0] == [97, 98, 99, IGNORE, IGNORE]
    assert following.labels.tolist() == [[98, 99] + 3 * [IGNORE], 5 * [IGNORE], [98, 99, 100, 101, IGNORE]]
    assert (own.ids[~own.mask] == 0).all()


def test_batches_are_text_with_the_padding_they_say() -> None:
    batches = batches_of(SIZES, next_token=False)
    assert list(batches) == ["0%", "30%", "60%", "90%", TEXT]
    for share, batch in zip(SHARES, batches.values(), strict=False):
        assert batch.padding == pytest.approx(share, abs=0.01)
    assert all(batch.ids.shape == (4, 32) for batch in batches.values())
    assert torch.equal(batches["0%"].labels, batches["0%"].ids)


@pytest.mark.parametrize("model_class", [Encoder, Decoder])
def test_models_do_not_see_padding(model_class: type[Encoder]) -> None:
    torch.manual_seed(0)
    model = model_class(SMALL)
    batch = batches_of(SIZES, next_token=True)["60%"]
    loss, logits = model(*batch.arguments())
    dirty = torch.where(batch.mask, batch.ids, 7)
    other_loss, other = model(dirty, batch.mask, batch.labels)
    torch.testing.assert_close(other_loss, loss)
    torch.testing.assert_close(other[batch.mask], logits[batch.mask])


def test_the_decoder_is_causal() -> None:
    torch.manual_seed(0)
    model = Decoder(SMALL)
    batch = batches_of(SIZES, next_token=True)["0%"]
    changed = batch.ids.clone()
    changed[:, 20] += 1
    logits, other = (model(ids, batch.mask, batch.labels)[1] for ids in (batch.ids, changed))
    torch.testing.assert_close(other[:, :20], logits[:, :20])
    assert not torch.allclose(other[:, 20:], logits[:, 20:])


# === padding: checks and targets =================================================================================


class Changed(Encoder):
    """Differs from the encoder where it is told to."""

    where = "nowhere"

    def forward(self, ids: Tensor, mask: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        loss, logits = super().forward(ids, mask, labels)
        if self.where == "padding":
            logits = torch.where(mask[..., None], logits, torch.nan)
        elif self.where == "a token":
            logits = logits + 0.1 * torch.nn.functional.pad(torch.ones(1, 1, 1), (0, 0, 0, mask.shape[1] - 1))
        elif self.where == "nan":
            logits = logits * torch.nan
        elif self.where == "loss":
            loss = loss + 0.1
        elif self.where == "gradients":
            loss = loss + (self.head.bias - self.head.bias.detach()).sum() * 1e-3
        return loss, logits


@pytest.mark.parametrize(
    ("where", "seen"),
    [("nowhere", False), ("padding", False), *((w, True) for w in ("a token", "nan", "loss", "gradients"))],
)
def test_errors_at_real_tokens_and_in_gradients_are_seen(where: str, seen: bool) -> None:
    torch.manual_seed(0)
    model = Changed(SMALL)
    batch = batches_of(SIZES, next_token=False)["60%"]

    def call(*arguments: Tensor) -> Any:
        model.where = where
        try:
            return model(*arguments)
        finally:
            model.where = "nowhere"

    assert (error_of(model, call, batch) > 1e-3) is seen


def test_rows_that_fit() -> None:
    assert fitting(padding.BUDGET // 4, 2) == 8
    assert fitting(padding.BUDGET // 4 + 1, 2) == 7


def targets(
    error: float = 1e-7, over_stock: float = 0.4, report: Report | None = None
) -> tuple[CaseResult, dict[str, str]]:
    result = CaseResult("c", "title")
    found = {
        key: Found(batch, error, 1.0, 1.0 if key == "0%" else over_stock, 40)
        for key, batch in batches_of(SIZES, next_token=False).items()
    }
    if report is None:
        report = Report()
        report.rewrites.append(Rewrite("eliminate_padding", "m.py:1", "padded", "packed"))
    padding._targets(result, "model", found, 100, 1e-5, 2, report)
    return result, {target.name: target.verdict for target in result.targets}


def test_targets() -> None:
    result, verdicts = targets()
    assert set(verdicts.values()) == {"hit"}
    assert not result.wrong
    result, verdicts = targets(over_stock=0.6)
    assert [name for name, verdict in verdicts.items() if verdict != "hit"] == ["model: step at 60 % padding, of stock"]


def test_a_wrong_result_turns_the_report_red() -> None:
    assert targets(error=1e-3)[0].wrong
    assert targets(error=float("inf"))[0].wrong


def test_a_model_that_is_refused_misses_its_target() -> None:
    report = Report()
    report.refusals.append(Refusal("eliminate_padding", "no-rule", "reason", "m.py:1"))
    result, verdicts = targets(report=report)
    assert verdicts["model: models rewritten"] == "MISSED"
    assert result.targets[0].note == "[no-rule] reason"


# === pack_ops ====================================================================================================


def test_what_pack_gets_wrong_is_seen() -> None:
    data = pack_ops._data(Context(quick=True))
    assert [len(entry.fields) for entry in data.values()] == [4, 1]
    for entry in data.values():
        total = int(entry.mask.sum())

        def pack(fields: Any, mask: Tensor, total: int) -> Any:
            return ops.pack(fields, mask, total=total)

        def shifted(fields: Any, mask: Tensor, total: int) -> Any:
            packed, batch = ops.pack(fields, mask, total=total)
            return {name: x.roll(1, 0) for name, x in packed.items()}, batch

        def kept(packed: Any, batch: Any) -> Any:
            return {name: x + 1 for name, x in ops.unpack(packed, batch).items()}

        assert pack_ops.wrong(entry, pack, ops.unpack, total) == ""
        assert "is not its real tokens" in pack_ops.wrong(entry, shifted, ops.unpack, total)
        if len(entry.fields) == 1:
            assert "does not come back" in pack_ops.wrong(entry, pack, kept, total)


def test_the_floor_moves_as_many_bytes() -> None:
    data = pack_ops._data(Context(quick=True))
    name = next(name for name in data if name.startswith("hidden"))
    entry = data[name]
    tokens, slots = int(entry.mask.sum()), entry.mask.numel()
    packed, batch = ops.pack(entry.fields, entry.mask, total=tokens)
    there, back = (2 * floor.numel() for floor in pack_ops._floors(entry, packed, batch))
    plan = tokens * (8 + 8 + 1) + slots * 8  # source, positions, padding mask; slots
    assert abs(there - (2 * tokens * 512 * 4 + slots + plan)) <= 1
    assert abs(back - ((tokens + slots) * 512 * 4 + slots * 8)) <= 1


# === Runs ========================================================================================================


def ran(name: str, tmp_path: pathlib.Path) -> dict[str, Any]:
    assert main(["--quick", "--case", name, "--out", str(tmp_path)]) == 0
    found: dict[str, Any] = json.loads((tmp_path / f"{name}.json").read_text())
    assert not found["wrong"]
    assert found["error"] is None
    return {target["name"]: target["figure"] for target in found["targets"]}


@pytest.mark.slow
def test_pack_ops_runs(tmp_path: pathlib.Path) -> None:
    figures = ran("pack_ops", tmp_path)
    assert [value for name, value in figures.items() if "kernels" in name] == [1, 1]


@pytest.mark.slow
def test_expansion_runs(tmp_path: pathlib.Path) -> None:
    figures = ran("expansion", tmp_path)
    for count in (1, 4, 16):
        assert figures[f"{count} samples: packpass"] <= 1.0001
        assert figures[f"{count} samples: eager, boundaries of the data loader"] > 1.05


@pytest.mark.slow
def test_padding_runs(tmp_path: pathlib.Path) -> None:
    figures = ran("padding", tmp_path)
    for name in ("encoder", "decoder"):
        assert figures[f"{name}: models rewritten"] == 1
        assert figures[f"{name}: graphs for all batches"] == 2
        assert figures[f"{name}: largest error at real tokens and in gradients"] <= 1e-5
