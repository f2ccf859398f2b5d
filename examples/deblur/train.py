"""Training: steps over accumulated batches, validation, and checkpoints that go on exactly where a run ended."""

from __future__ import annotations

import json
import math
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from penstock.errors import PenstockError

from .checkpoint import BEST, HISTORY, LAST, check_same, plain, read_checkpoint, write_checkpoint, write_text
from .images import write_comparison
from .metrics import charbonnier, psnr, ssim
from .model import DeblurNet
from .ranks import Ranks

_AHEAD = 2  # batches that the host may be ahead of a GPU: waiting for data is then never mistaken for its work
# What may change between a run and its continuation: where data lie, how they are loaded, how long is trained.
_FREE = {
    "data": ("root", "use_ram_cache", "cache_size_gb", "use_precomputed_voxels", "voxel_cache_dirname", "voxels",
             "dtype"),
    "train": ("epochs", "val_batch_size"),
}  # fmt: skip


@dataclass(frozen=True)
class Settings:
    """Of a run, beside its YAML."""

    out: Path
    log_every: int = 100
    save_every: int = 0
    images: int = 4
    amp: bool = True
    resume: bool = False


class Trainer:
    """One run over its clips; `run` goes on from where it stands to the last epoch."""

    def __init__(self, loaders: Any, ranks: Ranks, settings: Settings) -> None:
        self.loaders, self.ranks, self.settings = loaders, ranks, settings
        self.config = loaders.config
        torch.manual_seed(self.config.seed)  # the same weights in every process
        net = DeblurNet(self.config.data.num_voxel_bins, self.config.data.k)
        self.net = net.to(ranks.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.parameters = list(self.net.parameters())
        is_cuda = ranks.device.type == "cuda"
        self.optimizer = torch.optim.AdamW(self.parameters, lr=self.config.train.optim.lr, fused=is_cuda)
        if is_cuda:
            torch.backends.cudnn.benchmark = True
        self.epoch = self.step = 0
        self.taken = 0
        """Batches of this epoch that were trained on, by the process that has most of them."""
        self.sums = self._no_sums()
        self.history: list[dict[str, float]] = []
        self.best_psnr = -math.inf
        self._pace: deque[Any] = deque()
        self._log = _Log()
        if settings.resume:
            self._restore(read_checkpoint(settings.out / LAST))

    def _no_sums(self) -> Tensor:
        return torch.zeros(2, dtype=torch.float64, device=self.ranks.device)  # loss of this epoch, samples

    # Training

    def run(self) -> None:
        """Train until the last epoch, validate after each, keep the last state and the best one."""
        epochs = self.config.train.epochs
        if self.epoch >= epochs:
            self._print(f"already at epoch {self.epoch} of {epochs}: nothing to train")
        while self.epoch < epochs:
            self._train_epoch()
            loss, count = self.ranks.sum(self.sums.clone()).tolist()
            row = {"epoch": self.epoch, "step": self.step, "train_loss": loss / count, **self.validate()}
            self.history.append(row)
            self.epoch, self.taken, self.sums = self.epoch + 1, 0, self._no_sums()
            is_best = row["val_psnr"] > self.best_psnr
            self.best_psnr = max(self.best_psnr, row["val_psnr"])
            self.save(is_best)
            self._print(
                f"epoch {row['epoch']} | train loss={row['train_loss']:.4f} | val PSNR {row['val_psnr']:.2f} dB "
                f"(blur {row['blur_psnr']:.2f}, gain {row['val_psnr'] - row['blur_psnr']:+.2f}) | "
                f"SSIM {row['val_ssim']:.4f} (blur {row['blur_ssim']:.4f})"
            )

    def _train_epoch(self) -> None:
        train = self.config.train
        self.net.train()
        self.loaders.set_epoch(self.epoch)
        total = self.ranks.largest(len(self.loaders.train))
        batches = iter(self.loaders.train)
        self._log.begin(self.step)
        while self.taken < total:
            samples = 0
            for _ in range(min(train.gradient_accumulation_steps, total - self.taken)):
                batch = self._next(batches)
                samples += self._backward(batch) if batch is not None else 0
                self.taken += 1
            self._optimize(samples)
            self.step += 1
            if self.step % self.settings.log_every == 0:
                self._print(self._log.line(self.step, self._mean_loss()))
            if self.settings.save_every and self.step % self.settings.save_every == 0 and self.taken < total:
                self.save()
                self._log.begin(self.step)

    def _next(self, batches: Iterator[Any]) -> Mapping[str, Tensor] | None:
        """The next batch on the device; None where this process has had all of its own."""
        began_s = time.perf_counter()
        batch = next(batches, None)
        self._log.data_s += time.perf_counter() - began_s
        if batch is None:
            return None
        prepared: Mapping[str, Tensor] = self.loaders.prepare(batch, self.ranks.device)
        return prepared

    def _backward(self, batch: Mapping[str, Tensor]) -> int:
        """Add the gradients of the summed loss of a batch; the number of its samples."""
        samples = len(batch["blur"])
        with self._cast():
            found = self.net(batch["blur"], batch["spike_vox"])
        loss = charbonnier(found.float(), batch["sharp"]) * samples
        loss.backward()  # type: ignore[no-untyped-call]
        # Added up on the device: asking for a number would make the host wait.
        self.sums[0] += loss.detach()
        self.sums[1] += samples
        self._keep_pace()
        return samples

    def _optimize(self, samples: int) -> None:
        self.ranks.average_gradients(self.parameters, samples)
        if self.config.train.max_grad_norm:
            torch.nn.utils.clip_grad_norm_(self.parameters, self.config.train.max_grad_norm)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def _cast(self) -> AbstractContextManager[Any]:
        if self.ranks.device.type != "cuda" or not self.settings.amp:
            return nullcontext()
        return torch.autocast("cuda", dtype=torch.bfloat16)

    def _keep_pace(self) -> None:
        if self.ranks.device.type != "cuda":
            return
        event: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        self._pace.append(event)
        if len(self._pace) > _AHEAD:
            self._pace.popleft().synchronize()

    def _mean_loss(self) -> float:
        """Of the epoch so far, over all processes; a run that diverged ends here."""
        loss, count = self.ranks.sum(self.sums.clone()).tolist()
        if not math.isfinite(loss):
            is_kept = (self.settings.out / LAST).exists()
            kept = f"{LAST} is the state before" if is_kept else "there is no checkpoint yet"
            raise PenstockError(
                f"epoch {self.epoch}, step {self.step:,}: the loss is {loss}: training has diverged; {kept}",
                hint=f"a smaller TRAIN.OPTIM.LR than {self.config.train.optim.lr:g}, with --overwrite",
            )
        return float(loss / count)

    # Validation

    @torch.no_grad()
    def validate(self) -> dict[str, float]:
        """PSNR and SSIM of every validation image, and of its blurred input; images of the first clips."""
        self.net.eval()
        sums = torch.zeros(5, dtype=torch.float64, device=self.ranks.device)
        rows: list[tuple[Tensor, Tensor, Tensor]] = []
        for batch in self.loaders.val:
            clip = self.loaders.prepare(batch, self.ranks.device)
            blur, sharp = clip["blur"], clip["sharp"]
            with self._cast():
                found = self.net(blur, clip["spike_vox"])
            found = found.float()
            values = [psnr(found, sharp), ssim(found, sharp), psnr(blur, sharp), ssim(blur, sharp)]
            sums += torch.stack([*(each.double().sum() for each in values), sums.new_tensor(values[0].numel())])
            middle = blur.shape[1] // 2
            if self.ranks.is_first and len(rows) < self.settings.images:
                rows += [(blur[k, middle], found[k, middle], sharp[k, middle]) for k in range(len(blur))]
        if rows and self.settings.images:
            path = self.settings.out / "images" / f"epoch_{self.epoch:04d}.png"
            path.parent.mkdir(exist_ok=True)
            write_comparison(path, rows[: self.settings.images])
        *values_sum, count = self.ranks.sum(sums).tolist()
        names = ("val_psnr", "val_ssim", "blur_psnr", "blur_ssim")
        return {name: value / count for name, value in zip(names, values_sum, strict=True)}

    # Checkpoints

    def save(self, is_best: bool = False) -> None:
        """Everything that what comes next depends on; of all processes, written by the first."""
        if self.taken:
            self._mean_loss()  # what is not finite is never saved
        own = {"loader": self.loaders.state_dict(self.taken), "random": _random_state(self.ranks.device)}
        of_ranks = self.ranks.gather({**own, "sums": self.sums.cpu()})
        if self.ranks.is_first:
            state = {"config": self._that_makes_the_result(), "epoch": self.epoch, "step": self.step}
            state["model"] = self.net.state_dict()
            if is_best:
                write_checkpoint(self.settings.out / BEST, state)
            write_checkpoint(
                self.settings.out / LAST,
                {**state, "optimizer": self.optimizer.state_dict(), "ranks": of_ranks, "taken": self.taken,
                 "history": self.history, "best_psnr": self.best_psnr},
            )  # fmt: skip
            write_text(self.settings.out / HISTORY, json.dumps(self.history, indent=1) + "\n")
        self.ranks.wait()

    def _restore(self, found: Mapping[str, Any]) -> None:
        path = self.settings.out / LAST
        check_same(path, found["config"], self._that_makes_the_result())
        self.net.load_state_dict(found["model"])
        fused = self.optimizer.param_groups[0]["fused"]
        self.optimizer.load_state_dict(found["optimizer"])
        for group in self.optimizer.param_groups:
            group["fused"] = fused  # a matter of this run's device
        self.epoch, self.step, self.taken = found["epoch"], found["step"], found["taken"]
        self.history, self.best_psnr = list(found["history"]), found["best_psnr"]
        own = found["ranks"][self.ranks.rank]
        self.loaders.load_state_dict(own["loader"])
        self.sums = own["sums"].to(self.ranks.device)
        _set_random_state(own["random"], self.ranks.device)
        self._print(f"resumed {path} at epoch {self.epoch}, step {self.step:,}")

    def _that_makes_the_result(self) -> dict[str, Any]:
        """By the names of the YAML."""
        found: dict[str, Any] = {"SEED": self.config.seed, "processes": self.ranks.world_size}
        for section, free in _FREE.items():
            values = asdict(getattr(self.config, section))
            found |= {f"{section}.{name}".upper(): value for name, value in values.items() if name not in free}
        return dict(plain(found))

    def _print(self, text: str) -> None:
        if self.ranks.is_first:
            print(text, flush=True)


class _Log:
    """The lines of the steps: what one took since the last line, and how much of it was waiting for data."""

    def __init__(self) -> None:
        self.data_s = 0.0
        self._step, self._began_s = 0, 0.0

    def begin(self, step: int) -> None:
        self.data_s, self._step, self._began_s = 0.0, step, time.perf_counter()

    def line(self, step: int, loss: float) -> str:
        steps = max(step - self._step, 1)
        data_ms, step_ms = (1e3 * each / steps for each in (self.data_s, time.perf_counter() - self._began_s))
        self.begin(step)
        return f"step {step} | loss={loss:.4f} | data_time={data_ms:.1f}ms | step_time={step_ms:.1f}ms"


def _random_state(device: torch.device) -> dict[str, Any]:
    cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    return {"cpu": torch.get_rng_state(), "cuda": cuda}


def _set_random_state(state: Mapping[str, Any], device: torch.device) -> None:
    torch.set_rng_state(state["cpu"])
    if device.type == "cuda" and state["cuda"] is not None:
        torch.cuda.set_rng_state(state["cuda"], device)
