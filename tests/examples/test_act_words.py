"""Words that make no sense are refused, sizes that hardly do get a note, weights that are none are told in a line."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from act.backbone import ResNet18  # noqa: E402
from act.data import padding_share, size_notes  # noqa: E402

from tests.examples.running import run  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize(
    "words",
    [
        "--kl_weight -1", "--kl_weight nan", "--lr 0", "--lr -0.1", "--lr much", "--num_epochs 0", "--weight_decay -1",
        "--dropout 1", "--dropout -0.1", "--seed -1", "--save_every -1", "--log_every -5", "--batch_size 0",
    ],
)  # fmt: skip
def test_nonsense_is_refused_by_name(
    words: str, reach: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        run(reach, tmp_path / "ck", *words.split())
    told = capsys.readouterr().err
    name, value = words.split()
    assert f"argument {name}: {value!r} is n" in told and "invalid" not in told
    assert not (tmp_path / "ck").exists()


@pytest.mark.parametrize(("device", "told"), [("abacus", "is no device"), ("cuda:99", "CUDA devices here")])
def test_a_device_that_is_not_there(
    device: str, told: str, reach: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(reach, tmp_path / "ck", "--device", device) == 2
    assert told in capsys.readouterr().err


def test_the_share_of_padding_is_counted() -> None:
    for rows, chunk in (([8], 4), ([8, 3, 1], 4), ([3, 3], 10), ([5], 1)):
        pads = [max(0, chunk - (length - row)) for length in rows for row in range(length)]
        assert padding_share(rows, chunk) == pytest.approx(sum(pads) / (chunk * sum(rows)))


def test_odd_sizes_get_a_note() -> None:
    assert size_notes([24] * 6, 20, 4) == []
    assert size_notes([24] * 6, 24, 144) == []
    assert size_notes([8, 24, 24], 20, 4) == []
    batch, chunk = size_notes([24, 20], 100, 200)
    assert batch == "--batch_size 200 is more than all 44 samples: an epoch is a single step"
    assert chunk.startswith("--chunk_size 100 is longer than 2 of 2 training episodes (the longest has 24 rows): 88 %")


def test_notes_are_printed(reach: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(reach, tmp_path / "ck", "--batch_size", "25", "--chunk_size", "9") == 0
    told = capsys.readouterr().out
    assert "note: --batch_size 25 is more than all 24" in told and "note: --chunk_size 9 is longer than 3 of 3" in told


def test_weights_that_are_none_are_told_in_a_line(
    reach: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    junk, odd, ck = tmp_path / "junk.pth", tmp_path / "odd.pth", tmp_path / "ck"
    junk.write_bytes(b"hello junk" * 50)
    torch.save({**dict.fromkeys(ResNet18(8).state_dict(), 3), 7: "seven"}, odd)
    for path, told in (
        (tmp_path / "no.pth", "no.pth does not exist"),
        (junk, "junk.pth (500 bytes) is cut or is no state dict of ResNet-18"),
        (odd, "odd.pth is no ResNet-18 of this shape"),
        (tmp_path, "cannot be read: Is a directory"),
    ):
        assert run(reach, ck, "--backbone_weights", str(path)) == 2
        found = capsys.readouterr().err
        assert told in found and "→" in found
    assert not ck.exists() or not list(ck.iterdir())
