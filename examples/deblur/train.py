"""Training: steps over accumulated batches, validation, and checkpoints that go on exactly where a run ended."""

from __future__ import annotations

import json
import math
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from penstock.errors import PenstockError, UsageError

from .checkpoint import BEST, HISTORY, LAST, check_same, plain, read_checkpoint, write_checkpoint, write_text
from .images import write_comparison
from .metrics import charbonnier, psnr, ssim
from .model import DeblurNet
from .ranks import Ranks

_AHEAD = 2  # batches that the host may be ahead of a GPU: waiting for data is then never mistaken for its work
_K = 32  # without DATA.K
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
        if loaders.val is None:
            raise UsageError("DATA.VAL_SPLIT: null leaves nothing to validate on", hint="DATA.VAL_SPLIT=test")
        torch.manual_seed(self.config.seed)  # the same weights in every process
        self.net = DeblurNet(self.config.data.num_voxel_bins, self.config.data.k or _K).to(ranks.device)
        self.parameters = list(self.net.parameters())
        is_cuda, optim = ranks.device.type == "cuda", self.config.train.optim
        self.optimizer = torch.optim.AdamW(self.parameters, optim.lr, weight_decay=optim.weight_decay, fused=is_cuda)
        torch.backends.cudnn.benchmark = is_cuda
        self.epoch = self.step = 0
        self.taken = 0
        """Batches of this epoch that were trained on."""
        self.sums = self._zeros(2)
        """Of this epoch: the loss, and the weight of the clips it was summed over."""
        self.history: list[dict[str, float]] = []
        self.best_psnr = -math.inf
        self._pace: deque[Any] = deque()
        self.log = StepLog()
        if settings.resume:
            self._restore(read_checkpoint(settings.out / LAST))

    def _zeros(self, count: int) -> Tensor:
        return torch.zeros(count, dtype=torch.float64, device=self.ranks.device)

    # Training

    def run(self) -> int:
        """Train until the last epoch, validate after each, keep the last state and the best one.

        Returns how often a clip could not be read and was skipped (`DATA.ON_ERROR: skip`).
        """
        epochs = self.config.train.epochs
        if self.epoch >= epochs:
            self._print(f"already at epoch {self.epoch} of {epochs}: nothing to train")
        while self.epoch < epochs:
            self.train_epoch()
            row = {"epoch": self.epoch, "step": self.step, "train_loss": self._mean_loss(), **self.validate()}
            self.history.append(row)
            self.epoch, self.taken, self.sums = self.epoch + 1, 0, self._zeros(2)
            is_best = row["val_psnr"] > self.best_psnr
            self.best_psnr = max(self.best_psnr, row["val_psnr"])
            self.save(is_best)
            self._print(
                f"epoch {row['epoch']} | train loss={row['train_loss']:.4f} | val PSNR {row['val_psnr']:.2f} dB "
                f"(blur {row['blur_psnr']:.2f}, gain {row['val_psnr'] - row['blur_psnr']:+.2f}) | "
                f"SSIM {row['val_ssim']:.4f} (blur {row['blur_ssim']:.4f})"
            )
        skipped = self.loaders.skipped
        if skipped:
            print(f"note: process {self.ranks.rank} skipped {len(skipped):,} clips, first {skipped[0]}", flush=True)
        return int(self.ranks.sum(self._zeros(1) + len(skipped)))

    def train_epoch(self) -> None:
        """All batches that are left of this epoch; every rank has the same number of them."""
        self.net.train()
        self.log.begin(self.step)
        last = len(self.loaders.train)
        weight = self._zeros(1).float()
        for batch in self._timed(self.loaders.train):
            weight += self.backward(self.loaders.prepare(batch, self.ranks.device))
            self.taken += 1
            if self.taken % self.config.train.gradient_accumulation_steps and self.taken < last:
                continue
            self.optimize(weight)
            weight.zero_()
            if self.step % self.settings.log_every == 0:
                self._print(self.log.line(self.step, self._mean_loss()))
            if self.settings.save_every and self.step % self.settings.save_every == 0 and self.taken < last:
                self.save()
                self.log.begin(self.step)

    def _timed(self, batches: Iterable[Any]) -> Iterator[Any]:
        """The batches; what waiting for each one takes goes into the log."""
        one_by_one = iter(batches)
        while True:
            began_s = time.perf_counter()
            batch = next(one_by_one, None)
            self.log.data_s += time.perf_counter() - began_s
            if batch is None:
                return
            yield batch

    def backward(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Add the gradients of the summed loss of a batch; the summed weight of its clips."""
        with self._cast():
            found = self.net(batch["blur"], batch["spike_vox"])
        loss = (charbonnier(found.float(), batch["sharp"]) * batch["weight"]).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        # Added up on the device: asking for a number would make the host wait.
        weight = batch["weight"].sum()
        self.sums += torch.stack([loss.detach(), weight])
        self._keep_pace()
        return weight

    def optimize(self, weight: Tensor) -> None:
        """One step with the gradients of clips whose weights sum up to `weight` here."""
        self.ranks.average_gradients(self.parameters, weight)
        if self.config.train.max_grad_norm is not None:
            torch.nn.utils.clip_grad_norm_(self.parameters, self.config.train.max_grad_norm)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.step += 1

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

    def _all_sums(self) -> list[float]:
        sums: list[float] = self.ranks.sum(self.sums.clone()).tolist()
        return sums

    def _mean_loss(self) -> float:
        """Of the epoch so far, over all processes; a run that diverged ends here."""
        loss, weight = self._all_sums()
        if not math.isfinite(loss):
            is_kept = (self.settings.out / LAST).exists()
            kept = f"{LAST} is the state before" if is_kept else "there is no checkpoint yet"
            raise PenstockError(
                f"epoch {self.epoch}, step {self.step:,}: the loss is {loss}: training has diverged; {kept}",
                hint=f"TRAIN.OPTIM.LR={self.config.train.optim.lr / 10:g} --overwrite",
            )
        return loss / max(weight, 1)

    # Validation

    @torch.no_grad()
    def validate(self) -> dict[str, float]:
        """PSNR and SSIM of every validation image, and of its blurred input; images of the first clips."""
        self.net.eval()
        sums = self._zeros(5)
        rows: list[tuple[Tensor, Tensor, Tensor]] = []
        for batch in self.loaders.val:
            clip = self.loaders.prepare(batch, self.ranks.device)
            blur, sharp, weight = clip["blur"], clip["sharp"], clip["weight"].double()
            with self._cast():
                found = self.net(blur, clip["spike_vox"])
            found = found.float()
            values = [psnr(found, sharp), ssim(found, sharp), psnr(blur, sharp), ssim(blur, sharp)]
            sums += torch.stack([*((weight * each.mean(dim=1)).sum() for each in values), weight.sum()])
            if self.ranks.is_first and len(rows) < self.settings.images:
                middle = blur.shape[1] // 2
                rows += [(blur[k, middle], found[k, middle], sharp[k, middle]) for k in range(len(blur))]
        if rows:
            path = self.settings.out / "images" / f"epoch_{self.epoch:04d}.png"
            path.parent.mkdir(exist_ok=True)
            write_comparison(path, rows[: self.settings.images])
        *means, count = self.ranks.sum(sums).tolist()
        names = ("val_psnr", "val_ssim", "blur_psnr", "blur_ssim")
        return {name: value / count for name, value in zip(names, means, strict=True)}

    # Checkpoints

    def save(self, is_best: bool = False) -> None:
        """Everything that what comes next depends on, written by the first process."""
        sums = self._all_sums()
        if self.taken:
            self._mean_loss()  # what is not finite is never saved
        if not self.ranks.is_first:
            return
        state = {"config": self._that_makes_the_result(), "epoch": self.epoch, "step": self.step}
        state["model"] = self.net.state_dict()
        if is_best:
            write_checkpoint(self.settings.out / BEST, state)
        state |= {
            "optimizer": self.optimizer.state_dict(), "random": _random_state(self.ranks.device),
            "loader": self.loaders.state_dict(), "taken": self.taken, "sums": sums, "history": self.history,
            "best_psnr": self.best_psnr,
        }  # fmt: skip
        write_checkpoint(self.settings.out / LAST, state)
        write_text(self.settings.out / HISTORY, json.dumps(self.history, indent=1) + "\n")

    def _restore(self, found: Mapping[str, Any]) -> None:
        path = self.settings.out / LAST
        check_same(path, found["config"], self._that_makes_the_result())
        self.net.load_state_dict(found["model"])
        fused = self.optimizer.param_groups[0]["fused"]
        self.optimizer.load_state_dict(found["optimizer"])
        for group in self.optimizer.param_groups:
            group["fused"] = fused  # a matter of this run's device
        self.loaders.load_state_dict(found["loader"])
        _set_random_state(found["random"], self.ranks.device)
        self.epoch, self.step, self.taken = found["epoch"], found["step"], found["taken"]
        self.history, self.best_psnr = list(found["history"]), found["best_psnr"]
        if self.ranks.is_first:  # they are sums over all processes
            self.sums += torch.tensor(found["sums"], dtype=self.sums.dtype, device=self.sums.device)
        self._print(f"resumed {path} at epoch {self.epoch}, step {self.step:,}")

    def _that_makes_the_result(self) -> dict[str, Any]:
        """By the names of the YAML."""
        found: dict[str, Any] = {"SEED": self.config.seed}
        for section, free in _FREE.items():
            values = asdict(getattr(self.config, section))
            found |= {f"{section}.{name}".upper(): value for name, value in values.items() if name not in free}
        return dict(plain(found))

    def _print(self, text: str) -> None:
        if self.ranks.is_first:
            print(text, flush=True)


class StepLog:
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
