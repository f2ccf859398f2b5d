"""The configuration that a recording would be converted with, as YAML to keep and edit."""

from __future__ import annotations

from dataclasses import replace

from penstock import config
from penstock.conversion.recording_input import RecordingPlan
from penstock.conversion.settings import FeatureSettings, Source

_HEAD = """\
# What `penstock convert` would do with {name}: keep this file, change what you like, and give it as --config.
# rows: {rows:,} at {fps} fps · docs/configuration.md explains every key.
"""


def suggest_yaml(plan: RecordingPlan) -> str:
    """A configuration that gives the same data set as the settings that the plan was made with."""
    settings = plan.settings
    head = _HEAD.format(name=plan.recording.path.name, rows=plan.paired.rows, fps=plan.paired.fps)
    if plan.constants:
        head += f"# constant, kept in the report and no column: {', '.join(plan.constants)}\n"
    episodes = settings.episodes
    if episodes.subtasks == plan.marks.has_subtasks:  # found, not asked for: another recording may have some
        episodes = replace(episodes, subtasks=None)
    rest = config.dump_yaml(replace(settings, features={}, episodes=episodes)).replace("features: {}\n", "")
    vectors = {vector.key for vector in plan.columns.vectors}
    features = {key: _written(feature, key in vectors) for key, feature in settings.features.items()}
    return head + rest + config.dump_yaml({"features": features}, skip_defaults=True)


def _written(feature: FeatureSettings, is_vector: bool) -> FeatureSettings | Source | tuple[Source, ...]:
    """The shortest form that says it all; the policy of numbers is always said, as it is what people change first."""
    sources = feature.sources
    if is_vector:
        sources = tuple(replace(source, policy=source.policy or "nearest") for source in sources)
    if feature != FeatureSettings(feature.sources):
        return replace(feature, sources=sources)
    return sources[0] if len(sources) == 1 else sources
