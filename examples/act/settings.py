"""What a run is told: which of it makes the result, and which may change when it is resumed."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:  # it imports torch, which --help needs not
    from .backbone import Norm


@dataclass(frozen=True)
class Settings:
    """The words of the command line, checked."""

    task_name: str
    ckpt_dir: Path
    policy_class: str = "ACT"
    kl_weight: float = 10.0
    chunk_size: int = 20
    hidden_dim: int = 512
    dim_feedforward: int = 3200
    batch_size: int = 4
    num_epochs: int = 1
    lr: float = 1e-5
    lr_backbone: float | None = None
    weight_decay: float = 1e-4
    seed: int = 0
    dataset: Path | None = None
    cameras: tuple[str, ...] = ()
    episodes: str | None = None  # as `format_ranges` writes them; None: all
    val_share: float = 0.2
    image_size: tuple[int, int] | None = None
    enc_layers: int = 4
    dec_layers: int = 7
    heads: int = 8
    dropout: float = 0.1
    backbone_width: int = 64
    backbone_weights: Path | None = None
    norm: Norm | None = None
    amp: bool = False
    device: str = "cpu"
    memory: str = "2GiB"
    threads: str = "auto"
    view: str = "auto"
    gpu_decode: str = "auto"
    resume: bool = False
    overwrite: bool = False
    val_every: int = 1
    save_every: int = 0
    log_every: int = 50
    table_every: int = 10
    profile_out: Path | None = None
    lang: Literal["zh", "en"] = "zh"

    @property
    def chunk(self) -> int:
        """Actions of one prediction: CNNMLP predicts one."""
        return self.chunk_size if self.policy_class == "ACT" else 1

    @property
    def norm_kind(self) -> Norm:
        """Frozen where the statistics came with weights, learnt where there are none."""
        return self.norm or ("frozen" if self.backbone_weights is not None else "batch")

    def that_make_the_result(self) -> dict[str, Any]:
        """What must be the same for a resumed run; JSON-safe."""
        told = asdict(self) | {"norm": self.norm_kind}
        return {each.name: _plain(told[each.name]) for each in fields(self) if each.name not in _MAY_CHANGE}


_MAY_CHANGE = {
    "task_name", "ckpt_dir", "num_epochs", "dataset", "device", "memory", "threads", "view", "gpu_decode", "resume",
    "overwrite", "val_every", "save_every", "log_every", "table_every", "profile_out", "lang", "backbone_weights",
}  # fmt: skip


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
