"""The documented scripts run as written: imports, four scenarios, and the output of `python memory_utils.py`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

SCENARIOS = """
from memory_utils import BatchSizeCalculator, DatasetOptimizer, DatasetSizeEstimator, MemoryMonitor

# 场景1：加载数据集前检查内存
if not MemoryMonitor.check_memory_available(required_gb=10.0):
    print("内存不足，建议使用流式加载")

# 场景2：估算数据集内存需求
estimate = DatasetSizeEstimator.estimate_vqa_dataset_memory(
    num_samples=1000000,
    image_size=(224, 224),
    preload_images=True
)
print(f"需要内存: {estimate['total_gb']:.2f} GB")

# 场景3：获取优化建议
recommendations = DatasetOptimizer.analyze_and_recommend(
    data_path="data/train.json",
    batch_size=16
)
DatasetOptimizer.print_recommendations(recommendations)

# 场景4：计算最优batch size
max_bs = BatchSizeCalculator.calculate_max_batch_size(
    model_params=110,  # 110M参数
    image_size=(224, 224),
    sequence_length=128,
    available_gpu_memory_gb=16.0
)
print(f"推荐batch size: {max_bs}")
"""


def _run(directory: Path, *words: str) -> str:
    places = [str(ROOT / "compat"), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, places)), "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run(
        [sys.executable, *words], cwd=directory, env=environment, capture_output=True, text=True, encoding="utf-8"
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_four_scenarios_run_as_written(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    records = [{"image": f"{n}.jpg", "question": "what?", "answer": "this"} for n in range(50)]
    (tmp_path / "data" / "train.json").write_text(json.dumps(records))
    (tmp_path / "scenarios.py").write_text(SCENARIOS, encoding="utf-8")
    shown = _run(tmp_path, "scenarios.py")
    assert "需要内存: 564.10 GB\n" in shown  # a million images of 588 KiB, texts of 2.4 GB, metadata of 1 GB
    assert "样本数量: 50\n" in shown
    assert "推荐策略: small_dataset\n" in shown
    assert "  2. 建议batch_size: 16" in shown
    assert shown.endswith("推荐batch size: 40\n")


def test_its_main_prints_the_documented_lines(tmp_path: Path) -> None:
    shown = _run(tmp_path, str(ROOT / "compat" / "memory_utils.py"))
    number = r"\d+\.\d\d GB"
    wanted = [
        "=" * 60, "内存使用情况", "=" * 60, f"系统总内存: {number}", f"系统可用内存: {number}",
        rf"系统已用内存: {number} \(\d+\.\d%\)", f"进程RSS内存: {number}",
    ]  # fmt: skip
    lines = [line for line in shown.splitlines() if not line.startswith("限制来自: ")]
    for line, pattern in zip(lines, wanted, strict=False):
        assert re.fullmatch(pattern, line), line
    # What was documented: questions 0.01 GB, answers 0.00 GB, in all 0.11 GB.
    assert shown.split("\n\n", 1)[1] == "\n".join(
        [
            "=" * 60, "数据集内存估算", "=" * 60, "样本数量: 100,000", "图像内存: 0.00 GB (懒加载)",
            "问题内存: 0.19 GB", "答案内存: 0.05 GB", "元数据内存: 0.10 GB", "总计: 0.33 GB",
            "=" * 60, "", "推荐策略: " + _strategy(shown),
            "推荐最大batch size: 40", "",
        ]
    )  # fmt: skip


def _strategy(shown: str) -> str:
    """By the rule: 56 GB of images, texts and metadata against what the first part says is available."""
    found = re.search(r"系统可用内存: (\S+) GB", shown)
    assert found is not None
    available = float(found[1])
    return "small_dataset" if available > 112.8 else "medium_dataset" if available > 28.2 else "large_dataset"


def test_importing_its_tools_imports_no_torch(tmp_path: Path) -> None:
    code = "import sys, penstock.plan; print('torch' in sys.modules, 'h5py' in sys.modules)"
    assert _run(tmp_path, "-c", code) == "False False\n"
