"""What of a RAM cache or view processes hold: the PSS of its mappings, in which shared pages count once, or the RSS."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path


def cache_pss_bytes(pids: Iterable[int], field: str = "Pss", name: str = "penstock-cache") -> int:
    total_kib = 0
    for pid in pids:
        text = Path(f"/proc/{pid}/smaps").read_text()
        for mapping in re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", text, flags=re.MULTILINE):
            if f"memfd:{name}" in mapping.partition("\n")[0]:
                total_kib += sum(int(kib) for kib in re.findall(rf"^{field}:\s+(\d+) kB", mapping, re.MULTILINE))
    return total_kib * 1024
