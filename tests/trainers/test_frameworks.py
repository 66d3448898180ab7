"""Trainers that people do not write themselves: transformers, accelerate, Lightning."""

from __future__ import annotations

import dataclasses
import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close
from torch.utils.data import DataLoader, Dataset

import packpass
from tests.trainers.models import LENGTHS, Model, Reference, batches, made
from tests.trainers.training import WHOLE, Seen, gradients, watching


class Rows(Dataset[Any]):
    """One packed row for each step."""

    def __init__(self) -> None:
        self.rows = list(batches(LENGTHS))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return self.rows[index]


def alone(rows: list[Any]) -> Any:
    """A packed row is a batch."""
    (row,) = rows
    return row


@dataclasses.dataclass
class Trained:
    losses: list[float] = dataclasses.field(default_factory=list)
    gradients: list[dict[str, Tensor]] = dataclasses.field(default_factory=list)


def same(trainer: Callable[[type[Model], bool], Trained]) -> Seen:
    """Train with and without packpass, and compare every step; says what packpass did."""
    want = trainer(Reference, False)
    with watching() as seen:
        have = trainer(Model, True)
        found = seen()
    assert len(want.losses) == len(have.losses) == len(want.gradients) == len(have.gradients) == len(LENGTHS)
    assert_close(have.losses, want.losses)
    for ours, theirs in zip(have.gradients, want.gradients, strict=True):
        assert theirs
        assert_close(ours, theirs)
    return found


@pytest.fixture(autouse=True)
def _inner_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    """The trainers take a backend's name and no options."""
    monkeypatch.setenv("PACKPASS_INNER_BACKEND", "aot_eager")


# === transformers ================================================================================================


def with_loss(cls: type[Model]) -> Model:
    """The model as transformers' Trainer wants it: it returns a dict with the loss."""

    class WithLoss(cls):  # type: ignore[misc, valid-type]
        def forward(self, input_ids: Tensor, labels: Tensor, cu_seqlens: Tensor, **kwargs: Any) -> dict[str, Tensor]:
            return {"loss": super().forward(input_ids, labels, cu_seqlens)}

    return made(WithLoss)


def in_transformers(model: Model, called: Any, folder: Path, **arguments: Any) -> Trained:
    """`Trainer.train`, with the loss and the gradients of every step."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    trained = Trained()

    class Recorder(TrainerCallback):
        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            trained.gradients.append(gradients(model))

    settings = TrainingArguments(
        output_dir=str(folder),
        max_steps=len(LENGTHS),
        per_device_train_batch_size=1,
        learning_rate=0.1,
        optim="sgd",
        lr_scheduler_type="constant",
        max_grad_norm=0.0,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        remove_unused_columns=False,
        disable_tqdm=True,
        **arguments,
    )
    trainer = Trainer(called, settings, data_collator=alone, train_dataset=Rows(), callbacks=[Recorder()])
    trainer.train()
    trained.losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return trained


def compiled_by_torch(model: Model) -> Any:
    return torch.compile(model, backend="packpass")


def compiled_in_place(model: Model) -> Any:
    model.compile(backend="packpass")
    return model


@pytest.mark.parametrize(
    "compile",
    [packpass.compile, *(pytest.param(way, marks=pytest.mark.slow) for way in (compiled_by_torch, compiled_in_place))],
)
def test_transformers(compile: Callable[[Model], Any], tmp_path: Path) -> None:
    def trainer(cls: type[Model], compiled: bool) -> Trained:
        model = with_loss(cls)
        return in_transformers(model, compile(model) if compiled else model, tmp_path)

    same(trainer).check(WHOLE)


def test_accelerate_knows_its_own_list_of_backends_only(tmp_path: Path) -> None:
    """``torch_compile_backend`` is looked up in a list in accelerate, so no name of a backend that is registered with
    torch, ours or another's, gets through; a compiled model does."""
    assert {"packpass", "eager_noexcept"} <= set(torch.compiler.list_backends(exclude_tags=()))
    for name in ("packpass", "eager_noexcept"):
        model = with_loss(Model)
        with pytest.raises(ValueError, match=f"'{name.upper()}' is not a valid DynamoBackend"):
            in_transformers(model, model, tmp_path, torch_compile=True, torch_compile_backend=name)


# === accelerate ==================================================================================================


def test_accelerate() -> None:
    from accelerate import Accelerator

    def trainer(cls: type[Model], compiled: bool) -> Trained:
        accelerator = Accelerator(cpu=True)
        trained, model = Trained(), made(cls)
        called: Any = torch.compile(model, backend="packpass") if compiled else model
        rows = DataLoader(Rows(), batch_size=1, collate_fn=alone)
        called, optimizer, rows = accelerator.prepare(called, torch.optim.SGD(model.parameters(), 0.1), rows)
        for row in rows:
            optimizer.zero_grad()
            loss = called(**row)
            accelerator.backward(loss)
            trained.losses.append(loss.item())
            trained.gradients.append(gradients(model))
            optimizer.step()
        return trained

    same(trainer).check(WHOLE)


# === Lightning ===================================================================================================


def lightning_module(cls: type[Model], compile: Callable[[Any], Any] | None) -> Any:
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = made(cls)
            self.compile_model = compile
            self.trained = Trained()

        def configure_model(self) -> None:
            if self.compile_model is not None:
                self.model = self.compile_model(self.model)

        def training_step(self, row: dict[str, Tensor], index: int) -> Tensor:
            return self.model(**row)

        def on_train_batch_end(self, outputs: Any, row: Any, index: int) -> None:
            self.trained.losses.append(float(outputs["loss"]))

        def on_before_optimizer_step(self, optimizer: Any) -> None:
            self.trained.gradients.append(gradients(self.model))

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.1)

    return Module()


def fit(called: Any, module: Any, folder: Path) -> Trained:
    import lightning

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    trainer = lightning.Trainer(
        default_root_dir=folder,
        max_epochs=1,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a data loader without workers
        trainer.fit(called, DataLoader(Rows(), batch_size=1, collate_fn=alone))
    return module.trained


def test_lightning_with_a_compiled_model(tmp_path: Path) -> None:
    def trainer(cls: type[Model], compiled: bool) -> Trained:
        module = lightning_module(cls, compiled_by_torch if compiled else None)
        return fit(module, module, tmp_path)

    same(trainer).check(WHOLE)


def test_a_compiled_lightning_module(tmp_path: Path) -> None:
    """Lightning compiles ``training_step`` then."""

    def trainer(cls: type[Model], compiled: bool) -> Trained:
        module = lightning_module(cls, None)
        return fit(compiled_by_torch(module) if compiled else module, module, tmp_path)

    same(trainer).check(WHOLE)
