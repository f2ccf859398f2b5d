"""What a training prints, in the language of its timing table; notes and errors are English."""

from __future__ import annotations

from typing import Any, Literal

Language = Literal["zh", "en"]

_MESSAGES = {
    "data": (
        "{kind}: {train} episodes to train ({train_samples:,} samples), {val} to validate ({val_samples:,}); "
        "{cameras} cameras {height}×{width}, state {state}, action {action}",
        "{kind}: 训练 {train} 个 episode（{train_samples:,} 个样本），验证 {val} 个（{val_samples:,}）；"
        "{cameras} 个相机 {height}×{width}，状态 {state} 维，动作 {action} 维",
    ),
    "model": (
        "{policy}: {millions:.1f} million parameters on {device}",
        "{policy}: {millions:.1f} 百万参数，设备 {device}",
    ),
    "demo": (
        "no --dataset: the demo task is in {directory} ({mb:.1f} MB)",
        "未给出 --dataset: 示例任务在 {directory}（{mb:.1f} MB）",
    ),
    "nothing": (
        "already at epoch {epoch} of {epochs}: nothing to train",
        "已到第 {epoch} 个 epoch（共 {epochs} 个）: 无需训练",
    ),
    "best": ("best val l1 {l1:.4f} · {directory}", "最佳验证 l1 {l1:.4f} · {directory}"),
    "resumed": ("resumed {path} at epoch {epoch}, step {step:,}", "从 {path} 恢复: epoch {epoch}，第 {step:,} 步"),
    "saved": ("  step {step:,}: saved", "  第 {step:,} 步: 已保存"),
    "step": (
        "  step {step:,} of {total:,}, {each} a step, {means}",
        "  第 {step:,}/{total:,} 步，每步 {each}，{means}",
    ),
    "train": ("  train {means}", "  训练 {means}"),
    "val": (
        " · val l1 {l1:.4f} (predict the mean {mean:.4f}{stay})",
        " · 验证 l1 {l1:.4f}（预测均值 {mean:.4f}{stay}）",
    ),
    "stay": (", stay {stay:.4f}", "，保持不动 {stay:.4f}"),
    "pace": (" · {ms:.1f} ms/step, plus {saving} for checkpoints", " · {ms:.1f} ms/步，另有检查点 {saving}"),
}


def message(key: str, language: Language, **values: Any) -> str:
    """One line of output."""
    return _MESSAGES[key][language == "zh"].format(**values)
