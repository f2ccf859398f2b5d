"""meta/modality.json, by which GR00T knows the parts of a v2.1 data set: joint groups, cameras, annotations.

    {"state": {"left_arm": {"start": 0, "end": 7}, …}, "action": {…},
     "video": {"cam_h": {"original_key": "observation.images.cam_h"}},
     "annotation": {"human.task_description": {"original_key": "task_index"}}}

A vector is split where the names of all its numbers say which limb they belong to; else it is one part, `all`.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import Any

from penstock._src.lerobot.features import Feature
from penstock._src.lerobot.tasks import ANNOTATION, table_of

STATE_KEY, ACTION_KEY = "observation.state", "action"
WHOLE = "all"
TASK_ANNOTATION = "human.task_description"  # what GR00T's own examples call the task of a row

_CAMERA_PREFIX = "observation.images."
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_SIDES = {"left": "left", "l": "left", "right": "right", "r": "right"}
# The first limb of which a name has a word; a gripper at an arm is a gripper.
_LIMBS: tuple[tuple[str, frozenset[str]], ...] = (
    ("gripper", frozenset({"gripper", "claw", "jaw"})),
    ("hand", frozenset({"hand", "qiangnao", "dexhand", "finger", "thumb", "index", "middle", "ring", "pinky"})),
    ("arm", frozenset({"arm", "zarm", "shoulder", "elbow", "forearm", "wrist"})),
    ("leg", frozenset({"leg", "hip", "knee", "ankle", "foot"})),
    ("head", frozenset({"head", "neck"})),
    ("waist", frozenset({"waist", "torso"})),
    ("base", frozenset({"base", "wheel"})),
)


def modality(features: Sequence[Feature]) -> dict[str, Any]:
    """The contents of modality.json for a data set with these features."""
    parts: dict[str, dict[str, Any]] = {"state": {}, "action": {}}
    others: dict[str, dict[str, Any]] = {"state": {}, "action": {}}
    video: dict[str, Any] = {}
    annotation: dict[str, Any] = {TASK_ANNOTATION: {"original_key": "task_index"}}
    for feature in features:
        kind = "action" if feature.key.startswith("action") else "state"
        if feature.dtype == "video":
            video[feature.key.removeprefix(_CAMERA_PREFIX)] = {"original_key": feature.key}
        elif feature.key.startswith(ANNOTATION) and table_of(feature) == "tasks":
            annotation[feature.key.removeprefix(ANNOTATION)] = {}
        elif feature.key in (STATE_KEY, ACTION_KEY):
            parts[kind] = _spans(feature)
        elif _is_vector(feature) and feature.key.startswith(("observation.", "action.")):
            others[kind][feature.key] = _span(0, feature.shape[0], feature.key)
    for kind, named in parts.items():
        for key, span in others[kind].items():
            short = key.split(".", 1)[1]
            named[key if short in named else short] = span
    return {**parts, "video": video, "annotation": annotation}


def _is_vector(feature: Feature) -> bool:
    return feature.dtype.startswith("float") and len(feature.shape) == 1


def _span(start: int, end: int, original_key: str | None = None) -> dict[str, Any]:
    return {"start": start, "end": end, **({} if original_key is None else {"original_key": original_key})}


def _spans(feature: Feature) -> dict[str, Any]:
    """The parts of `observation.state` or `action`, which need no `original_key`."""
    if len(feature.shape) != 1 or not feature.is_numeric:
        return {}
    spans: dict[str, Any] = {}
    start = 0
    for group, members in itertools.groupby(map(joint_group, feature.dimension_names)):
        end = start + len(list(members))
        if group is None or group in spans:  # a part must be one run of numbers
            return {WHOLE: _span(0, feature.shape[0])}
        spans[group] = _span(start, end)
        start = end
    return spans if start == feature.shape[0] else {WHOLE: _span(0, feature.shape[0])}


def joint_group(name: str) -> str | None:
    """The limb that a joint belongs to, by the words of its name; None where they do not say.

    >>> joint_group("kLeftShoulderPitch"), joint_group("gripper.pos"), joint_group("joint_3")
    ('left_arm', 'gripper', None)
    """
    words = [word.lower() for word in _WORD.findall(name)]
    side = next((_SIDES[word] for word in words if word in _SIDES), None)
    limb = next((limb for limb, known in _LIMBS if not known.isdisjoint(words)), None)
    if limb is None:
        return None
    if side is not None:
        return f"{side}_{'arm' if limb == 'waist' else limb}"  # the first joint of a table-top arm is its waist
    return "single_arm" if limb == "arm" else limb
