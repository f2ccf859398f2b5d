"""What docs/reference/spike-files.md shows is what its code prints."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SHARED = ROOT / ".." / "shared" / "data" / "spike"


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data are not here")
def test_the_first_example_prints_what_the_page_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "docs" / "reference" / "spike-files.md").read_text()
    found = re.search(r"```python\n(.*?)```\n\n```text\n(.*?)```", text, re.DOTALL)
    assert found is not None
    monkeypatch.chdir(SHARED)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(found[1], {})
    assert printed.getvalue().split() == found[2].split()
