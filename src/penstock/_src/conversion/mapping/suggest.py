"""The configuration that a recording would be converted with, as YAML to keep and edit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from penstock._src.conversion.inputs.recording import RecordingPlan
from penstock._src.conversion.mapping.numeric_topics import can_be_named
from penstock._src.conversion.mapping.topics import find_features, proposed_fps
from penstock._src.conversion.settings import FIXED, FeatureSettings, Settings, TopicSource
from penstock._src.recordings.recording import Recording
from penstock._src.recordings.values.transforms import TRANSFORM_TYPES
from penstock._src.system import config
from penstock.errors import PenstockError

_HEAD = """\
# What `penstock convert` would do with {name}: keep this file, change what you like, and give it as --config.
# rows: {rows:,} at {fps} fps · docs/reference/configuration.md explains every key.
"""


_DRAFT_HEAD = """\
# `penstock convert` cannot use {name} as it is:
{reason}
# Remove the '# ' before what you need, change it, and give this file as --config.
# docs/reference/configuration.md explains every key.
"""


def suggest_yaml(plan: RecordingPlan, notes: Sequence[str] = ()) -> str:
    """A configuration that gives the same data set as the settings that the plan was made with; notes as comments."""
    settings = plan.settings
    head = _HEAD.format(name=plan.recording.path.name, rows=plan.paired.rows, fps=plan.paired.fps)
    episodes = settings.episodes
    if episodes.subtasks == plan.marks.has_subtasks:  # found, not asked for: another recording may have some
        episodes = replace(episodes, subtasks=None)
    rest = config.dump_yaml(replace(settings, features={}, episodes=episodes)).replace("features: {}\n", "")
    vectors = {vector.key for vector in plan.columns.vectors}
    features = {key: _written(feature, key in vectors) for key, feature in settings.features.items()}
    return head + comment(notes) + rest + config.dump_yaml({"features": features}, skip_defaults=True)


def comment(lines: Iterable[str], indent: str = "") -> str:
    """Lines of YAML, or of anything else, as comments."""
    return "".join(f"# {indent}{line}".rstrip() + "\n" for text in lines for line in text.splitlines())


def draft_head(name: str, error: PenstockError) -> str:
    """Why a conversion is not possible as it is, and what to do, as the first lines of a file to edit."""
    reason = [error.message, *([f"→ {error.hint}"] if error.hint else [])]
    return _DRAFT_HEAD.format(name=name, reason=comment(reason, "  ").rstrip("\n"))


def draft_yaml(recording: Recording, settings: Settings, error: PenstockError) -> str:
    """A file to edit where the plan failed: the reason, and all that is known, commented out."""
    notes: list[str] = []
    features: Mapping[str, FeatureSettings] = settings.features
    try:
        features = features or find_features(recording, settings, notes)
    except PenstockError:
        pass  # what fails here is the reason that is given already
    features = {key: feature for key, feature in features.items() if key not in settings.leave_out}
    used = {source.topic for feature in features.values() for source in feature.sources}
    fps = settings.fps or proposed_fps(recording, [topic for topic in recording.topics if topic.name in used])
    written = config.dump_yaml({"timeline": settings.timeline or FIXED, "fps": fps})
    first = next((topic for topic in recording.topics if can_be_named(recording, topic)), None)
    if not features and first is not None:
        source = "tf: base→tool" if first.type in TRANSFORM_TYPES else f"topic: {first.name}, field: FIELD"
        written += f"features:\n  observation.state: {{{source}}}\n"
    if features:
        written += config.dump_yaml(
            {"features": {key: _written(each, False) for key, each in features.items()}}, skip_defaults=True
        )
    return (
        draft_head(recording.path.name, error)
        + comment(written.splitlines())
        + comment(notes and ["notes:"])
        + comment(notes, "  ")
    )


def _written(feature: FeatureSettings, is_vector: bool) -> FeatureSettings | TopicSource | tuple[TopicSource, ...]:
    """The shortest complete form; the policy of numbers is always written, as it is what people change first."""
    sources = feature.sources
    if is_vector and sources[0].tf is None:
        sources = tuple(replace(source, policy=source.policy or "nearest") for source in sources)
    if feature != FeatureSettings(feature.sources):
        return replace(feature, sources=sources)
    return sources[0] if len(sources) == 1 else sources
