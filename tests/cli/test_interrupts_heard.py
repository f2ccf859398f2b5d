"""Ctrl-C is heard wherever Python stands."""

from __future__ import annotations

import subprocess
import sys

_LOST_ONCE = """
import signal, time, weakref
from penstock._src import cli
from penstock._src.cli import env

class Thing:
    pass

def pressed(_):
    signal.raise_signal(signal.SIGINT)

def run(args):
    thing = Thing()
    kept = weakref.ref(thing, pressed)  # Python ignores whatever its callback raises
    del thing
    time.sleep(60)
    return 0

env.run = run
cli.entry()
"""


def test_a_press_while_python_clears_away_is_not_lost() -> None:
    done = subprocess.run([sys.executable, "-c", _LOST_ONCE, "env"], capture_output=True, text=True, timeout=50)
    assert done.returncode == 130, done
    assert done.stderr == "penstock: interrupted\n"


def test_a_press_is_not_lost_however_long_the_machine_takes_over_the_first() -> None:
    """On a busy machine the signal that is sent again used to come while Python was still dealing with the first."""
    slow = """
import threading
start = threading.Thread.start
def slowly(thread):
    start(thread)
    time.sleep(0.3)
threading.Thread.start = slowly
"""
    code = _LOST_ONCE.replace("class Thing", f"{slow}\nclass Thing")
    done = subprocess.run([sys.executable, "-c", code, "env"], capture_output=True, text=True, timeout=50)
    assert done.returncode == 130, done
    assert done.stderr == "penstock: interrupted\n"


def test_other_faults_of_clearing_away_are_reported_as_ever() -> None:
    code = _LOST_ONCE.replace("signal.raise_signal(signal.SIGINT)", "raise OSError('no disk')").replace("60", "0")
    done = subprocess.run([sys.executable, "-c", code, "env"], capture_output=True, text=True, timeout=50)
    assert done.returncode == 0 and "Exception ignored" in done.stderr and "no disk" in done.stderr
