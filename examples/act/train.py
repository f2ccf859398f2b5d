"""Training: steps, validation, checkpoints that go on exactly where a run ended, and what each epoch took."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from penstock import profile
from penstock.errors import PenstockError
from penstock.profile.table import epoch_line

from .checkpoint import BEST, LAST, random_state, set_random_state, write_checkpoint, write_json
from .curve import draw_curve
from .data import Data
from .model import Shape
from .policy import Policy, make_policy, masked_mean
from .progress import Progress
from .same_data import check_same, facts_of
from .settings import Settings

_AHEAD = 2  # steps that the host may be ahead of a device


def make_shape(settings: Settings, data: Data) -> Shape:
    """The model's sizes, by the words of the run and by its data."""
    height, width = data.image_size
    return Shape(
        data.state_dim, data.action_dim, len(data.columns.cameras), height, width, settings.chunk, settings.hidden_dim,
        settings.dim_feedforward, settings.heads, settings.enc_layers, settings.dec_layers, dropout=settings.dropout,
        backbone_width=settings.backbone_width, norm=settings.norm_kind,
    )  # fmt: skip


def stage(name: str, device: torch.device) -> AbstractContextManager[Any]:
    """Times a stage: by the host's clock, and on a GPU by the device's as well."""
    host: AbstractContextManager[Any] = profile.log_timing(name)
    if device.type != "cuda":
        return host
    both = ExitStack()
    both.enter_context(host)
    both.enter_context(profile.gpu_span(name))
    return both


class Pace:
    """Keeps the host at most a few steps ahead of a GPU: waiting for data is then never mistaken for its work."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._events: deque[Any] = deque()

    def step(self) -> None:
        """After what a step gave the device to do."""
        if self._device.type != "cuda":
            return
        event: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        self._events.append(event)
        if len(self._events) > _AHEAD:
            with profile.log_timing("23_wait_for_gpu"):
                self._events.popleft().synchronize()


class Trainer:
    """One run over its data; `run` goes on from where it stands (`saved`: a checkpoint) to the last epoch."""

    def __init__(self, settings: Settings, data: Data, saved: Mapping[str, Any] | None = None) -> None:
        self.settings, self.data = settings, data
        self.device = torch.device(settings.device)
        torch.manual_seed(settings.seed)
        self.shape = make_shape(settings, data)
        policy = make_policy(settings.policy_class, self.shape, data.columns, data.stats, settings.kl_weight)
        eyes: Any = policy.model.get_submodule("eyes")
        if settings.backbone_weights is not None and saved is None:
            eyes.backbone.load_weights(settings.backbone_weights)
        self.policy: Policy = policy.to(self.device)
        eyes.to(memory_format=torch.channels_last)
        self.optimizer = self._make_optimizer(eyes.backbone)
        self.epoch = self.step = 0
        self.sums = self._no_sums()
        self.history: list[dict[str, Any]] = []
        self.best_l1 = math.inf
        self._progress = Progress(len(data.train) * settings.num_epochs, settings.log_every)
        if self.device.type == "cuda":
            torch.backends.cudnn.benchmark = True
            torch.set_float32_matmul_precision("high")
        if saved is not None:
            self._restore(saved)

    def _make_optimizer(self, backbone: torch.nn.Module) -> torch.optim.Optimizer:
        settings = self.settings
        slow = {id(each) for each in backbone.parameters()}
        groups: list[dict[str, Any]] = [
            {"params": [each for each in self.policy.parameters() if id(each) not in slow]},
            {"params": list(backbone.parameters()), "lr": settings.lr_backbone or settings.lr},
        ]
        fused = self.device.type == "cuda"
        return torch.optim.AdamW(groups, lr=settings.lr, weight_decay=settings.weight_decay, fused=fused)

    def _no_sums(self) -> Tensor:
        return torch.zeros(4, dtype=torch.float64, device=self.device)  # loss, l1, kl, samples

    # The run

    @property
    def is_done(self) -> bool:
        """Whether the last epoch has been trained."""
        return self.epoch >= self.settings.num_epochs

    def run(self) -> None:
        """Train until the last epoch."""
        while not self.is_done:
            began = time.perf_counter_ns()
            row = self._train_epoch()
            trained = time.perf_counter_ns()
            last = self.epoch + 1 == self.settings.num_epochs
            if last or (self.epoch + 1) % self.settings.val_every == 0:
                row |= self.validate()
            ended = time.perf_counter_ns()
            self._close_epoch(row)
            profile.mark_epoch(int(row["epoch"]))
            self._tell(row, ended - began, ended - trained, trained - began)
            if last or (self.epoch % self.settings.table_every == 0):
                profile.print_timing_stats(lang=self.settings.lang)

    def _train_epoch(self) -> dict[str, Any]:
        settings, loader, pace = self.settings, self.data.train, Pace(self.device)
        self.policy.train()
        total = len(loader) * (self.epoch + 1)
        begun, began = self.step, time.perf_counter()
        self._progress.begin(self.step)
        for batch in loader:
            self._train_step(batch)
            del batch
            self.step += 1
            profile.mark_step()
            pace.step()
            if self._progress.is_due(self.step):
                print(self._progress.line(self.step, self.sums.tolist()), flush=True)
            if settings.save_every and self.step % settings.save_every == 0 and self.step < total:
                self.save(LAST)
                print(f"  step {self.step:,}: saved", flush=True)
        loss, l1, kl, count = self.sums.tolist()
        if not math.isfinite(loss):
            raise PenstockError(f"epoch {self.epoch}: the loss is {loss}", hint="a smaller --lr, or without --amp")
        ms = 1000 * (time.perf_counter() - began) / max(self.step - begun, 1)
        return {"epoch": self.epoch, "step": self.step, "train_loss": loss / count, "train_l1": l1 / count,
                "train_kl": kl / count, "ms_per_step": ms, "steps": self.step - begun}  # fmt: skip

    def _train_step(self, batch: dict[str, Tensor]) -> None:
        with self._cast(), stage("20_train_forward_pass", self.device):
            losses = self.policy.losses(self.policy.sample(batch))
        with stage("21_backward", self.device):
            losses.loss.backward()  # type: ignore[no-untyped-call]
        with stage("22_optimizer_step", self.device):
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
        size = len(batch["index"])
        # Added up where they are: asking for a number would make the host wait for the device.
        self.sums[:3].add_(torch.stack([each.detach() for each in losses]), alpha=size)
        self.sums[3] += size

    def _cast(self) -> AbstractContextManager[Any]:
        if not self.settings.amp:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=torch.bfloat16)

    @torch.no_grad()
    def validate(self) -> dict[str, float]:
        """L1 of what a rollout would do (style zero), and of two guesses that need no training: mean, and staying."""
        policy, loader = self.policy.eval(), self.data.val
        stays = self.data.state_dim == self.data.action_dim
        sums = torch.zeros(4, dtype=torch.float64, device=self.device)
        pace = Pace(self.device)
        loader.set_epoch(0)
        for batch in loader:
            with self._cast(), stage("10_val_forward_pass", self.device):
                sample = policy.sample(batch)
                found = policy.predict(sample.state, sample.pictures)
            guesses = [found, torch.zeros_like(found)]
            if stays:
                here = (batch[policy.columns.state].float() - policy.action_mean) / policy.action_std
                guesses.append(here[:, None])
            weight = (~sample.is_pad).sum()
            errors = [masked_mean((guess - sample.actions).abs(), sample.is_pad) for guess in guesses]
            sums[: len(errors)] += torch.stack(errors) * weight
            sums[3] += weight
            pace.step()
            del batch, sample
        policy.train()
        l1, mean, stay, count = sums.tolist()
        told = {"val_l1": l1 / count, "val_mean_l1": mean / count}
        return told | ({"val_stay_l1": stay / count} if stays else {})

    # What remains

    def _close_epoch(self, row: dict[str, Any]) -> None:
        self.history.append(row)
        self.epoch += 1
        self.sums = self._no_sums()
        found = row.get("val_l1", math.inf)
        is_best = found < self.best_l1
        self.best_l1 = min(self.best_l1, found)
        with profile.log_timing("30_checkpoint"):
            if is_best:
                self.save(BEST)
            self.save(LAST)
        folder, seed = self.settings.ckpt_dir, self.settings.seed
        write_json(folder / "history.json", self.history)
        draw_curve(folder / f"train_val_seed_{seed}.png", self.history, f"{self.settings.task_name} seed {seed}")

    def save(self, name: str) -> None:
        """Everything that what comes next depends on; the best one is for acting alone."""
        content: dict[str, Any] = {
            "settings": self.settings.that_make_the_result(),
            "policy_class": self.settings.policy_class,
            "shape": asdict(self.shape),
            "columns": asdict(self.data.columns),
            "stats": {column: stats.to_dict() for column, stats in self.data.stats.items()},
            "data": facts_of(self.data),
            "epoch": self.epoch,
            "step": self.step,
            "model": self.policy.state_dict(),
        }
        if name == LAST:
            content |= {
                "optimizer": self.optimizer.state_dict(),
                "random": random_state(self.device),
                "loader": self.data.train.state_dict(),
                "sums": self.sums.cpu(),
                "history": self.history,
                "best_l1": self.best_l1,
            }
        write_checkpoint(self.settings.ckpt_dir / name, content)

    def _restore(self, found: Mapping[str, Any]) -> None:
        check_same(self.settings.ckpt_dir / LAST, found, self.data)
        self.policy.load_state_dict(found["model"])
        self.optimizer.load_state_dict(found["optimizer"])
        self.data.train.load_state_dict(found["loader"])
        self.epoch, self.step, self.best_l1 = found["epoch"], found["step"], found["best_l1"]
        self.sums = found["sums"].to(self.device)
        self.history = list(found["history"])
        set_random_state(found["random"], self.device)
        print(f"resumed {self.settings.ckpt_dir / LAST} at epoch {self.epoch}, step {self.step:,}", flush=True)

    def _tell(self, row: dict[str, Any], total_ns: int, validation_ns: int, training_ns: int) -> None:
        marked = profile.snapshot().epochs
        wait_ns = marked[-1].wait_ns if marked else None
        line = epoch_line(
            row["epoch"], total_ns, validation_ns=validation_ns, training_ns=training_ns, wait_ns=wait_ns,
            steps=row["steps"], lang=self.settings.lang,
        )  # fmt: skip
        print(line, flush=True)
        told = f"  train loss {row['train_loss']:.4f} l1 {row['train_l1']:.4f} kl {row['train_kl']:.4f}"
        if "val_l1" in row:
            told += f" · val l1 {row['val_l1']:.4f} (predict the mean {row['val_mean_l1']:.4f}"
            told += f", stay {row['val_stay_l1']:.4f})" if "val_stay_l1" in row else ")"
        print(f"{told} · {row['ms_per_step']:.1f} ms/step", flush=True)
