"""Training: steps, validation, checkpoints that go on exactly where a run ended, and what each epoch took."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from penstock import profile
from penstock.errors import PenstockError, UsageError

from .checkpoint import BEST, HISTORY, LAST, fitting, random_state, set_random_state, write_checkpoint, write_json
from .curve import draw_curve
from .data import Data
from .messages import message
from .model import Shape
from .policy import Policy, make_policy, masked_mean
from .progress import Progress
from .same_data import check_same, facts_of
from .settings import Settings
from .texts import format_duration

_SAFE_LR = 1e-4  # where more than ten times this diverged
_AHEAD = 2  # steps that the host may be ahead of a device


def make_shape(settings: Settings, data: Data) -> Shape:
    """The model's sizes, by the words of the run and by its data."""
    height, width = data.image_size
    return Shape(
        data.state_dim, data.action_dim, len(data.columns.cameras), height, width, settings.chunk, settings.hidden_dim,
        settings.dim_feedforward, settings.heads, settings.enc_layers, settings.dec_layers, dropout=settings.dropout,
        backbone_width=settings.backbone_width, norm=settings.norm_kind,
    )  # fmt: skip


def check_last_batch(shape: Shape, samples: int, batch_size: int) -> None:
    """Batch norm needs two values of a channel: one image whose features are a single cell gives it one."""
    last = samples % batch_size or min(samples, batch_size)
    if shape.norm != "batch" or shape.cells != (1, 1) or last * shape.cameras > 1:
        return
    fits = next((size for size in range(batch_size + 1, batch_size + samples) if samples % size != 1), samples)
    other = f"--batch_size {fits}, " if samples > 1 else ""
    raise UsageError(
        f"{samples:,} samples in batches of {batch_size:,} leave a batch of one, and a single image of "
        f"{shape.height}×{shape.width} pixels is one value to batch norm, which needs two",
        hint=f"{other}--norm group, or images of more than 32 pixels: --image_size 64x64",
    )


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
        check_last_batch(self.shape, data.train.samples, settings.batch_size)
        policy = make_policy(settings.policy_class, self.shape, data.columns, data.stats, settings.kl_weight)
        eyes: Any = policy.model.get_submodule("eyes")
        if settings.backbone_weights is not None and saved is None:
            eyes.backbone.load_weights(settings.backbone_weights)
        self.policy: Policy = policy.to(self.device)
        eyes.to(memory_format=torch.channels_last)
        self.optimizer = self._make_optimizer(eyes.backbone)
        self.epoch = self.step = self._saved_step = self._saving_ns = 0
        self.sums = self._no_sums()
        self.history: list[dict[str, Any]] = []
        self.best_l1 = math.inf
        self._progress = Progress(len(data.train) * settings.num_epochs, settings.log_every, settings.lang)
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
        """Train until the last epoch; whatever was resumed, its losses are written and its last epoch is validated."""
        if self.is_done:
            self._validate_last()
        if self.history:
            self._write_losses()
        while not self.is_done:
            began = time.perf_counter_ns()
            self._saving_ns = 0
            row = self._train_epoch()
            trained, saving_ns = time.perf_counter_ns(), self._saving_ns
            last = self.epoch + 1 == self.settings.num_epochs
            if last or (self.epoch + 1) % self.settings.val_every == 0:
                row |= self._checked(self.validate())
            ended = time.perf_counter_ns()
            profile.mark_epoch(int(row["epoch"]))
            self._close_epoch(row)
            self._tell(row, ended - began - saving_ns, ended - trained)
            if last or (self.epoch % self.settings.table_every == 0):
                profile.print_timing_stats(lang=self.settings.lang)

    def _validate_last(self) -> None:
        """Of a run that is done already: it may have been stopped where no validation was due."""
        row = self.history[-1]
        if "val_l1" in row:
            return
        found = self._checked(self.validate())
        if not self.sums[3]:  # else the weights are those of a later step
            row.update(found)
        self._save_with(found["val_l1"])
        print("  " + self._validated(found).removeprefix(" · "), flush=True)

    def _train_epoch(self) -> dict[str, Any]:
        settings, loader, pace = self.settings, self.data.train, Pace(self.device)
        self.policy.train()
        total = len(loader) * (self.epoch + 1)
        begun, began_ns = self.step, time.perf_counter_ns()
        self._progress.begin(self.step)
        for batch in loader:
            self._train_step(batch)
            del batch
            self.step += 1
            profile.mark_step()
            pace.step()
            if self._progress.is_due(self.step):
                print(self._progress.line(self.step, self._finite_sums()), flush=True)
            if settings.save_every and self.step % settings.save_every == 0 and self.step < total:
                with self._saving():
                    self._check_finite()
                    self.save(LAST)
                print(message("saved", settings.lang, step=self.step), flush=True)
        self._check_finite()
        loss, l1, kl, count = self.sums.tolist()
        ms = (time.perf_counter_ns() - began_ns - self._saving_ns) / 1e6 / max(self.step - begun, 1)
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
                found = policy.predict(sample.state, sample.images)
            guesses = [found, torch.zeros_like(found)]
            if stays:
                guesses.append(policy.stay(batch[policy.columns.state]))
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

    # What went wrong

    def _finite_sums(self) -> list[float]:
        sums: list[float] = self.sums.tolist()
        if not all(map(math.isfinite, sums)):
            raise self._diverged(f"the loss is {sums[0]}")
        return sums

    def _check_finite(self) -> None:
        """Before anything is saved: neither the losses so far nor what the last step made of the weights."""
        self._finite_sums()
        for name, values in self.policy.state_dict().items():
            if values.is_floating_point() and not bool(torch.isfinite(values).all()):
                raise self._diverged(f"{name} is no longer finite")

    def _checked(self, told: dict[str, float]) -> dict[str, float]:
        if not all(map(math.isfinite, told.values())):
            raise self._diverged(f"the validation's l1 is {told['val_l1']}")
        return told

    def _diverged(self, what: str) -> PenstockError:
        settings = self.settings
        kept = f"{LAST} of step {self._saved_step:,} is kept" if self._saved_step else "there is no checkpoint yet"
        slower = f"--lr {min(settings.lr / 10, _SAFE_LR):.3g}"
        if settings.lr_backbone is not None:
            slower += f" --lr_backbone {min(settings.lr_backbone / 10, _SAFE_LR):.3g}"
        amp = " and without --amp" if settings.amp else ""
        return PenstockError(
            f"epoch {self.epoch}, step {self.step:,}: {what}: training has diverged; {kept}",
            hint=f"train anew, slower{amp}: the same options with --overwrite {slower}"
            f"{' instead of --resume' if settings.resume else ''}",
        )

    # What remains

    @contextmanager
    def _saving(self) -> Iterator[None]:
        """The body writes checkpoints, whose time belongs to no step: neither here nor in the profile."""
        began_ns = time.perf_counter_ns()
        with profile.log_timing("30_checkpoint"):
            yield
        spent_ns = time.perf_counter_ns() - began_ns
        self._saving_ns += spent_ns
        self._progress.leave_out(spent_ns / 1e9)
        profile.leave_out(spent_ns)

    def _close_epoch(self, row: dict[str, Any]) -> None:
        self.history.append(row)
        self.epoch += 1
        self.sums = self._no_sums()
        with self._saving():
            self._save_with(row.get("val_l1", math.inf))
            self._write_losses()

    def _save_with(self, val_l1: float) -> None:
        """The last checkpoint, and the best one before it where this is it."""
        if val_l1 < self.best_l1:
            self.best_l1 = val_l1
            self.save(BEST)
        self.save(LAST)

    def _write_losses(self) -> None:
        folder, seed = self.settings.ckpt_dir, self.settings.seed
        write_json(folder / HISTORY, self.history)
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
            "task": self.data.task,
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
        if name == LAST:
            self._saved_step = self.step

    def _restore(self, found: Mapping[str, Any]) -> None:
        path = self.settings.ckpt_dir / LAST
        with fitting(path):
            check_same(path, found, self.data)
            self.policy.load_state_dict(found["model"])
            self.optimizer.load_state_dict(self._for_this_device(found["optimizer"]))
            self.data.train.load_state_dict(found["loader"])
            self.epoch, self.step, self.best_l1 = found["epoch"], found["step"], found["best_l1"]
            self._saved_step = self.step
            self.sums = found["sums"].to(self.device)
            self.history = list(found["history"])
            set_random_state(found["random"], self.device)
        at = {"path": path, "epoch": self.epoch, "step": self.step}
        print(message("resumed", self.settings.lang, **at), flush=True)

    def _for_this_device(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """An optimiser's state of any device: whether steps are fused is this run's own matter."""
        fused = self.optimizer.param_groups[0]["fused"]
        return {**state, "param_groups": [{**group, "fused": fused} for group in state["param_groups"]]}

    def _tell(self, row: dict[str, Any], total_ns: int, validation_ns: int) -> None:
        """The line holds what `penstock profile` says of the epoch; the checkpoints are beside it."""
        marked = profile.snapshot().epochs
        wait_ns = marked[-1].wait_ns if marked else None
        total_ns = marked[-1].duration_ns if marked else total_ns
        line = profile.epoch_line(
            row["epoch"], total_ns, validation_ns=validation_ns, training_ns=max(total_ns - validation_ns, 0),
            wait_ns=wait_ns, steps=row["steps"], lang=self.settings.lang,
        )  # fmt: skip
        print(line, flush=True)
        means = f"loss {row['train_loss']:.4f} l1 {row['train_l1']:.4f} kl {row['train_kl']:.4f}"
        parts = [message("train", self.settings.lang, means=means), self._validated(row) if "val_l1" in row else ""]
        saving = format_duration(self._saving_ns)
        parts.append(message("pace", self.settings.lang, ms=row["ms_per_step"], saving=saving))
        print("".join(parts), flush=True)

    def _validated(self, row: Mapping[str, Any]) -> str:
        lang = self.settings.lang
        stay = message("stay", lang, stay=row["val_stay_l1"]) if "val_stay_l1" in row else ""
        return message("val", lang, l1=row["val_l1"], mean=row["val_mean_l1"], stay=stay)
