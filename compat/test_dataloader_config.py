"""The configuration of a training, and its workers; it is `penstock check CONFIG --only configuration`.

python test_dataloader_config.py [CONFIG] [KEY=VALUE …]
"""

from __future__ import annotations

import sys

CONFIG = "configs/deblur/vrt_spike_baseline.yaml"

if __name__ == "__main__":
    from penstock._src.cli import entry

    words = sys.argv[1:] if any(word.endswith((".yaml", ".yml")) for word in sys.argv) else [CONFIG, *sys.argv[1:]]
    sys.argv[1:] = ["check", *words, "--only", "configuration"]
    entry()
