"""No dead end: a refusal says what to do next, in the form that was asked for; there is always a file to edit."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import numpy as np
import pytest
import yaml

import penstock
from penstock._src.cli import main
from penstock._src.conversion.report import group_left_out, left_out
from tests.conversion import bags
from tests.conversion.bags import STATE


@pytest.fixture(scope="module")
def bag(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bags.write(tmp_path_factory.mktemp("cli") / "run.bag", bags.robot(0.6))


def _texts(path: Path) -> Path:
    """A recording without anything that becomes a feature."""
    tape = [
        bags.Message("/notes", time, bags.Text(f"note {number}"), time) for number, time in enumerate(bags.times(10, 1))
    ]
    return bags.write(path, tape)


# ── --suggest-config ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_suggested_configuration_is_printed_where_nothing_can_be_converted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(_texts(tmp_path / "texts.bag")), "--suggest-config"]) == 0
    printed = capsys.readouterr().out
    assert yaml.safe_load(printed) is None, "a file to edit: everything is a comment"
    assert "nothing that becomes a feature" in printed and "# timeline: fixed\n# fps: 30\n" in printed
    assert "/notes left out: its messages hold no numbers" in printed
    assert "field: FIELD" not in printed and "name one under features:" not in printed


def test_a_draft_without_its_comment_signs_is_a_configuration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    late = bags.joints("/late/joint_states", bags.times(50, 1, offset_s=9.0))
    path = bags.write(tmp_path / "apart.bag", bags.camera("/cam/image/compressed", bags.times(30, 1)) + late)
    words = ["features[observation.images.cam]=/cam/image/compressed", "features[observation.state]=/late/joint_states"]
    assert main(["inspect", str(path), "--suggest-config", *words]) == 0
    printed = capsys.readouterr().out
    head, _, rest = printed.partition("explains every key.\n")
    body = rest.split("# notes")[0]
    edited = yaml.safe_load("".join(line.removeprefix("# ") + "\n" for line in body.splitlines()))
    assert set(edited) == {"timeline", "fps", "features"}
    assert edited["features"]["observation.state"] == {"topic": "/late/joint_states"}
    assert "apart.bag" in head and "9.000 …" in head, "when each topic has messages says why they do not overlap"


def test_a_draft_without_a_camera_has_the_rate_that_the_hint_proposes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = bags.write(tmp_path / "joints.bag", bags.joints("/joint_states", bags.times(50, 3)))
    assert main(["inspect", str(path), "--suggest-config"]) == 0
    printed = capsys.readouterr().out
    assert "timeline=fixed fps=50" in printed and "# timeline: fixed\n# fps: 50\n" in printed


def test_a_suggested_configuration_of_a_file_without_a_rate_leaves_the_rate_open(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with h5py.File(tmp_path / "replay.hdf5", "w") as file:
        file["observations/joint"] = np.zeros((20, 3), np.float32)
        file["actions"] = np.zeros((20, 3), np.float32)
        file["rewards"] = np.zeros(20, np.float32)
        file["terminals"] = np.arange(20) == 19
    assert main(["inspect", str(tmp_path / "replay.hdf5"), "--suggest-config"]) == 0
    printed = capsys.readouterr().out
    assert "# fps: 30\n" in printed and "how many rows a second" in printed
    config = tmp_path / "edited.yaml"
    config.write_text(printed.replace("# fps: 30\n", "fps: 20\n"))
    assert penstock.convert(tmp_path / "replay.hdf5", tmp_path / "out", config=config).fps == 20


def test_a_suggested_configuration_gives_the_reasons_as_comments(
    bag: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tape = [*bags.robot(0.6), bags.Message("/notes", bags.START_NS, bags.Text("once"), bags.START_NS)]
    assert main(["inspect", str(bags.write(tmp_path / "run.bag", tape)), "--suggest-config"]) == 0
    printed = capsys.readouterr().out
    assert any("/notes" in line for line in printed.splitlines() if line.startswith("# "))
    assert "/notes" not in str(yaml.safe_load(printed))


# ── --fields ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_fields_of_a_topic_are_listed_with_type_shape_and_a_value(
    bag: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(bag), "--fields", STATE]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{STATE}  sensor_msgs/msg/JointState")
    cells = {line.split()[0]: line.split(None, 2)[1:] for line in lines[1:]}
    assert cells["position"][0] == "float64[4]" and cells["position"][1].startswith("[")
    assert cells["name"][0] == "string[4]" and cells["header.stamp"][0] == "time"


def test_fields_of_all_topics_are_paths_that_a_configuration_takes(
    bag: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", "--fields", str(bag), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {topic["name"] for topic in found["topics"]} >= {STATE, bags.CAM_H}
    numbers = [
        (topic["name"], field["path"])
        for topic in found["topics"]
        for field in topic["fields"]
        if field["type"].startswith("float") and field["shape"] != [0]
    ]
    assert (STATE, "position") in numbers
    features = {f"observation.{n}": {"topic": topic, "field": path} for n, (topic, path) in enumerate(numbers)}
    features["observation.images.cam"] = {"topic": bags.CAM_H}
    assert penstock.convert(bag, tmp_path / "out", features=features).frames == 18


def test_an_array_of_messages_lists_the_fields_of_its_first(tmp_path: Path) -> None:
    from penstock._src.recordings.messages.decode import RosDecoder
    from penstock._src.recordings.messages.definitions import parse_msg
    from penstock._src.recordings.values.fields import list_fields

    text = "pkg/Item[] items\nuint8[] data\nbool on\n===\nMSG: pkg/Item\nfloat64 x\nstring name\n"
    decoder = RosDecoder(parse_msg(text, "pkg/msg/List"), "pkg/msg/List", "ros1")
    item = np.float64(1.5).tobytes() + (2).to_bytes(4, "little") + b"ab"
    payload = (2).to_bytes(4, "little") + item * 2 + (6).to_bytes(4, "little") + bytes(range(6)) + b"\x01"
    found = {each.path: (each.type, each.shape, each.value) for each in list_fields(decoder, payload)}
    assert found == {
        "items": ("pkg/msg/Item[]", (2,), ""),
        "items[0].x": ("float64", (), "1.5"),
        "items[0].name": ("string", (), "'ab'"),
        "data": ("uint8", (6,), "00 01 02 03 …"),
        "on": ("bool", (), "True"),
    }


# ── refusals ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("verb", ["inspect", "doctor", "convert"])
def test_a_refusal_with_json_is_an_object_with_error_hint_and_exit_code(
    verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty.bag").write_bytes(b"")
    words = [str(tmp_path / "empty.bag"), *([str(tmp_path / "out")] if verb == "convert" else [])]
    code = main([verb, *words, "--json"])
    printed = capsys.readouterr()
    found = json.loads(printed.out)
    assert code == found["exit_code"] != 0 and "empty.bag" in found["error"] and "hint" in found
    assert found["error"] in printed.err


def test_one_bad_file_of_several_names_keep_going(
    bag: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.bag").write_bytes(bag.read_bytes())
    (tmp_path / "b.bag").write_bytes(bag.read_bytes()[:5000])
    assert main(["convert", str(tmp_path), str(tmp_path / "out")]) == 1
    stderr = capsys.readouterr().err
    assert "b.bag" in stderr and "--keep-going leaves out the inputs that fail" in stderr
    assert main(["convert", str(tmp_path), str(tmp_path / "out2"), "--keep-going"]) == 3
    assert main(["convert", str(tmp_path / "b.bag"), str(tmp_path / "out3")]) == 1
    assert "--keep-going" not in capsys.readouterr().err.rsplit("b.bag", 1)[-1]


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("chunk_size=5", "did you mean 'rosbag.chunk_size'?"),
        ("crf=5", "did you mean 'encoding.crf'?"),
        ("+fps=30", "'+fps=30': Hydra's '+' and '~' are not supported\n  → write fps=30"),
        ("++rosbag.chunk_size=3", "→ write rosbag.chunk_size=3"),
    ],
)
def test_a_word_of_another_tool_or_level_is_answered_with_the_right_one(
    word: str, message: str, bag: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["convert", str(bag), str(tmp_path / "out"), word]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        ("--output v2.1", "unrecognized arguments: --output; a setting is a word without dashes: output=v2.1\n"),
        ("--fps=20 --json", "a setting is a word without dashes: fps=20\n"),
        ("--rosbag.chunk-size 500", "a setting is a word without dashes: rosbag.chunk_size=500\n"),
        ("--quietly", "unrecognized arguments: --quietly\n"),
    ],
)
def test_a_setting_that_is_written_as_an_option_is_shown_as_a_word(
    options: str, advice: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["convert", "run.bag", "out", *options.split()])
    assert ended.value.code == 2 and capsys.readouterr().err.endswith(advice)


def test_a_file_to_edit_proposes_the_rate_of_the_topics(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = bags.write(tmp_path / "run.bag", bags.joints(STATE, bags.times(50, 1)))
    assert main(["inspect", str(path), "--suggest-config"]) == 0
    assert "# timeline: fixed\n# fps: 50\n" in capsys.readouterr().out


@pytest.mark.parametrize("source", ["/notes", "{topic: /notes, field: data}"])
def test_a_topic_of_texts_is_no_feature_and_may_be_the_task(
    source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["convert", str(_texts(tmp_path / "texts.bag")), str(tmp_path / "out"), "timeline=fixed", "fps=10"]
    assert main([*words, f"features={{observation.note: {source}}}"]) == 2
    refusal = capsys.readouterr().err
    assert "features.observation.note: the messages of /notes hold no numbers: std_msgs/msg/String\n  → " in refusal
    assert "episodes.task=/notes" in refusal


def test_hints_on_sparse_topics_do_not_lead_in_a_circle(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seconds = [0, 18 * bags.SECOND]
    tape = [bags.Message("/cam", bags.START_NS + ns, bags.Jpeg(b"\xff\xd8cut"), bags.START_NS + ns) for ns in seconds]
    tape += bags.joints("/joint_states", [bags.START_NS + ns for ns in seconds])
    words = ["convert", str(bags.write(tmp_path / "run.bag", tape)), str(tmp_path / "out")]
    for hint in ("leave_out=observation.images.cam", "timeline=fixed fps=1"):
        assert main(words) == 1
        assert hint in capsys.readouterr().err
        words += hint.split()
    assert main(words) == 2
    refusal = capsys.readouterr().err
    assert "/joint_states left out: too sparse for a row each: 2 messages" in refusal
    assert "run.bag --suggest-config > robot.yaml" in refusal and "policy: hold" in refusal
    assert main(["inspect", words[1], *words[3:], "--suggest-config"]) == 0
    assert "observation.state: {topic: /joint_states, field: FIELD}" in capsys.readouterr().out
    assert main([*words[:3], *words[4:], "features={observation.state: {topic: /joint_states, policy: hold}}"]) == 0


# ── rates ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_inspect_shows_no_mean_rate_of_messages_in_bursts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    times = [bags.START_NS + start * bags.SECOND + n * 500_000 for start in (0, 21) for n in range(5)]
    tape = [bags.Message("/rosout", time, bags.Text("x"), time) for time in times]
    path = bags.write(tmp_path / "run.bag", tape + bags.joints(STATE, bags.times(50, 2)))
    assert main(["inspect", str(path), "--json"]) == 0
    topics = {each["name"]: each["rate_hz"] for each in json.loads(capsys.readouterr().out)["topics"]}
    assert topics == {"/rosout": None, STATE: pytest.approx(50, rel=0.01)}
    assert main(["inspect", str(path)]) == 0
    assert "10  in bursts\n" in capsys.readouterr().out


# ── notes ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_topics_that_are_left_out_for_one_reason_are_one_line() -> None:
    notes = [left_out(f"/t{n}", "no messages") for n in range(45)] + ["something else", left_out("/x", "too wide")]
    assert group_left_out(notes) == [
        "45 topics left out: no messages: /t0, /t1, /t2, /t3 and 41 more",
        "something else",
        "/x left out: too wide",
    ]
    assert group_left_out([left_out(name, "no messages") for name in "ab"]) == ["2 left out: no messages: a, b"]


def test_notes_of_one_kind_are_grouped_unless_all_are_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    extra = [bags.Message(f"/notes_{n}", bags.START_NS + n, bags.Text("x"), bags.START_NS) for n in range(12)]
    path = bags.write(tmp_path / "run.bag", [*bags.robot(0.6), *extra])
    assert main(["convert", str(path), str(tmp_path / "out")]) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("note") and "/notes_" in line]
    assert len(lines) == 1 and "12 topics left out" in lines[0] and "and 8 more" in lines[0]
    assert main(["convert", str(path), str(tmp_path / "all"), "--verbose"]) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("note") and "/notes_" in line]
    assert len(lines) == 12
    report = json.loads((tmp_path / "out/penstock/report.json").read_text())
    assert sum("/notes_" in note for note in report["notes"]) == 12, "the report lists all of them"
