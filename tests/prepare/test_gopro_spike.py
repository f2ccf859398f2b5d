"""`penstock prepare gopro-spike` makes one folder from the public layouts, and says what is missing."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from penstock._src.cli import main
from penstock._src.prepare.gopro_spike import prepare_gopro_spike
from penstock.errors import LimitExceeded, OutputExists, StoreError, UsageError
from tests.prepare.trees import NAMES, SEQUENCES, fill, listing, s_sdm, spk_gopro

EXPECTED = {
    f"{split}/{name}/{part}/{stem}{'.dat' if part == 'spike' else '.png'}"
    for split, sequences in SEQUENCES.items()
    for name in sequences
    for part in ("blur", "sharp", "spike")
    for stem in NAMES
}


def tree(root: Path) -> dict[str, tuple[str, int]]:
    """Every name below a folder with what it is and when it was last changed; links are not followed."""
    return {
        str(path.relative_to(root)): (os.readlink(path) if path.is_symlink() else "", path.lstat().st_mtime_ns)
        for path in root.rglob("*")
    }


@pytest.mark.parametrize("use_symlinks", [True, False])
@pytest.mark.parametrize("layout", ["two roots", "one root above", "s-sdm", "seed"])
def test_every_layout_becomes_the_same_folder(tmp_path: Path, layout: str, use_symlinks: bool) -> None:
    raw, out = tmp_path / "raw", tmp_path / "processed" / "unified"
    if layout == "s-sdm":
        sources = [s_sdm(raw)]
    else:
        images, spikes = spk_gopro(raw, blur="blur" if layout == "seed" else "blur_gamma")
        sources = [images, spikes] if layout != "one root above" else [raw]
    report = prepare_gopro_spike(sources, out, use_symlinks=use_symlinks)
    assert report.exit_code == 0 and report.problems == []
    assert set(listing(out)) == EXPECTED
    made = {"links_made": 9} if use_symlinks else {"files_copied": 27, "bytes": sum(map(len, listing(out).values()))}
    assert report.counted == {
        "train_sequences": 2, "train_blurred_images": 6, "test_sequences": 1, "test_blurred_images": 3, **made,
    }  # fmt: skip


def test_links_are_relative_and_survive_a_move(tmp_path: Path) -> None:
    data = tmp_path / "data"
    spk_gopro(data / "raw")
    out = data / "processed" / "unified"
    prepare_gopro_spike([data / "raw"], out, use_symlinks=True)
    link = out / "train" / "GOPR0372_07_00" / "blur"
    assert os.readlink(link) == "../../../../raw/GOPRO_Large/train/GOPR0372_07_00/blur_gamma"
    before = listing(out)
    data.rename(tmp_path / "moved")
    assert listing(tmp_path / "moved" / "processed" / "unified") == before


def test_links_hold_where_the_output_lies_behind_a_link(tmp_path: Path) -> None:
    spk_gopro(tmp_path / "raw")
    (tmp_path / "deep" / "disk").mkdir(parents=True)
    (tmp_path / "out").symlink_to(tmp_path / "deep" / "disk")
    prepare_gopro_spike([tmp_path / "raw"], tmp_path / "out" / "set", use_symlinks=True)
    assert set(listing(tmp_path / "out" / "set")) == EXPECTED


@pytest.mark.parametrize("use_symlinks", [True, False])
def test_a_second_run_changes_nothing_and_a_later_one_adds_what_is_new(tmp_path: Path, use_symlinks: bool) -> None:
    images, spikes = spk_gopro(tmp_path / "raw")
    out = tmp_path / "raw" / "unified"  # inside the source: not taken for one
    prepare_gopro_spike([tmp_path / "raw"], out, use_symlinks=use_symlinks)
    before = tree(out)
    again = prepare_gopro_spike([tmp_path / "raw"], out, use_symlinks=use_symlinks)
    assert tree(out) == before
    assert again.counted["links_kept" if use_symlinks else "files_kept"] == (9 if use_symlinks else 27)
    for root, part, suffix in ((images, "blur_gamma", ".png"), (images, "sharp", ".png"), (spikes, "spike", ".dat")):
        fill(root / "test" / "GOPR0410_11_00" / part, suffix)
    more = prepare_gopro_spike([tmp_path / "raw"], out, use_symlinks=use_symlinks)
    assert more.counted["links_made" if use_symlinks else "files_copied"] == (3 if use_symlinks else 9)
    assert len(listing(out)) == 36


def test_a_copy_that_was_cut_or_is_old_is_made_again(tmp_path: Path) -> None:
    images, _ = spk_gopro(tmp_path / "raw")
    out = tmp_path / "out"
    prepare_gopro_spike([tmp_path / "raw"], out, use_symlinks=False)
    (out / "train" / "GOPR0372_07_00" / "blur" / "000001.png").write_bytes(b"cut")
    changed = images / "train" / "GOPR0372_07_00" / "sharp" / "000002.png"
    changed.write_bytes(b"x" * changed.stat().st_size)
    os.utime(changed, (1, 1))
    report = prepare_gopro_spike([tmp_path / "raw"], out, use_symlinks=False)
    assert (report.counted["files_copied"], report.counted["files_kept"]) == (2, 25)
    assert listing(out)["train/GOPR0372_07_00/sharp/000002.png"] == changed.read_bytes()


def test_what_is_missing_is_named_and_the_rest_is_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images, spikes = spk_gopro(tmp_path / "raw")
    shutil.rmtree(spikes / "train" / "GOPR0372_07_00")
    (images / "test" / "GOPR0384_11_05" / "sharp" / "000002.png").unlink()
    fill(images / "test" / "EMPTY" / "blur", ".png", [])
    fill(images / "test" / "EMPTY" / "sharp", ".png")
    fill(images / "test" / "EMPTY" / "spike", ".dat")
    code = main(["prepare", "gopro-spike", str(images), str(spikes), "--out", str(tmp_path / "out"), "--use_symlinks"])
    shown = capsys.readouterr().out
    assert code == 3
    assert "train/GOPR0372_07_00: no folder spike" in shown and "left out" in shown
    assert "test/GOPR0384_11_05: 1 without a partner: test/GOPR0384_11_05: 000002 is missing in" in shown
    assert "test/EMPTY" in shown and "has no .png/.jpg/.jpeg file" in shown
    assert "train          1 sequence · 3 blurred images" in shown and "6 links · 0 were there" in shown
    assert not (tmp_path / "out" / "train" / "GOPR0372_07_00").exists()


def test_json_says_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spk_gopro(tmp_path / "raw")
    shutil.rmtree(tmp_path / "raw" / "GOPRO_Large" / "test")
    assert main(["prepare", "gopro-spike", str(tmp_path / "raw"), "--out", str(tmp_path / "out"), "--json"]) == 3
    found = json.loads(capsys.readouterr().out)
    assert found["counted"]["files_copied"] == 18
    assert [each["where"] for each in found["problems"]] == ["test/GOPR0384_11_05"]


def test_the_blurred_images_of_a_set_with_both_kinds(tmp_path: Path) -> None:
    images, spikes = spk_gopro(tmp_path / "raw")
    for folder in images.glob("*/*/blur_gamma"):
        fill(folder.parent / "blur", ".png")
    first = "train/GOPR0372_07_00/blur/000001.png"
    for words, expected in (
        ([], "/blur_gamma/"), (["--blur", "blur,blur_gamma"], "/blur/"), (["--blur", "nothing,blur"], "/blur/"),
    ):  # fmt: skip
        out = tmp_path / expected.strip("/") / str(len(words))
        shutil.rmtree(out, ignore_errors=True)
        assert (
            main(["prepare", "gopro-spike", str(images), str(spikes), "--out", str(out), "--use_symlinks", *words]) == 0
        )
        assert expected.encode() in listing(out)[first]
    for folder in spikes.glob("*/*/spike"):  # now all of a sequence lies together
        folder.rename(images / folder.relative_to(spikes))
    prepare_gopro_spike([images], tmp_path / "together", use_symlinks=True)
    assert b"/blur/" in listing(tmp_path / "together")[first]


def test_two_data_sets_at_once_are_refused(tmp_path: Path) -> None:
    spk_gopro(tmp_path / "raw")
    s_sdm(tmp_path / "raw")
    with pytest.raises(UsageError, match=r"has two folders 'sharp'.*GOPRO"):
        prepare_gopro_spike([tmp_path / "raw"], tmp_path / "out", use_symlinks=True)


def test_nothing_of_others_is_replaced(tmp_path: Path) -> None:
    spk_gopro(tmp_path / "raw")
    link = tmp_path / "out" / "train" / "GOPR0372_07_00" / "blur"
    (tmp_path / "other").mkdir()
    link.parent.mkdir(parents=True)
    link.symlink_to(tmp_path / "other")
    with pytest.raises(OutputExists, match=r"leads to .*other, not to"):
        prepare_gopro_spike([tmp_path / "raw"], tmp_path / "out", use_symlinks=True)
    with pytest.raises(OutputExists, match="files would be copied into that"):
        prepare_gopro_spike([tmp_path / "raw"], tmp_path / "out", use_symlinks=False)
    (tmp_path / "other").rmdir()  # now it leads nowhere
    assert prepare_gopro_spike([tmp_path / "raw"], tmp_path / "out", use_symlinks=True).exit_code == 0
    link.unlink()
    link.mkdir()
    with pytest.raises(OutputExists, match="is not replaced by a link"):
        prepare_gopro_spike([tmp_path / "raw"], tmp_path / "out", use_symlinks=True)


def test_nothing_to_prepare_says_what_was_expected(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a directory"):
        prepare_gopro_spike([tmp_path / "nowhere"], tmp_path / "out", use_symlinks=True)
    (tmp_path / "empty").mkdir()
    with pytest.raises(StoreError, match="no sequences were found"):
        prepare_gopro_spike([tmp_path / "empty"], tmp_path / "out", use_symlinks=True)
    images, _ = spk_gopro(tmp_path / "raw")
    with pytest.raises(StoreError, match=r"no sequence has all of blur, sharp, spike: test/GOPR0384_11_05: no folder"):
        prepare_gopro_spike([images], tmp_path / "out", use_symlinks=True)


def test_a_disk_that_is_too_small_is_refused_with_the_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spk_gopro(tmp_path / "raw")
    free = shutil.disk_usage(tmp_path)._replace(free=100)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: free)
    with pytest.raises(LimitExceeded, match=r"needs \d+ B more, 100 B are free there\n.*--use_symlinks"):
        prepare_gopro_spike([tmp_path / "raw"], tmp_path / "out", use_symlinks=False)
    assert not (tmp_path / "out").exists()
    assert prepare_gopro_spike([tmp_path / "raw"], tmp_path / "out", use_symlinks=True).exit_code == 0
