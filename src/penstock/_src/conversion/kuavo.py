"""The configuration of Kuavo's converter (KuavoRosbag2Lerobot.yaml), translated to penstock's settings.

job = arguments("configs/data", "KuavoRosbag2Lerobot", ["rosbag.rosbag_dir=bags", "rosbag.lerobot_dir=out"])
penstock.convert(job.sources, job.out, **job.values)
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as option
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from penstock._src import recordings
from penstock._src.conversion.inputs.input import LOOKED_AT
from penstock._src.system import config
from penstock.errors import ConfigError, PenstockError, RecordingError

if TYPE_CHECKING:
    from penstock._src.recordings.recording import Recording

ROBOT_TYPE = "kuavo4pro"
DEFAULT_CONFIG_PATH = "configs/data"
DEFAULT_CONFIG_NAME = "KuavoRosbag2Lerobot"

STATE_TOPIC = "/sensors_data_raw"
COMMAND_TOPIC = "/joint_cmd"
# The arms' targets in degrees, best first: the one that was resampled to be steady, then the raw one.
ARM_TOPICS = ("/kuavo_arm_traj_synced", "/kuavo_arm_traj")
BASE_TOPIC = "/cmd_pose_world_synced"
CAMERAS = {"head_cam_h": "cam_h", "wrist_cam_l": "cam_l", "wrist_cam_r": "cam_r"}
COLOUR_TOPIC = "/{}/color/image_raw/compressed"
DEPTH_TOPICS = {  # without their last part, which is the transport
    "cam_h": "/cam_h/depth/image_raw",
    "cam_l": "/cam_l/depth/image_rect_raw",
    "cam_r": "/cam_r/depth/image_rect_raw",
}

_SIDES = {"left": ("left",), "right": ("right",), "both": ("left", "right")}
_ARM = {"left": (12, 19), "right": (19, 26)}  # within the 28 joints of the body
_LEGS = [
    f"{side}_{joint}"
    for side in ("l", "r")
    for joint in ("leg_roll", "leg_yaw", "leg_pitch", "knee", "foot_pitch", "foot_roll")
]
_HEAD = ["head_yaw", "head_pitch"]
_SAMPLE_SEED = 42  # the same bags are chosen every time, so that a killed job resumes with them

EndEffector = Literal["auto", "leju_claw", "qiangnao", "rq2f85", "none"]


@dataclass(frozen=True)
class Rosbag:
    """`rosbag:` — where from, where to, and how many."""

    rosbag_dir: str | None = None
    num_used: int | None = None
    lerobot_dir: str | None = None
    chunk_size: Any = 1000  # checked with penstock's own settings


@dataclass(frozen=True)
class Resize:
    """`dataset.resize:` in pixels."""

    width: int
    height: int


@dataclass(frozen=True)
class KuavoDataset:
    """`dataset:` — what becomes of a recording."""

    only_arm: bool = True
    eef_type: EndEffector = "auto"
    which_arm: Literal["left", "right", "both"] = "both"
    use_depth: bool = False
    depth_range: tuple[float, float] = (0.0, 1500.0)
    task_description: str = "Pick and Place"
    train_hz: int = 10
    main_timeline: str = "head_cam_h"
    main_timeline_fps: int = 30
    sample_drop: int = 0
    dex_dof_needed: int = 1
    is_binary: bool = False
    delta_action: bool = False
    relative_start: bool = False
    resize: Resize | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.dex_dof_needed <= 6:
            raise ValueError(f"dex_dof_needed is {self.dex_dof_needed}; a hand has 1 to 6")
        for name in ("train_hz", "main_timeline_fps"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; expected 1 or more")
        if self.main_timeline not in CAMERAS and not self.main_timeline.startswith("/"):
            raise ValueError(f"main_timeline is {self.main_timeline!r}; expected {', '.join(CAMERAS)} or a topic")


@dataclass(frozen=True)
class KuavoConfig:
    """The whole file; `hydra:` and penstock's own keys may stand beside it."""

    rosbag: Rosbag = option(default_factory=Rosbag)
    dataset: KuavoDataset = option(default_factory=KuavoDataset)


@dataclass(frozen=True)
class KuavoJob:
    """What `penstock convert` does with such a configuration: `values` are settings of penstock."""

    sources: tuple[Path, ...]
    out: Path
    values: Mapping[str, Any]
    notes: tuple[str, ...]


class _Signal(NamedTuple):
    """The state or the command of an end effector: where it lies, and what makes it 0 to 1."""

    topic: str
    fields: Mapping[str, str]  # by side
    full: float
    closed: float  # above it, is_binary says 1


class _EndEffector(NamedTuple):
    """An end effector."""

    state: _Signal
    command: _Signal
    names: str


def _sliced(field: str, left: tuple[int, int], right: tuple[int, int]) -> dict[str, str]:
    return {"left": f"{field}[{left[0]}:{left[1]}]", "right": f"{field}[{right[0]}:{right[1]}]"}


def _hand(kind: EndEffector, fingers: int) -> _EndEffector:
    pair = ((0, 1), (1, 2))
    if kind == "leju_claw":
        state = command = _sliced("data.position", *pair)
        return _EndEffector(
            _Signal("/leju_claw_state", state, 100, 50), _Signal("/leju_claw_command", command, 100, 50), "{}_claw"
        )
    if kind == "rq2f85":
        state = command = _sliced("position", *pair)
        return _EndEffector(
            _Signal("/gripper/state", state, 0.8, 0.4), _Signal("/gripper/command", command, 255, 70), "{}_claw"
        )
    state = _sliced("position", (0, fingers), (6, 6 + fingers))
    command = {side: f"{side}_hand_position[0:{fingers}]" for side in ("left", "right")}
    commanded = _Signal("/control_robot_hand_position", command, 100, 50)
    return _EndEffector(_Signal("/dexhand/state", state, 100, 50), commanded, "{}_qiangnao")


HANDS: tuple[EndEffector, ...] = ("leju_claw", "qiangnao", "rq2f85")


def arguments(
    config_path: str | Path | None,
    config_name: str | None,
    overrides: Iterable[str] = (),
    *,
    sources: Sequence[str | Path] = (),
    out: str | Path | None = None,
) -> KuavoJob:
    """Read the configuration, find the recordings and translate; `sources` and `out` stand in for the two keys."""
    tree, words = _read(config_path, config_name, overrides)
    known = {key: tree.pop(key) for key in ("rosbag", "dataset") if tree.get(key) is not None}
    tree.pop("hydra", None)  # where Hydra would keep its own files
    settings = config.build(KuavoConfig, known)
    paths = list(sources) or ([settings.rosbag.rosbag_dir] if settings.rosbag.rosbag_dir else [])
    target = out or settings.rosbag.lerobot_dir
    if not paths or not target:
        missing = "rosbag.lerobot_dir" if paths else "rosbag.rosbag_dir"
        raise ConfigError(f"{missing} is not set", hint=f"add the word {missing}=/path/to/…, or set it in the file")
    try:
        used, notes = _used(recordings.find(paths), settings.rosbag.num_used)
    except RecordingError as error:
        named = "rosbag.rosbag_dir=… names the recordings"
        error.hint = error.hint if sources else f"{error.hint}; {named}" if error.hint else named
        raise
    with _open_first(used) as recording:
        values, more = translate(settings, recording)
    merged = {**values, **{key: value for key, value in tree.items() if key != "features"}}
    merged["features"] = {**values["features"], **(tree.get("features") or {})}
    return KuavoJob(tuple(used), Path(target), config.apply_overrides(merged, words), (*notes, *more))


def _read(
    config_path: str | Path | None, config_name: str | None, overrides: Iterable[str]
) -> tuple[dict[str, Any], list[str]]:
    """The file with Kuavo's words applied, and the words that are penstock's own."""
    name = config_name or DEFAULT_CONFIG_NAME
    path = Path(config_path or DEFAULT_CONFIG_PATH) / name
    if path.suffix not in (".yaml", ".yml"):
        path = path.with_name(path.name + ".yaml")
    if not path.is_file():
        raise ConfigError(f"{path}: no such configuration", hint="--config-path DIR --config-name NAME.yaml")
    kuavo_words: list[str] = []
    own_words: list[str] = []
    for word in overrides:
        (kuavo_words if word.partition(".")[0] in ("rosbag", "dataset", "hydra") else own_words).append(word)
    return config.apply_overrides(config.load_yaml(path), kuavo_words), own_words


def _used(paths: list[Path], num_used: int | None) -> tuple[list[Path], list[str]]:
    """As many recordings as `num_used` says: chosen at random as its users know, but the same ones every time."""
    if num_used is None:
        return paths, []
    if num_used < 1:
        raise ConfigError(f"rosbag.num_used is {num_used}", hint="null takes all recordings")
    if num_used >= len(paths):
        short = [f"rosbag.num_used is {num_used}, and there are {len(paths)}: all are used"]
        return paths, short if num_used > len(paths) else []
    chosen = sorted(random.Random(_SAMPLE_SEED).sample(range(len(paths)), num_used))
    names = ", ".join(paths[i].name for i in chosen[:8]) + (" …" if num_used > 8 else "")
    return [paths[i] for i in chosen], [f"rosbag.num_used: {num_used} of {len(paths)} recordings: {names}"]


def _open_first(paths: Sequence[Path]) -> Recording:
    """Its topics say which hand the robot wears: the first whole one, as a damaged one may lack some."""
    damaged: list[Path] = []
    failed: PenstockError | None = None
    for path in paths:
        try:
            recording = recordings.open(path, on_corrupt="count")
        except PenstockError as error:
            failed = failed or error
            continue
        if not recording.losses:
            return recording
        recording.close()
        damaged.append(path)
        if len(damaged) >= LOOKED_AT:
            break
    if not damaged:
        raise failed or RecordingError("no recording was found")
    return recordings.open(damaged[0], on_corrupt="count")


# From their words to ours


def translate(settings: KuavoConfig, recording: Recording) -> tuple[dict[str, Any], list[str]]:
    """Settings of penstock for recordings like this one, and what the user should know about them."""
    topics = {topic.name for topic in recording.topics if topic.count}
    dataset = settings.dataset
    notes: list[str] = []
    if STATE_TOPIC not in topics:
        raise ConfigError(
            f"{recording.path} has no {STATE_TOPIC}: it is not a recording of a Kuavo",
            hint="without --config-path and --config-name, penstock maps the topics of any robot",
        )
    hand = _end_effector(dataset, topics, recording, notes)
    main = CAMERAS.get(dataset.main_timeline)
    timeline = dataset.main_timeline if main is None else COLOUR_TOPIC.format(main)
    values: dict[str, Any] = {
        "fps": dataset.train_hz,
        "timeline": timeline,
        "sample_drop": dataset.sample_drop,
        "task": dataset.task_description,
        "robot_type": ROBOT_TYPE,
        "depth_range": list(dataset.depth_range),
        "rosbag": {"chunk_size": settings.rosbag.chunk_size},
    }
    if dataset.resize is not None:
        values["resize"] = [dataset.resize.height, dataset.resize.width]
    values["features"] = {**_cameras(dataset, topics), **_numbers(dataset, hand, topics, notes)}
    return values, notes


def _end_effector(
    dataset: KuavoDataset, topics: set[str], recording: Recording, notes: list[str]
) -> _EndEffector | None:
    kind = dataset.eef_type
    if kind == "auto":
        seen = [each for each in HANDS if _hand(each, 1).state.topic in topics]
        if len(seen) > 1:
            raise ConfigError(
                f"{recording.path} has the topics of several end effectors: {', '.join(seen)}",
                hint=f"choose one: dataset.eef_type={seen[0]}",
            )
        kind = seen[0] if seen else "none"
        notes.append(f"dataset.eef_type: {kind}" + ("" if seen else " (no topic of an end effector is recorded)"))
    return None if kind == "none" else _hand(kind, dataset.dex_dof_needed)


def _cameras(dataset: KuavoDataset, topics: set[str]) -> dict[str, Any]:
    """The head's camera and those of the wrists in use, each with its depth where that is asked for."""
    wanted = ["head_cam_h", *(f"wrist_cam_{side[0]}" for side in _SIDES[dataset.which_arm])]
    features: dict[str, Any] = {}
    for name in wanted:
        camera = CAMERAS[name]
        features[f"observation.images.{name}"] = {"topic": COLOUR_TOPIC.format(camera)}
        if dataset.use_depth:
            transports = [f"{DEPTH_TOPICS[camera]}/{name}" for name in ("compressedDepth", "compressed")]
            recorded = next((topic for topic in transports if topic in topics), transports[0])
            features[f"observation.depth_{camera[-1]}"] = {"topic": recorded}
    return features


def _numbers(dataset: KuavoDataset, hand: _EndEffector | None, topics: set[str], notes: list[str]) -> dict[str, Any]:
    state, state_names = _body(
        dataset,
        lambda first, stop: {"topic": STATE_TOPIC, "field": f"joint_data.joint_q[{first}:{stop}]"},
        None,
        hand and (hand.state, hand.names),
    )
    arm_topic = next((topic for topic in ARM_TOPICS if topic in topics), None)
    if arm_topic is None:
        notes.append(f"{ARM_TOPICS[-1]} is not recorded: the arms' actions are {COMMAND_TOPIC} joint_q[12:26]")
    action, action_names = _body(
        dataset,
        lambda first, stop: {"topic": COMMAND_TOPIC, "field": f"joint_q[{first}:{stop}]"},
        arm_topic,
        hand and (hand.command, hand.names),
    )
    if not dataset.only_arm and BASE_TOPIC in topics:
        for field, name in (("linear.x", "x"), ("linear.y", "y"), ("angular.z", "yaw")):
            action.append({"topic": BASE_TOPIC, "field": f"twist.{field}", "absolute": True})
            action_names.append(f"cmd_pos_{name}")
    features: dict[str, Any] = {
        "observation.state": {"sources": state, "names": state_names, "relative_start": dataset.relative_start},
        "action": {"sources": action, "names": action_names, "relative_start": dataset.relative_start},
    }
    if dataset.delta_action:
        features["action"]["relative_to"] = "observation.state"
    return features


def _body(
    dataset: KuavoDataset,
    joints: Callable[[int, int], dict[str, Any]],
    arm_topic: str | None,
    hand: tuple[_Signal, str] | None,
) -> tuple[list[dict[str, Any]], list[str]]:
    """[legs,] left arm, left hand, right arm, right hand [, head]: the sources, and a name for every value."""
    sources: list[dict[str, Any]] = []
    names: list[str] = []
    if not dataset.only_arm:
        sources.append(joints(0, 12))
        names += _LEGS
    for side in _SIDES[dataset.which_arm]:
        first, stop = _ARM[side]
        if arm_topic is None:
            sources.append(joints(first, stop))
        else:
            field = f"position[{first - 12}:{stop - 12}]"
            sources.append({"topic": arm_topic, "field": field, "unit": "deg"})
        names += [f"zarm_{side[0]}{i}_link" for i in range(1, 8)]
        if hand is not None:
            signal, pattern = hand
            source: dict[str, Any] = {"topic": signal.topic, "field": signal.fields[side], "absolute": True}
            source.update({"threshold": signal.closed} if dataset.is_binary else {"scale": 1 / signal.full})
            sources.append(source)
            name = pattern.format(side)
            fingers = dataset.dex_dof_needed if pattern.endswith("qiangnao") else 0
            names += [f"{name}_{i}" for i in range(1, fingers + 1)] or [name]
    if not dataset.only_arm:
        sources.append(joints(26, 28))
        names += _HEAD
    return sources, names
