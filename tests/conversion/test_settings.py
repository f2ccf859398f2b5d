"""Settings: every wrong value is named with what was expected, before anything is read."""

from __future__ import annotations

from typing import Any

import pytest

from penstock._src.conversion.settings import read_settings
from penstock.errors import ConfigError


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("resize=480", r"resize: 480 is not \[height, width\]"),
        ("resize=[a,b]", r"resize: \['a', 'b'\] is not"),
        ("resize=[0,640]", "resize: .* is not"),
        ("fps=abc", "fps: 'abc' is not a whole number"),
        ("stride=0", "stride: 0 is not a whole number, 1 or more"),
        ("sample_drop=-1", "sample_drop: -1 is not a whole number, 0 or more"),
        ("tolerance=-5ms", "tolerance: '-5ms' is too short"),
        ("rosbag.chunk_size=some", "rosbag.chunk_size: 'some' is not a number of rows"),
        ("encoding.quality=101", "encoding.quality: 101 is not"),
        ("video=gif", "video: expected one of"),
        ("timeline=fixed", "timeline: fixed needs a rate"),
        ("fpss=3", "did you mean 'fps'"),
        ("features.observation.state=/joint_states", "^features.observation: topic, tf or sources is missing"),
        ("features[a]={topic: /a, vido: h264}", "^unknown key 'vido' in features.a.sources"),
        ("features[a]={sources: [{topic: /a, fild: x}]}", "^unknown key 'fild' in features.a.*; did you mean 'field'"),
    ],
)
def test_a_wrong_value_is_named_with_what_was_expected(word: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        read_settings(None, [word])


@pytest.mark.parametrize(("codec", "crf"), [("h264", 52), ("hevc", -1), ("av1", 64)])
def test_what_an_encoder_would_refuse_is_refused_at_once(codec: str, crf: int) -> None:
    with pytest.raises(ConfigError, match=f"encoding: crf {crf} is outside"):
        read_settings(None, [f"video={codec}", f"encoding.crf={crf}"])
    assert read_settings(None, [f"encoding.crf={crf}"]).video == "copy"


@pytest.mark.parametrize(
    "written",
    [
        "/joint_states",
        {"topic": "/joint_states"},
        [{"topic": "/joint_states"}],
        {"sources": [{"topic": "/joint_states"}]},
    ],
)
def test_a_feature_may_be_written_short_or_in_full(written: Any) -> None:
    features = read_settings(values={"features": {"observation.state": written}}).features
    assert [source.topic for source in features["observation.state"].sources] == ["/joint_states"]
