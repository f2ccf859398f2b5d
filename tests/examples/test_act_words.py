"""Words that make no sense are refused, sizes that hardly do get a note, weights that are none are told in a line."""

from __future__ import annotations

import re
from pathlib import Path

import h5py
import pytest

from penstock.errors import UsageError

torch = pytest.importorskip("torch")

from act.backbone import ResNet18  # noqa: E402
from act.data import padding_share, size_notes  # noqa: E402
from act.ranges import format_ranges, parse_ranges  # noqa: E402
from act.words import in_options  # noqa: E402

from tests.examples.making import write_walks  # noqa: E402
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
    stderr = capsys.readouterr().err
    name, value = words.split()
    assert re.search(rf"argument {name}: '{value}'(: must be| is not)", stderr) and "invalid" not in stderr
    assert not (tmp_path / "ck").exists()


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("abacus", "is no device"),
        ("cuda:99", "CUDA devices here"),
        ("cpu:1", "there is one cpu"),
        ("meta", "cpu or cuda"),
    ],
)
def test_a_device_that_is_not_there(
    device: str, message: str, reach: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(reach, tmp_path / "ck", "--device", device) == 2
    assert message in capsys.readouterr().err


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
    stdout = capsys.readouterr().out
    assert (
        "note: --batch_size 25 is more than all 24" in stdout and "note: --chunk_size 9 is longer than 3 of 3" in stdout
    )


def test_weights_that_are_none_are_reported_in_a_line(
    reach: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    junk, odd, ck = tmp_path / "junk.pth", tmp_path / "odd.pth", tmp_path / "ck"
    junk.write_bytes(b"hello junk" * 50)
    torch.save({**dict.fromkeys(ResNet18(8).state_dict(), 3), 7: "seven"}, odd)
    for path, reported in (
        (tmp_path / "no.pth", "no.pth does not exist"),
        (junk, "junk.pth (500 bytes) is cut or is no state dict of ResNet-18"),
        (odd, "odd.pth is no ResNet-18 of this shape"),
        (tmp_path, "cannot be read: Is a directory"),
    ):
        assert run(reach, ck, "--backbone_weights", str(path)) == 2
        found = capsys.readouterr().err
        assert reported in found and "→" in found
    assert not ck.exists() or not list(ck.iterdir())


def test_too_little_memory_is_reported_with_what_would_do(
    reach: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for given, both in (("8MiB", True), ("100MiB", False)):
        assert run(reach, tmp_path / "ck", "--memory", given) == 1
        stderr = capsys.readouterr().err
        assert f"--memory {given} is too little" in stderr and "a quarter, " in stderr and "for validation" in stderr
        assert ("training needs" in stderr) is both and "memory=" not in stderr
    enough = re.search(r"→ --memory (\d+)MiB, a smaller --batch_size", stderr)
    assert enough is not None
    assert run(reach, tmp_path / "ck", "--memory", f"{enough[1]}MiB") == 0
    assert run(reach, tmp_path / "less", "--memory", f"{int(enough[1]) - 4}MiB") == 1


def test_a_camera_that_a_file_lacks_can_be_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write_walks(tmp_path / "data", cameras=("cam_high", "cam_low"))
    with h5py.File(data / "episode_1.hdf5", "r+") as file:
        del file["observations/images/cam_low"]
    assert run(data, tmp_path / "ck") == 1
    stderr = capsys.readouterr().err
    assert "--episodes" in stderr and "--cameras" in stderr and "episodes=" not in stderr and "columns=" not in stderr
    assert run(data, tmp_path / "one", "--cameras", "cam_high") == 0
    assert run(data, tmp_path / "two", "--episodes", "0,2-3") == 0
    assert "2 cameras" in capsys.readouterr().out


def test_some_episodes_are_trained_on_and_belong_to_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, ck = write_walks(tmp_path / "data", episodes=6), tmp_path / "ck"
    (data / "episode_3.hdf5").write_bytes(b"cut")
    assert run(data, ck, "--episodes", "5,0-2,1") == 0
    assert "3 episodes to train (18 samples), 1 to validate (6)" in capsys.readouterr().out
    assert run(data, ck, "--episodes", "0-2,5", "--resume", "--num_epochs", "2") == 0
    capsys.readouterr()
    assert run(data, ck, "--episodes", "0-2,4", "--resume", "--num_epochs", "3") == 2
    assert "episodes was '0-2,5', is '0-2,4'" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "a", "3-1", "1,,2", "-1", "0-99999999999"])
def test_episodes_that_are_no_numbers(text: str) -> None:
    with pytest.raises(UsageError, match="--episodes"):
        parse_ranges(text)


def test_ranges_are_read_and_written() -> None:
    assert parse_ranges("0-3, 7,2") == [0, 1, 2, 3, 7] and format_ranges([0, 1, 2, 3, 7, 9, 10]) == "0-3,7,9-10"


def test_hints_name_options() -> None:
    for hint, reported in (
        ("columns=[…] without 'cam' opens the others", "--cameras A,B without 'cam' opens the others"),
        ('memory="9MiB", a smaller batch_size or a smaller image_size',
         "--memory 9MiB, a smaller --batch_size or a smaller --image_size"),
        ("image_size=(224, 224), or None; --batch_size 3", "--image_size 224x224, or None; --batch_size 3"),
        ('episodes="whole" opens those that are whole: episodes=[1, 2, 4, 5] (4 of 6)',
         "those that are whole: --episodes 1-2,4-5 (4 of 6)"),
        ("episodes=[0, 1, 2, 7, …] (90 of 99)", "--episodes 0-2,7,… (90 of 99)"),
        ('memory="48MiB" (of a command: --memory 48MiB)', "--memory 48MiB"),
        ("episodes=[…] opens the others", "--episodes 0-40,45 opens the others"),
        ("episodes=[…] without 7", "--episodes 0-40,45 without 7"),
        ('on_error="skip" leaves such samples out and counts them; `penstock doctor` tells',
         "leave its episode out with --episodes; `penstock doctor` tells"),
    ):  # fmt: skip
        assert in_options(UsageError("no", hint=hint)).hint == reported


def test_a_last_batch_that_batch_norm_cannot_take(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write_walks(tmp_path / "data", episodes=2, width=32)  # six samples to train on
    assert run(data, tmp_path / "ck") == 2
    stderr = capsys.readouterr().err
    assert (
        "6 samples in batches of 5 leave a batch of one" in stderr
        and "32×32" in stderr
        and "→ --batch_size 6" in stderr
    )
    for number, words in enumerate((["--batch_size", "6"], ["--norm", "group"], ["--image_size", "64x64"])):
        assert run(data, tmp_path / str(number), *words) == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--threads 0", "--threads: '0' is not"),
        ("--threads abc", "--threads: 'abc' is not"),
        ("--threads cpu*0", "--threads: 'cpu*0' is not"),
        ("--val_share 0", "--val_share 0 is not between 0 and 1\n  → a fifth: --val_share 0.2"),
        ("--val_share 1", "--val_share 1 is not between 0 and 1"),
        ("--val_share nan", "--val_share nan is not between 0 and 1"),
        ("--chunk_size 20000000", "--chunk_size 20,000,000 is more than 10,000\n  → 20 to 100 are usual"),
    ],
)
def test_words_that_do_not_fit_are_reported_by_their_own_names(
    words: str, message: str, reach: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(reach, tmp_path / "ck", *words.split()) == 2
    assert f"imitate_episodes: {message}" in capsys.readouterr().err and not (tmp_path / "ck").exists()


def test_a_directory_that_is_a_file_is_reported(
    reach: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "ck").touch()
    for words in ([], ["--resume"], ["--eval"]):
        assert run(reach, tmp_path / "ck", *words) == 2
        assert f"--ckpt_dir {tmp_path / 'ck'} is a file\n  → " in capsys.readouterr().err


def test_what_cnnmlp_has_not_is_no_reason_to_refuse_it(
    reach: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--hidden_dim", "9", "--heads", "2", "--chunk_size", "20000"]
    assert run(reach, tmp_path / "ck", *words, "--policy_class", "CNNMLP") == 0
    assert run(reach, tmp_path / "act", *words) == 2
    assert "--hidden_dim 9 cannot be split into 2 --heads" in capsys.readouterr().err


def test_a_long_chunk_is_among_the_causes_of_too_little_memory(
    reach: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(reach, tmp_path / "ck", "--chunk_size", "10000", "--memory", "90MiB") == 1
    assert "a smaller --batch_size, --chunk_size or --image_size" in capsys.readouterr().err


def test_a_cache_that_is_full_is_reported_in_options(
    reach: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE_LIMIT", "4KiB")
    assert run(reach, tmp_path / "ck", "--view", "disk") == 1
    stderr = capsys.readouterr().err
    assert "→ --view ram keeps what --memory has room for; or take a smaller --image_size" in stderr
    assert "build_view" not in stderr
    assert run(reach, tmp_path / "ck", "--view", "ram") == 0
