"""ACT training by the command line of the profiling guide; it is `examples/imitate_episodes.py` (docs/train/act.md).

    python imitate_episodes.py --task_name astrobench_dual_arm --ckpt_dir ./ckpt_profile --policy_class ACT \
        --kl_weight 10 --chunk_size 20 --hidden_dim 512 --batch_size 4 --dim_feedforward 3200 --num_epochs 1 \
        --lr 1e-5 --seed 0 2>&1 | tee profile.log
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"

if __name__ == "__main__":
    sys.path[0] = str(EXAMPLES)  # where the example looks for its parts
    runpy.run_path(str(EXAMPLES / "imitate_episodes.py"), run_name="__main__")
