"""Encoding leaves the priority of the process as it was."""

from __future__ import annotations

import os
import subprocess
import sys

_ENCODE = """
import os, numpy, sys
from penstock._src.media.video.encode import EncoderSettings, VideoEncoder
with VideoEncoder(EncoderSettings(sys.argv[1]), 64, 64, 30) as encoder:
    encoder.encode(numpy.zeros((64, 64, 3), numpy.uint8))
    policies = set()
    for name in os.listdir("/proc/self/task"):
        try:
            policies.add(os.sched_getscheduler(int(name)))
        except ProcessLookupError:
            pass  # it has ended meanwhile
print(sorted(policies - {os.sched_getscheduler(os.getppid())}))
"""


def test_no_thread_is_a_real_time_one_after_an_av1_encoder_was_opened() -> None:
    """SVT-AV1 does that for root, and its threads would come before everything else on the machine."""
    words = [sys.executable, "-c", _ENCODE, "av1"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, env=dict(os.environ))
    assert done.stdout.strip() == "[]", done.stderr
