from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock._src.conversion.commit.writer import DataSetWriter
from penstock._src.lerobot.check.dataset import check
from penstock._src.lerobot.features import Feature
from penstock._src.media.mp4.boxes import mjpeg_stsd
from penstock._src.media.mp4.index import read_index
from penstock._src.media.mp4.writer import Mp4Writer
from tests.lerobot.making import CAMERA, FPS, HEIGHT, IMAGE, IMAGE_FEATURES, WIDTH, jpegs, make

SHARED_V21 = Path(__file__).resolve().parents[4] / "shared/data/lerobot/g1_v21"
DATA = "data/chunk-000/file-000.parquet"
EPISODES = "meta/episodes/chunk-000/file-000.parquet"
VIDEO = f"videos/{CAMERA}/chunk-000/file-000.mp4"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("whole") / "set"
    make(root, lengths=(12, 7, 9))
    return root


@pytest.fixture
def root(whole: Path, tmp_path: Path) -> Path:
    shutil.copytree(whole, tmp_path / "set")
    return tmp_path / "set"


def edit_json(root: Path, relative: str, change: Callable[[dict[str, Any]], object]) -> None:
    path = root / relative
    tree = json.loads(path.read_text())
    change(tree)
    path.write_text(json.dumps(tree))


def edit_column(root: Path, relative: str, name: str, change: Callable[[list[Any]], object]) -> None:
    table = pq.read_table(root / relative)
    values = table.column(name).to_pylist()
    change(values)
    place = table.column_names.index(name)
    table = table.set_column(place, table.schema.field(name), pa.array(values, table.schema.field(name).type))
    pq.write_table(table, root / relative)


def rewrite_video(root: Path, images: list[bytes], fps: int = FPS) -> None:
    (root / VIDEO).unlink()
    with Mp4Writer(root / VIDEO, stsd=mjpeg_stsd(WIDTH, HEIGHT), width=WIDTH, height=HEIGHT, fps=fps) as video:
        video.append(images)


def set_at(position: int, value: object) -> Callable[[list[Any]], object]:
    return lambda values: values.__setitem__(position, value)


def wrong_total_frames(root: Path) -> None:
    edit_json(root, "meta/info.json", lambda info: info.update(total_frames=29))


def wrong_total_episodes(root: Path) -> None:
    edit_json(root, "meta/info.json", lambda info: info.update(total_episodes=2))


def wrong_total_tasks(root: Path) -> None:
    edit_json(root, "meta/info.json", lambda info: info.update(total_tasks=2))


def index_gap_in_the_table(root: Path) -> None:
    edit_column(root, EPISODES, "dataset_from_index", set_at(1, 13))
    edit_column(root, EPISODES, "dataset_to_index", set_at(1, 20))


def index_gap_in_the_rows(root: Path) -> None:
    edit_column(root, DATA, "index", lambda values: values.__setitem__(slice(12, 28), range(13, 29)))


def length_is_not_the_rows(root: Path) -> None:
    edit_column(root, EPISODES, "length", set_at(2, 8))


def row_in_the_wrong_episode(root: Path) -> None:
    edit_column(root, DATA, "episode_index", set_at(12, 0))


def wrong_frame_index(root: Path) -> None:
    edit_column(root, DATA, "frame_index", set_at(13, 5))


def frame_too_many(root: Path) -> None:
    rewrite_video(root, jpegs(29))


def frame_too_few(root: Path) -> None:
    rewrite_video(root, jpegs(27))


def video_cut(root: Path) -> None:
    data = (root / VIDEO).read_bytes()
    (root / VIDEO).write_bytes(data[: len(data) // 2])


def video_without_its_last_frames(root: Path) -> None:
    """The index survives, the frames do not: as when the moov comes first and the copy was stopped."""
    import av

    faststart = root / "faststart.mp4"
    with (
        av.open(str(root / VIDEO)) as source,
        av.open(str(faststart), "w", options={"movflags": "faststart"}) as target,
    ):
        template = source.streams.video[0]
        if hasattr(target, "add_stream_from_template"):
            stream = target.add_stream_from_template(template)
        else:
            stream = target.add_stream(template=template)
        for packet in source.demux(source.streams.video[0]):
            if packet.dts is not None:
                packet.stream = stream
                target.mux(packet)
    data = faststart.read_bytes()
    faststart.unlink()
    (root / VIDEO).write_bytes(data[:-3000])


def parquet_without_footer(root: Path) -> None:
    (root / DATA).write_bytes((root / DATA).read_bytes()[:-100])


def episodes_without_footer(root: Path) -> None:
    (root / EPISODES).write_bytes((root / EPISODES).read_bytes()[:-100])


def stats_of_other_data(root: Path) -> None:
    edit_json(root, "meta/stats.json", lambda stats: stats["action"]["mean"].__setitem__(1, 3.5))


def stats_with_another_count(root: Path) -> None:
    edit_json(root, "meta/stats.json", lambda stats: stats["action"].update(count=[99]))


def stats_with_nan(root: Path) -> None:
    edit_json(root, "meta/stats.json", lambda stats: stats["action"]["std"].__setitem__(0, float("nan")))


def quantile_with_nan(root: Path) -> None:
    edit_json(root, "meta/stats.json", lambda stats: stats["action"]["q99"].__setitem__(0, float("nan")))


def image_stats_of_another_shape(root: Path) -> None:
    edit_json(root, "meta/stats.json", lambda stats: stats[CAMERA].update(mean=[0.5, 0.5, 0.5]))


def nan_in_the_rows(root: Path) -> None:
    edit_column(root, DATA, "observation.state", set_at(4, [1.0, float("nan"), 1.0, 1.0]))


def missing_data_file(root: Path) -> None:
    (root / DATA).unlink()


def missing_video_file(root: Path) -> None:
    (root / VIDEO).unlink()


def missing_tasks(root: Path) -> None:
    (root / "meta/tasks.parquet").unlink()


def missing_stats(root: Path) -> None:
    (root / "meta/stats.json").unlink()


def orphan_video(root: Path) -> None:
    shutil.copy(root / VIDEO, (root / VIDEO).with_name("file-001.mp4"))


def orphan_data(root: Path) -> None:
    shutil.copy(root / DATA, (root / DATA).with_name("file-001.parquet"))


def template_that_climbs_out(root: Path) -> None:
    shutil.copy(root / DATA, root.parent / "file-000.parquet")
    edit_json(root, "meta/info.json", lambda info: info.update(data_path="../file-{file_index:03d}.parquet"))


def link_out_of_the_root(root: Path) -> None:
    shutil.move(root / VIDEO, root.parent / "elsewhere.mp4")
    (root / VIDEO).symlink_to(root.parent / "elsewhere.mp4")


def undecodable_frame(root: Path) -> None:
    index = read_index(root / VIDEO)
    with (root / VIDEO).open("r+b") as stream:
        stream.seek(int(index.offsets[0]))
        stream.write(bytes(int(index.sizes[0])))


def wrong_fps(root: Path) -> None:
    edit_json(root, "meta/info.json", lambda info: info.update(fps=25))


def wrong_timestamps(root: Path) -> None:
    edit_column(root, DATA, "timestamp", set_at(20, 0.5))


def video_at_another_rate(root: Path) -> None:
    rewrite_video(root, jpegs(28), fps=25)


def wrong_start_in_the_video(root: Path) -> None:
    edit_column(root, EPISODES, f"videos/{CAMERA}/from_timestamp", set_at(1, 0.5))


def task_out_of_range(root: Path) -> None:
    edit_column(root, DATA, "task_index", set_at(3, 7))


def task_unknown(root: Path) -> None:
    edit_column(root, EPISODES, "tasks", set_at(0, ["fly"]))


def another_codec_claimed(root: Path) -> None:
    edit_json(root, "meta/info.json", lambda info: info["features"][CAMERA]["info"].update({"video.codec": "av1"}))


def another_size_claimed(root: Path) -> None:
    edit_json(root, "meta/info.json", lambda info: info["features"][CAMERA].update(shape=[64, 64, 3]))


def missing_column(root: Path) -> None:
    pq.write_table(pq.read_table(root / DATA).drop_columns(["action"]), root / DATA)


def column_of_another_size(root: Path) -> None:
    edit_json(root, "meta/info.json", lambda info: info["features"]["action"].update(shape=[3]))


BROKEN: dict[Callable[[Path], None], tuple[str, str]] = {
    wrong_total_frames: ("error", "total_frames is 29"),
    wrong_total_episodes: ("error", "total_episodes is 2"),
    wrong_total_tasks: ("error", "total_tasks is 2"),
    index_gap_in_the_table: ("error", "episode 1 starts at row 13, the one before ends at 12"),
    index_gap_in_the_rows: ("error", "row 12: index is 13, expected 12"),
    length_is_not_the_rows: ("error", "episode 2: length 8, but 9 rows"),
    row_in_the_wrong_episode: ("error", "row 12: episode_index is 0, not 1"),
    wrong_frame_index: ("error", "row 13: frame_index is 5, expected 1"),
    frame_too_many: ("error", "29 frames for the 28 rows of episodes 0…2"),
    frame_too_few: ("error", "27 frames for the 28 rows of episodes 0…2"),
    video_cut: ("error", "file-000.mp4"),
    video_without_its_last_frames: ("error", "file-000.mp4"),
    parquet_without_footer: ("error", "not a whole parquet file"),
    episodes_without_footer: ("error", "not a whole parquet file"),
    stats_of_other_data: ("error", "'action'[1]: mean is 3.5"),
    stats_with_another_count: ("error", "count is [99.0]"),
    stats_with_nan: ("error", "NaN or Inf in the statistics"),
    quantile_with_nan: ("error", "NaN or Inf in the statistics"),
    image_stats_of_another_shape: ("error", "LeRobot expects (3, 1, 1)"),
    nan_in_the_rows: ("loss", "'observation.state' holds unusable values: b: 1 nan"),
    missing_data_file: ("error", "not there"),
    missing_video_file: ("error", "not there"),
    missing_tasks: ("error", "tasks.parquet: the file is missing"),
    missing_stats: ("loss", "no statistics"),
    orphan_video: ("error", "an orphan"),
    orphan_data: ("error", "row 28: index is 0, expected 28"),
    template_that_climbs_out: ("error", "would leave the data set"),
    link_out_of_the_root: ("error", "symbolic link leads out"),
    undecodable_frame: ("error", "frame 0"),
    wrong_fps: ("error", "timestamp is"),
    wrong_timestamps: ("error", "row 20: timestamp is 0.5"),
    video_at_another_rate: ("error", "frame 1 is shown at 0.04"),
    wrong_start_in_the_video: ("error", "from_timestamp is 0.5"),
    task_out_of_range: ("error", "row 3: task_index 7 is out of range"),
    task_unknown: ("error", "unknown task 'fly'"),
    another_codec_claimed: ("info", "info.json says 'av1', the file is 'mjpeg'"),
    another_size_claimed: ("error", "48×32 px"),
    missing_column: ("error", "columns ['action'] of info.json are missing"),
    column_of_another_size: ("error", "'action'"),
}


def test_a_whole_data_set_is_clean(whole: Path) -> None:
    sample, full = check(whole), check(whole, full=True)
    assert sample.problems == [] and full.problems == [] and sample.is_clean and sample.worst is None
    assert full.counted["frames decoded"] == full.counted["rows"] == full.counted["frames"] == 28
    assert sample.counted["frames decoded"] == 8 and sample.counted["episodes"] == 3


def test_a_count_that_is_a_plain_number_is_the_same_count(root: Path) -> None:
    edit_json(root, "meta/stats.json", lambda stats: stats["action"].update(count=28))
    assert check(root).is_clean


@pytest.mark.parametrize("break_it", list(BROKEN), ids=lambda broken: broken.__name__)
def test_every_fault_is_found_and_named(root: Path, break_it: Callable[[Path], None]) -> None:
    break_it(root)
    severity, text = BROKEN[break_it]
    report = check(root)
    found = [p for p in report.problems if text in p.message or text in p.where]
    assert [p.severity for p in found][:1] == [severity], report.problems
    assert report.is_clean is (severity == "info")


@pytest.mark.parametrize("full", [False, True])
def test_one_bad_frame_in_the_middle_is_found_by_a_full_check(root: Path, full: bool) -> None:
    index = read_index(root / VIDEO)
    with (root / VIDEO).open("r+b") as stream:
        stream.seek(int(index.offsets[6]) + 4)
        stream.write(bytes(int(index.sizes[6]) - 4))
    assert check(root, full=full).is_clean is not full


def test_images_in_the_table_are_decoded(tmp_path: Path) -> None:
    make(tmp_path / "set", lengths=(12, 7), features=IMAGE_FEATURES)
    report = check(tmp_path / "set", full=True)
    assert report.is_clean and report.counted["images decoded"] == 19
    edit_column(tmp_path / "set", DATA, IMAGE, lambda values: values[3].update(bytes=b"\xff\xd8 no"))
    found = check(tmp_path / "set").problems
    assert len(found) == 1 and "row 3, 'observation.images.still'" in found[0].where


def test_an_image_that_is_not_there_is_found_wherever_it_is_missing(tmp_path: Path) -> None:
    """Without `full` some images are decoded; all are looked for."""
    make(tmp_path / "set", lengths=(90,), features=IMAGE_FEATURES)
    edit_column(tmp_path / "set", DATA, IMAGE, lambda values: values.__setitem__(80, None))
    (found,) = check(tmp_path / "set", samples=4).problems
    assert "row 80" in found.where and found.message == "the frame is not in the file"


def test_a_thousand_faults_of_a_kind_are_a_few_lines_and_a_count(tmp_path: Path) -> None:
    with DataSetWriter(tmp_path / "set", fps=FPS, features=[Feature("a", "float32", (1,))], fsync=False) as writer:
        for _ in range(30):
            with writer.episode(task="x") as episode:
                episode.write_rows({"a": np.zeros(2, dtype=np.float32)})
                episode.commit()
    edit_column(tmp_path / "set", EPISODES, "tasks", lambda values: values.__setitem__(slice(None), [["fly"]] * 30))
    problems = check(tmp_path / "set").problems
    assert len(problems) == 6 and problems[-1].message == "25 more of the kind “tasks”"


def test_long_episodes_are_judged_by_what_a_float32_can_hold(tmp_path: Path) -> None:
    features = [Feature("a", "float32", (1,))]
    with (
        DataSetWriter(tmp_path / "set", fps=30, features=features, fsync=False) as writer,
        writer.episode(task="x") as episode,
    ):
        for _ in range(10):
            episode.write_rows({"a": np.zeros(20_000, dtype=np.float32)})
        episode.commit()
    assert check(tmp_path / "set").problems == []


def test_other_versions_and_other_directories_are_reported_clearly(tmp_path: Path, root: Path) -> None:
    edit_json(root, "meta/info.json", lambda info: info.update(codebase_version="v2.1"))
    assert any("this is a LeRobot v2.1 data set" in problem.message for problem in check(root).problems)
    assert "not a LeRobot data set" in check(tmp_path).problems[0].message


@pytest.mark.skipif(not SHARED_V21.exists(), reason="shared data are not here")
def test_a_real_version_21_data_set_is_reported_clearly() -> None:
    message = [problem.message for problem in check(SHARED_V21).problems if problem.severity == "info"]
    assert any("this is a LeRobot v2.1 data set (100 episodes" in each for each in message)


def test_the_report_is_plain_json(root: Path) -> None:
    wrong_total_frames(root)
    tree = check(root).to_json()
    assert json.loads(json.dumps(tree)) == tree and tree["clean"] is False
