"""Training and validation of a VQA model, with checkpoints that go on at the exact batch."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional
from torch.utils.data import DataLoader

import penstock
from penstock.errors import UsageError

from .model import VQAModel
from .words import UNKNOWN_ANSWER, Words, count_words

CHECKPOINT = "last.pt"
HISTORY = "history.json"


@dataclass(frozen=True)
class Settings:
    """What makes the result of a run; a run that goes on must have the same."""

    data: str
    epochs: int = 8
    batch_size: int = 64
    lr: float = 2e-3
    seed: int = 0
    image_size: tuple[int, int] = (64, 64)
    max_length: int = 12
    width: int = 64


class _ToTarget:
    """A sample as the model takes it; the answer becomes its number."""

    def __init__(self, words: Words) -> None:
        self._words = words

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        kept = {name: sample[name] for name in ("image", "input_ids", "attention_mask")}
        return {**kept, "target": self._words.answer_number(sample["answer"])}


class Trainer:
    """Trains epoch by epoch; `save` keeps everything that the next batch depends on."""

    def __init__(
        self, settings: Settings, directory: Path, *, workers: int = 0, device: str = "cpu", resume: bool = False
    ) -> None:
        self.settings, self.directory, self.workers = settings, directory, workers
        self.device = torch.device(device)
        saved = self._saved() if resume else None
        root = Path(settings.data)
        with penstock.open(root / "train.jsonl") as store:
            self.words = count_words(store) if saved is None else Words.from_state(saved["words"])
        options: dict[str, Any] = {
            "tokenizer": self.words, "max_length": settings.max_length, "image_size": settings.image_size,
            "transform": _ToTarget(self.words), "cache_images": True, "memory": "512MiB",
        }  # fmt: skip
        self.train_set = penstock.StreamingVQADataset(
            root / "train.jsonl", batch_size=settings.batch_size, shuffle=True, seed=settings.seed, **options
        )
        self.val_set = penstock.LazyLoadVQADataset(root / "val.jsonl", **options)
        torch.manual_seed(settings.seed)
        self.model = VQAModel(self.words.count, len(self.words.answers), settings.image_size, settings.width)
        self.model.to(self.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), settings.lr, weight_decay=1e-2)
        steps = settings.epochs * len(self.train_set)
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(self.optimizer, settings.lr, total_steps=max(steps, 2))
        self.epoch, self.taken, self.step = 0, 0, 0
        self._resumed_at = 0  # batches of this epoch that an earlier run took
        self.history: list[dict[str, float]] = []
        self._losses: list[float] = []
        if saved is not None:
            self._restore(saved)

    def run(self, stop_after: int | None = None) -> None:
        """Up to the last epoch, or for so many more steps; both end with a checkpoint."""
        last = None if stop_after is None else self.step + stop_after
        while self.epoch < self.settings.epochs:
            began = time.perf_counter()
            for batch in self._batches():
                self._losses.append(self._step(batch))
                self.taken, self.step = self.taken + 1, self.step + 1
                if self.step == last:
                    self.save()
                    return
            self._end_epoch(time.perf_counter() - began)

    def _batches(self) -> Iterator[dict[str, Any]]:
        """What is left of this epoch."""
        if not self.taken:
            self.train_set.set_epoch(self.epoch)
        yield from DataLoader(self.train_set, batch_size=None, num_workers=self.workers)

    def _end_epoch(self, seconds: float) -> None:
        accuracy = self.validate()
        loss = sum(self._losses) / max(len(self._losses), 1)
        self.epoch, self.taken, self._resumed_at, self._losses = self.epoch + 1, 0, 0, []
        self.history.append({"epoch": self.epoch, "loss": loss, "accuracy": accuracy})
        print(
            f"epoch {self.epoch}/{self.settings.epochs}: loss {loss:.3f} · validation {accuracy:.1%} right "
            f"(most frequent answer {self.words.prior:.1%}, to each question {self.words.question_prior:.1%}) · "
            f"{seconds:.1f} s",
            flush=True,
        )
        self.save()

    def _step(self, batch: dict[str, Any]) -> float:
        self.model.train()
        loss = functional.cross_entropy(self._logits(batch), self._to(batch["target"]), ignore_index=UNKNOWN_ANSWER)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.schedule.step()
        return float(loss.detach())

    def _logits(self, batch: dict[str, Any]) -> torch.Tensor:
        images = self._to(batch["image"]).float() / 255
        logits: torch.Tensor = self.model(images, self._to(batch["input_ids"]), self._to(batch["attention_mask"]))
        return logits

    def _to(self, values: Any) -> torch.Tensor:
        return torch.as_tensor(values).to(self.device)

    @torch.no_grad()
    def validate(self) -> float:
        """The share of right answers on the validation data."""
        self.model.eval()
        right = 0
        for batch in DataLoader(self.val_set, batch_size=256, num_workers=self.workers):
            right += int((self._logits(batch).argmax(1) == self._to(batch["target"])).sum())
        return right / len(self.val_set)

    # Checkpoints

    def save(self) -> None:
        """Whole or not at all."""
        self.directory.mkdir(parents=True, exist_ok=True)
        # Between two epochs there is no place in the order: the next one begins with set_epoch.
        data = self.train_set.state_dict(self.taken - self._resumed_at) if self.taken else None
        state = {
            "settings": asdict(self.settings), "words": self.words.state(), "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(), "schedule": self.schedule.state_dict(), "epoch": self.epoch,
            "taken": self.taken, "step": self.step, "history": self.history, "losses": self._losses, "data": data,
        }  # fmt: skip
        fresh = self.directory / f".{CHECKPOINT}.part"
        torch.save(state, fresh)
        os.replace(fresh, self.directory / CHECKPOINT)
        (self.directory / HISTORY).write_text(json.dumps(self.history, indent=1))

    def _saved(self) -> dict[str, Any]:
        path = self.directory / CHECKPOINT
        if not path.is_file():
            raise UsageError(f"--resume: there is no {path}", hint="leave --resume out to begin")
        saved: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        mine = asdict(self.settings)
        other = [name for name in mine if saved["settings"].get(name) != mine[name]]
        if other:
            name = other[0]
            raise UsageError(
                f"--resume: {name} was {saved['settings'].get(name)!r}, and is {mine[name]!r} now",
                hint="go on with the words of that run",
            )
        return saved

    def _restore(self, saved: dict[str, Any]) -> None:
        self.model.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        self.schedule.load_state_dict(saved["schedule"])
        self.epoch, self.taken, self.step = saved["epoch"], saved["taken"], saved["step"]
        self.history, self._losses = saved["history"], saved["losses"]
        if saved["data"] is not None:
            self.train_set.load_state_dict(saved["data"])
            self._resumed_at = self.taken

    def close(self) -> None:
        self.train_set.close()
        self.val_set.close()
