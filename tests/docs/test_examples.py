"""The examples of the documentation run: commands and Python blocks of a page, one after the other, on small data.

A block that begins with the comment `# needs …` is only compiled or parsed, except where it needs torch or lerobot and
has it.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from penstock._src.cli import main
from penstock._src.conversion.settings import read_settings
from penstock._src.demo.recording import Script, write_recording
from penstock._src.load.clips.config import clip_config
from penstock._src.system import plain_yaml
from tests.docs import pages
from tests.stores import hdf5_files

_RUN = [page for page in pages.pages() if not pages.is_chinese(page) and "```" in pages.read(page)]
# Pages whose examples have a test of their own, with data made for them.
_ELSEWHERE = {
    "docs/reference/spike-files.md": "tests/media/spike/test_spike_docs.py",
    "docs/reference/spike-training.md": "tests/load/clips/test_training_docs.py",
    "docs/train/spike.md": "tests/prepare/test_guide.py",
    "docs/train/vqa.md": "tests/load/vqa/test_vqa_docs.py",
}


def _that_need(package: str) -> list[Path]:
    return [page for page in _RUN if f"\n# needs {package}\n" in pages.read(page)]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that the pages speak of, small."""
    import penstock

    root = tmp_path_factory.mktemp("docs")
    write_recording(root / "run.bag", Script(seconds=5, width=64, height=48))
    for day in ("day1", "day2"):
        (root / day).mkdir()
        write_recording(root / day / f"{day}.bag", Script(seconds=1, width=64, height=48))
    penstock.convert(root / "run.bag", root / "datasets" / "run", task="stack the cups")
    penstock.convert(root / "run.bag", root / "old_v21", task="stack the cups", output="v2.1", video="copy")
    for day in ("monday", "tuesday"):
        shutil.copytree(root / "datasets" / "run", root / "datasets" / day)
    (root / "aloha").mkdir()
    for number in range(2):
        hdf5_files.aloha(root / "aloha" / f"episode_{number}.hdf5", 9 + number, number)
    hdf5_files.robomimic(root / "demos.hdf5")
    hdf5_files.replay(root / "replay.hdf5")
    _write_replay(root / "offline_dataset.hdf5")
    (root / "broken.bag").write_bytes((root / "run.bag").read_bytes()[:300_000])
    return root


def _write_replay(path: Path, rows: int = 20) -> None:
    """A replay file with the three cameras, 16 joints and 4 actions of the guide."""
    with h5py.File(path, "w") as file:
        for camera in ("left_image", "right_image", "global_image"):
            file[f"observations/{camera}"] = np.zeros((rows, 24, 32, 3), np.uint8)
        file["observations/joint"] = np.zeros((rows, 16), np.float32)
        file["actions"] = np.ones((rows, 4), np.float32)
        file["rewards"] = np.zeros(rows, np.float32)
        file["terminals"] = np.arange(rows) % 10 == 9


def _commands(text: str) -> list[list[str]]:
    """The words of every line that calls penstock; a line may go on behind a backslash."""
    lines = text.replace("\\\n", " ").splitlines()
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("penstock ")]


def _quicker(words: list[str]) -> list[str]:
    """What lets a measurement end at once: its figures are not looked at."""
    if words[:2] == ["bench", "load"]:
        return ["--seconds", "0.05", "--batch-sizes", "8", "--memory", "256MiB"]
    quick = ["--seconds", "0.05", "--batch-size", "4", "--image-size", "8x8", "--memory", "256MiB"]
    return quick if words[0] == "plan" and "--history" not in words else []


def _run_command(words: list[str]) -> None:
    written = io.StringIO()
    target = None
    if ">" in words:
        words, (target,) = words[: words.index(">")], words[words.index(">") + 1 :]
    places = [word for word in words[1:] if "=" not in word and not word.startswith("-")]
    if words[0] == "convert" and "datasets/run" in places[1:] and not {"--resume", "--append"} & set(words):
        shutil.rmtree("datasets/run")  # the page begins without it
    with contextlib.redirect_stdout(written):
        code = main([*words, *_quicker(words)])
    # A damaged recording is recovered with loss.
    assert code == (3 if words[0] == "recover" else 0), (words, written.getvalue())
    if target is not None:
        Path(target).write_text(written.getvalue(), encoding="utf-8")


@pytest.fixture
def here(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working directory with a copy of these files."""
    shutil.copytree(made, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    for each in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(each, raising=False)


def _run_page(page: Path, packages: tuple[str, ...] = ()) -> None:
    """Every block, one after the other; those that need something run where it is one of these packages."""
    names: dict[str, Any] = {}
    try:
        for block in pages.blocks(pages.read(page)):
            if block.kind == "python":
                code = compile("\n" * block.line + block.text, pages.name_of(page), "exec")
            if block.needs is not None and block.needs not in packages:
                continue
            if block.kind == "python":
                exec(code, names)
            elif block.kind == "sh":
                for words in _commands(block.text):
                    _run_command(words)
    finally:
        for value in names.values():
            if type(value).__module__.startswith("penstock.") and hasattr(value, "close"):
                value.close()


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("page", [page for page in _RUN if pages.name_of(page) not in _ELSEWHERE], ids=pages.name_of)
def test_the_examples_run(page: Path) -> None:
    _run_page(page)


@pytest.mark.usefixtures("here")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
@pytest.mark.parametrize("page", _that_need("torch"), ids=pages.name_of)
def test_the_examples_with_torch_run(page: Path) -> None:
    pytest.importorskip("torch")
    _run_page(page, ("torch",))


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("page", _that_need("lerobot"), ids=pages.name_of)
def test_the_examples_with_lerobot_run(page: Path) -> None:
    pytest.importorskip("lerobot")
    _run_page(page, ("lerobot",))


def test_pages_with_tests_of_their_own_name_tests_that_are_there() -> None:
    for page, test in _ELSEWHERE.items():
        assert (pages.REPOSITORY / page).exists()
        assert page.removeprefix("docs/") in re.sub(
            r'" / "', "/", (pages.REPOSITORY / test).read_text(encoding="utf-8")
        )


def test_languages_of_blocks_are_known() -> None:
    known = {"python", "sh", "text", "yaml", "json", "toml", "csv"}
    unknown = [
        f"{pages.name_of(page)}: {block.kind or 'no language'} in line {block.line}"
        for page in pages.pages()
        for block in pages.blocks(pages.read(page))
        if block.kind not in known
    ]
    assert unknown == []


_YAML = [
    pytest.param(block, id=f"{pages.name_of(page)}:{block.line}")
    for page in _RUN
    for block in pages.blocks(pages.read(page))
    if block.kind == "yaml"
]


@pytest.mark.parametrize("block", _YAML)
def test_every_yaml_block_is_a_configuration(block: pages.Block, tmp_path: Path) -> None:
    text = block.text
    if block.needs is not None:  # of another program
        assert plain_yaml.parse(text, "docs")
        return
    if text.startswith("SEED:"):
        clip_config(plain_yaml.parse(text, "docs"))
        return
    path = tmp_path / "run.yaml"
    path.write_text(text, encoding="utf-8")
    if text.startswith("task:"):  # a file beside a recording
        assert set(plain_yaml.parse(text, "docs")) == {"task", "episodes"}
    else:
        read_settings(path)
