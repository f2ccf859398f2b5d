"""Configurations are checked to the last key, and every complaint says where."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock._src.system import config, plain_yaml
from penstock._src.system.units import duration_text, parse_bytes, parse_duration_ns
from penstock.errors import ConfigError, UsageError


@dataclass(frozen=True)
class Video:
    mode: Literal["copy", "h264", "av1"] = "copy"
    size: tuple[int, int] | None = None
    crf: float | int | None = None

    def __post_init__(self) -> None:
        if self.crf is not None and self.crf < 0:
            raise ValueError(f"crf must not be negative, it is {self.crf}")


@dataclass(frozen=True)
class Topic:
    path: str
    names: tuple[str, ...] = ()
    scale: float | tuple[float, ...] = 1.0
    tolerance_ns: int | None = field(default=None, metadata={"parse": parse_duration_ns, "dump": duration_text})


@dataclass(frozen=True)
class Settings:
    fps: int | None = None
    sample_drop: int = 0
    split_episodes: bool = False
    task: str = ""
    gain: float = 1.0
    out: Path = Path("out")
    video: Video = field(default_factory=Video)
    topics: dict[str, Topic] = field(default_factory=dict)
    sources: list[str | Topic] = field(default_factory=list)
    extra: Mapping[str, Sequence[int]] = field(default_factory=dict)
    memory: int | None = field(default=None, metadata={"parse": parse_bytes})
    anything: Any = None


def _build(*words: str) -> Settings:
    return config.build(Settings, config.apply_overrides({}, words))


def _complaint(*words: str) -> str:
    with pytest.raises(ConfigError) as caught:
        _build(*words)
    return str(caught.value)


def test_a_tree_becomes_frozen_dataclasses_all_the_way_down() -> None:
    tree = {
        "fps": 30,
        "video": {"size": [480, 640], "crf": 1},
        "topics": {"observation.state": {"path": "/joints", "names": ["a", "b"], "tolerance_ns": "40ms"}},
        "sources": ["plain", {"path": "/x", "scale": [1, 2.5]}],
        "extra": {"a": [1, 2]},
        "memory": "512MiB",
        "out": "here",
        "gain": 2,
    }
    assert config.build(Settings, tree) == Settings(
        fps=30,
        video=Video(size=(480, 640), crf=1),
        topics={"observation.state": Topic("/joints", ("a", "b"), tolerance_ns=40_000_000)},
        sources=["plain", Topic("/x", scale=(1.0, 2.5))],
        extra={"a": (1, 2)},
        memory=512 * 1024**2,
        out=Path("here"),
        gain=2.0,
    )


def test_nothing_given_means_the_defaults_and_an_instance_is_taken_as_it_is() -> None:
    assert config.build(Settings, {}) == Settings()
    ready = Video("h264")
    assert config.build(Settings, {"video": ready}).video is ready


def test_an_unknown_key_suggests_the_close_one_and_lists_the_known() -> None:
    text = _complaint("fpss=30")
    assert "unknown key 'fpss' in the configuration; did you mean 'fps'?" in text
    assert "known keys: fps, sample_drop" in text
    assert "unknown key 'sized' in video; did you mean 'size'?" in _complaint("video.sized=1")
    assert "did you mean 'sample_drop'?" in _complaint("sample-drop=1")
    assert "did you mean" not in _complaint("zzz=1")
    text = _complaint("topics[observation.state].path=/a", "topics[observation.state].nmaes=[]")
    assert "unknown key 'nmaes' in topics.observation.state; did you mean 'names'?" in text


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("fps=fast", "fps: expected a whole number or null, got 'fast' (text)"),
        ("fps=29.97", "fps: expected a whole number or null, got 29.97 (a number)"),
        ("fps=true", "fps: expected a whole number or null, got True (true or false)"),
        ("sample_drop=null", "sample_drop: expected a whole number, got null"),
        ("split_episodes=yes", "split_episodes: expected true or false, got 'yes' (text)"),
        ("task=5", "task: expected text, got 5 (a whole number)"),
        ("gain=.nan", "gain: expected a number, got nan (a number)"),
        ("video=copy", "video: expected a mapping of mode, size, crf, got 'copy' (text)"),
        ("video.mode=h265", "video.mode: expected one of 'copy', 'h264', 'av1', got 'h265'"),
        ("video.mode=h265", "; did you mean 'h264'?"),
        ("video.size=[1]", "video.size: expected 2 values, got 1"),
        ("video.size=[1,b]", "video.size[1]: expected a whole number, got 'b' (text)"),
        ("video.size=12", "video.size: expected a list of 2 (a whole number, a whole number) or null, got 12"),
        ("video.crf=-1", "video: crf must not be negative, it is -1"),
        ("topics={a: {}}", "missing key 'path' in topics.a"),
        ("topics=[1]", "topics: expected a mapping from text to a mapping of path, names"),
        ("topics={a: {path: /a, names: [x, 2]}}", "topics.a.names[1]: expected text, got 2"),
        ("topics={a: {path: /a, scale: [x]}}", "topics.a.scale[0]: expected a number, got 'x'"),
        ("topics={a: {path: /a, tolerance_ns: soon}}", "topics.a.tolerance_ns: 'soon' is not a duration"),
        ("sources=[3]", "sources[0]: expected text or a mapping of path"),
        ("sources=[{pth: /a}]", "unknown key 'pth' in sources[0]; did you mean 'path'?"),
        ("extra={a: [1, x]}", "extra.a[1]: expected a whole number"),
        ("extra={1: []}", "extra: key 1: expected text"),
        ("memory=lots", "memory: 'lots' is not a size"),
    ],
)
def test_a_wrong_value_names_its_path_the_value_and_what_is_expected(word: str, expected: str) -> None:
    assert expected in _complaint(word)


def test_a_choice_is_compared_with_its_type() -> None:
    @dataclass(frozen=True)
    class Level:
        level: Literal[0, 1] = 0

    assert config.build(Level, {"level": 1}) == Level(1)
    for bad in (True, 1.0, "1"):
        with pytest.raises(ConfigError, match="level: expected one of 0, 1"):
            config.build(Level, {"level": bad})


def test_null_is_allowed_exactly_where_the_type_says_so() -> None:
    assert _build("memory=null", "fps=null", "video.size=null").memory is None


def test_a_key_without_default_is_required() -> None:
    with pytest.raises(ConfigError, match="missing key 'path' in the configuration"):
        config.build(Topic, {})


def test_the_root_may_have_a_name() -> None:
    with pytest.raises(ConfigError, match=r"run\.yaml\.fps: expected"):
        config.build(Settings, {"fps": "x"}, where="run.yaml")


# Overrides


def test_overrides_set_nested_keys_in_order_and_leave_the_original_alone() -> None:
    tree = {"a": {"b": 1}, "list": [{"x": 1}, {"x": 2}]}
    words = ["a.c=2", "a.b=3", "a.b=4", "new.deep.key=[1, two]", "list.1.x=9", "empty="]
    assert config.apply_overrides(tree, words) == {
        "a": {"b": 4, "c": 2},
        "list": [{"x": 1}, {"x": 9}],
        "new": {"deep": {"key": [1, "two"]}},
        "empty": None,
    }
    assert tree == {"a": {"b": 1}, "list": [{"x": 1}, {"x": 2}]}


def test_keys_with_dots_go_in_brackets_or_are_found_when_they_exist() -> None:
    changed = config.apply_overrides({}, ["topics[observation.state].path=/a"])
    assert changed == {"topics": {"observation.state": {"path": "/a"}}}
    changed = config.apply_overrides(changed, ["topics.observation.state.path=/b", "topics[observation.state].scale=2"])
    assert changed == {"topics": {"observation.state": {"path": "/b", "scale": 2}}}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("30", 30),
        ("-0.5", -0.5),
        ("1e-3", 0.001),
        ("0x10", 16),
        ("true", True),
        ("null", None),
        ("~", None),
        ("/cam_h/color", "/cam_h/color"),
        ("pick: the #3 cup", "pick: the #3 cup"),
        ("cpu*0.8", "cpu*0.8"),
        ("a=b", "a=b"),
        ("12:30", "12:30"),
        ("2024-01-01", "2024-01-01"),
        ("no", "no"),
        ("'5'", "5"),
        ("{a: [1]}", {"a": [1]}),
        ("<<", "<<"),
    ],
)
def test_override_values_are_words_lists_or_mappings(text: str, value: object) -> None:
    found = config.apply_overrides({}, [f"key={text}"])["key"]
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("bad", ["fps", "=3", "a..b=1", "a.[]=1", ".a=1", "a.=1", "a[b=1", ""])
def test_a_word_that_is_no_override_says_so(bad: str) -> None:
    with pytest.raises(ConfigError, match="not of the form key=value"):
        config.apply_overrides({}, [bad])


def test_an_override_into_something_that_is_no_mapping_is_refused() -> None:
    with pytest.raises(ConfigError, match="holds a whole number, not a mapping"):
        config.apply_overrides({"fps": 30}, ["fps.x=1"])
    with pytest.raises(ConfigError, match="not an item of a list of 1"):
        config.apply_overrides({"list": [1]}, ["list.1=1"])


# YAML


def _file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "run.yaml"
    path.write_bytes(text.encode())
    return path


def test_a_file_is_read_as_plain_data_by_the_rules_of_yaml_1_2(tmp_path: Path) -> None:
    text = "a: 1e-3\nb: no\nc: 12:30\nd: 2024-01-01\ne: 010\nf: [on, ~]\ng: &x {h: 1}\ni: {<<: *x, j: 2}\nk: .5\n"
    assert config.load_yaml(_file(tmp_path, text)) == {
        "a": 0.001,
        "b": "no",
        "c": "12:30",
        "d": "2024-01-01",
        "e": 10,
        "f": ["on", None],
        "g": {"h": 1},
        "i": {"h": 1, "j": 2},
        "k": 0.5,
    }
    assert config.load_yaml(_file(tmp_path, "")) == {}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: 1\nb: [1, 2\n", "line 3"),
        ("a: 1\n\nb: 2\na: 3\n", "line 4, column 1: the key 'a' is here twice"),
        ("a:\n  b: !!python/object/apply:os.system ['true']\n", "line 2, column 6"),
        ("a: !!python/name:os.system\n", "penstock reads plain data only"),
        ("a: !mine 3\n", "penstock reads plain data only"),
        ("- 1\n- 2\n", "expected `key: value` lines, found a list of 2"),
        ("just words\n", "expected `key: value` lines, found text"),
        ("a: 1\n---\nb: 2\n", "line 2"),
        ("a: \x07\n", "not readable as YAML"),
        ("{[1]: 2}\n", "line 1"),
        ("a: !!int x\n", "not readable as YAML"),
        ("a: " + "[" * 2_000 + "\n", "run.yaml"),
    ],
)
def test_what_is_no_plain_mapping_is_refused_with_file_and_line(tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config.load_yaml(_file(tmp_path, text))
    assert "run.yaml" in str(caught.value)
    assert expected in str(caught.value)


def test_files_that_are_missing_huge_or_binary_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        config.load_yaml(tmp_path / "nowhere.yaml")
    with pytest.raises(ConfigError, match="larger than 1,048,576 bytes"):
        config.load_yaml(_file(tmp_path, "#" * (config.MAX_CONFIG_BYTES + 1)))
    binary = tmp_path / "run.yaml"
    binary.write_bytes(b"a: \xff\xfe")
    with pytest.raises(ConfigError, match="byte 3 is not UTF-8"):
        config.load_yaml(binary)


_ODD_WORDS = ["no", "1e3", "0x1", "12:30", "null", "~", "", "<<", "- a", "a: b", "010"]
_WORDS = st.text(max_size=20) | st.sampled_from(_ODD_WORDS)
_TREES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | _WORDS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_WORDS, inner, max_size=4),
    max_leaves=12,
)


@given(_TREES)
def test_what_is_dumped_reads_back_the_same(tree: object) -> None:
    again = plain_yaml.parse(plain_yaml.dump(tree), "text")
    assert again == tree
    assert repr(again) == repr(tree)


@given(st.text(max_size=60))
def test_any_text_gives_a_value_or_a_config_error(text: str) -> None:
    try:
        plain_yaml.parse(text, "text")
    except ConfigError as error:
        assert "text" in str(error)


@given(st.lists(st.text(max_size=20), max_size=3))
def test_any_words_give_settings_or_a_usage_error(words: list[str]) -> None:
    try:
        config.build(Settings, config.apply_overrides({"fps": 3, "sources": [1]}, words))
    except UsageError as error:
        assert error.exit_code == 2


def test_settings_survive_the_round_trip_and_defaults_can_be_left_out(tmp_path: Path) -> None:
    settings = _build("fps=30", "task='12'", "topics[o.s]={path: /a, names: [x, y], tolerance_ns: 40ms}", "memory=1GiB")
    for skip_defaults in (False, True):
        text = config.dump_yaml(settings, skip_defaults=skip_defaults)
        assert config.build(Settings, config.load_yaml(_file(tmp_path, text))) == settings
    assert config.dump_yaml(settings, skip_defaults=True) == (
        "fps: 30\n"
        "task: '12'\n"
        "topics:\n"
        "  o.s:\n"
        "    path: /a\n"
        "    names: [x, y]\n"
        "    tolerance_ns: 40ms\n"
        "memory: 1073741824\n"
    )


@dataclass(frozen=True)
class Loud:
    upper_case_keys: ClassVar[bool] = True
    batch_size: int = 1


def test_keys_may_be_written_in_upper_case() -> None:
    made = config.build(Loud, {"BATCH_SIZE": 4})
    assert made == Loud(4) and config.dump_yaml(made) == "BATCH_SIZE: 4\n"
    with pytest.raises(ConfigError, match="did you mean 'BATCH_SIZE'"):
        config.build(Loud, {"batch_size": 4})
    with pytest.raises(ConfigError, match=r"DATA\.BATCH_SIZE: expected a whole number"):
        config.build(Loud, {"BATCH_SIZE": "x"}, "DATA")
