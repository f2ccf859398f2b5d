"""Makes docs/images/profile-page.png: a short training over demo data, its profile page, a screenshot by Chromium."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import penstock
from penstock import profile
from penstock._src.demo.recording import Script, write_recording

TARGET = Path(__file__).resolve().parent / "images" / "profile-page.png"
WIDTH_PX, HEIGHT_PX = 1180, 840


def record(folder: Path) -> Path:
    """Converts a demo recording, trains on it for a while, and writes the profile page."""
    write_recording(folder / "run.bag", Script(seconds=20))
    penstock.convert(folder / "run.bag", folder / "run", task="stack the cups")
    profile.reset()  # the page is about the training
    weights = np.random.default_rng(0).normal(size=(700, 700)).astype(np.float32)
    with (
        penstock.open(folder / "run") as store,
        penstock.Loader(store, batch_size=32, image_size=(224, 224), view="off", memory="1GiB") as loader,
    ):
        for _ in range(3):
            for _batch in loader:
                with profile.span("20_train_forward_pass"):
                    weights @ weights
                with profile.span("21_backward"):
                    weights @ weights @ weights
            profile.mark_epoch()
        print(profile.verdict())
        profile.export_html(folder / "run.html")
    return folder / "run.html"


def main() -> int:
    """Make the page and photograph it."""
    with tempfile.TemporaryDirectory() as folder:
        page = record(Path(folder))
        browser = ["chromium", "--headless", "--no-sandbox", "--hide-scrollbars", f"--screenshot={TARGET}"]
        size = f"--window-size={WIDTH_PX},{HEIGHT_PX}"
        return subprocess.run([*browser, size, "--virtual-time-budget=4000", page.as_uri()], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
