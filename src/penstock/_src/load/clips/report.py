"""What is printed when the loaders of a training are made: CPUs granted, workers, prefetch, cache, predicted memory."""

from __future__ import annotations

from collections.abc import Iterator

from penstock._src.load.clips.config import ClipConfig
from penstock._src.load.clips.memory import ClipMemory
from penstock._src.plan.workers import WorkerPlan
from penstock._src.system.limits import CpuLimit, MemoryLimit, describe_memory


def log_lines(
    config: ClipConfig, plan: WorkerPlan, memory: ClipMemory, cpus: CpuLimit, limit: MemoryLimit
) -> Iterator[str]:
    """The lines of the "data loading configuration"; every number is the one that is used."""
    loader = config.dataloader
    suggested = "建议值" if isinstance(loader.total_workers, str) and loader.train_workers is None else "设定值"
    lines = [
        "========== 数据加载配置 ==========",
        f"CPU核心数: {_cpus(cpus)}",
        f"总worker数: {plan.total} ({suggested}，用于所有{plan.gpus}个GPU)",
        "训练DataLoader:",
        f"  - num_workers: {plan.train} (每GPU)",
        f"  - prefetch_factor: {loader.train_prefetch_factor if plan.train else '-'}",
    ]
    if memory.val is not None:
        lines += [
            "验证DataLoader:",
            f"  - num_workers: {plan.val} (每GPU)",
            f"  - prefetch_factor: {loader.val_prefetch_factor if plan.val else '-'}",
        ]
    if memory.cache_bytes:
        lines.append(f"RAM缓存: {memory.cache_bytes / 1e9:.2f} GB (全机共用一份)")
    lines += [
        f"预计内存: {memory.describe()}",
        f"可用内存: {describe_memory(limit)}",
        f"总计: {plan.train_total} 个训练workers 利用CPU资源",
        *(f"警告: {warning}" for warning in plan.warnings),
    ]
    return (f"[train] {line}" for line in lines)


def _cpus(cpus: CpuLimit) -> str:
    """The CPUs granted; where fewer than the machine has, also by what."""
    cores = next((each.cpus for each in cpus.candidates if each.name == "cores"), cpus.granted)
    if cpus.granted >= cores:
        return f"{cpus.granted:g}"
    return f"{cpus.granted:g} (由 {cpus.ruled_by} 限定，机器有 {cores:g} 个)"
