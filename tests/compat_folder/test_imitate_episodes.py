"""`python imitate_episodes.py …` and the greps of the profiling guide, as written; options behind it make it small."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from penstock._src.demo.act import ReachScript, write_episodes
from tests.compat_folder.folder import copy_of_the_folder, typed

torch = pytest.importorskip("torch")

SMALL = (
    "--dataset reach --hidden_dim 16 --dim_feedforward 16 --heads 2 --enc_layers 1 --dec_layers 1 --backbone_width 8 "
    "--chunk_size 4 --threads 1 --memory 512MiB --device cpu"
)


def test_the_training_and_the_greps_of_the_guide(tmp_path: Path) -> None:
    folder = copy_of_the_folder(tmp_path)
    write_episodes(folder / "reach", ReachScript(episodes=4, rows=8, height=32, width=48))
    ran = typed(
        folder,
        f"""set -o pipefail; python imitate_episodes.py \\
    --task_name astrobench_dual_arm \\
    --ckpt_dir ./ckpt_profile \\
    --policy_class ACT \\
    --kl_weight 10 \\
    --chunk_size 20 \\
    --hidden_dim 512 \\
    --batch_size 4 \\
    --dim_feedforward 3200 \\
    --num_epochs 1 \\
    --lr 1e-5 \\
    --seed 0 {SMALL} 2>&1 | tee profile.log
""",
    )
    assert ran.returncode == 0, ran.stdout
    assert (folder / "ckpt_profile" / "policy_best.ckpt").exists()
    table = typed(folder, 'grep -A 20 "性能分析统计" profile.log').stdout
    assert re.search(r"20_train_forward_pass .*总计:.*调用:.*平均:", table)
    assert "21_backward" in table and "22_optimizer_step" in table
    assert typed(folder, 'grep "Epoch.*总耗时" profile.log').stdout
    assert typed(folder, 'grep "耗时:" profile.log').stdout
