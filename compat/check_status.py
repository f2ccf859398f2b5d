"""Configuration, files, a sample, a few steps; it is `penstock check CONFIG`.

python check_status.py [CONFIG] [KEY=VALUE …]
"""

from __future__ import annotations

import sys

CONFIG = "configs/deblur/vrt_spike_baseline.yaml"

if __name__ == "__main__":
    from penstock._src.cli import entry

    words = sys.argv[1:] if any(word.endswith((".yaml", ".yml")) for word in sys.argv) else [CONFIG, *sys.argv[1:]]
    sys.argv[1:] = ["check", *words]
    entry()
