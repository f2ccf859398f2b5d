"""One sample of whole images, in the words of the DataLoader guide; `penstock check CONFIG --only sample` says more.

python test_realtime_loading.py [CONFIG] [KEY=VALUE …]
"""

from __future__ import annotations

import sys
from dataclasses import replace

from penstock._src.load.clips.config import load_clip_config
from penstock._src.prepare.check import first_sample
from penstock.errors import PenstockError

CONFIG = "configs/deblur/vrt_spike_baseline.yaml"


def main(words: list[str]) -> int:
    """Load and show the first sample of the training split."""
    config, *values = words if words and words[0].endswith((".yaml", ".yml")) else [CONFIG, *words]
    try:
        found = load_clip_config(config, values)
        clips, facts = first_sample(replace(found, data=replace(found.data, crop_size=None, augment=False)))
    except PenstockError as error:
        print(f"✗ {error}", file=sys.stderr)
        return error.exit_code
    print("✓ Dataset created successfully!", f"✓ Found {len(clips)} samples", "✓ Sample loaded successfully!", sep="\n")
    for name, each in facts.items():
        print(f"  - {name} shape: torch.Size({list(each.shape)})")
    valid = facts["spike_vox"].share_above_0 > 0
    print("✓ Voxel data looks valid!" if valid else "✗ Voxels are all zero: penstock doctor shows the likely cause")
    return 0 if valid else 3


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
