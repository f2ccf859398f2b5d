"""What docs/train/vqa.md shows runs as it is written."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from penstock._src.demo.vqa import ShapeScript, write_vqa_set  # noqa: E402

PAGE = Path(__file__).resolve().parents[3] / "docs" / "train" / "vqa.md"
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


def test_the_code_of_the_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_vqa_set(tmp_path / "shapes", ShapeScript(scenes=160, questions=5))
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 5
    for block in blocks:
        exec(block, names)
    printed = capsys.readouterr().out
    assert "(3, 64, 64)" in printed and "(32,) (32,)" in printed
    assert "1 ('1 malformed records are left out: " in printed and "line 2 (byte 41)" in printed
    assert names["state"]["position"] == 640
    names["stream"].close(), names["dataset"].close(), names["broken"].close()
