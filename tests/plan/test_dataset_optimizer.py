"""DatasetOptimizer measures real files: JSON, JSON Lines, folders of images, stores."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from penstock._src.media.image.codec import encode_jpeg
from penstock._src.plan.measure import measure_files
from penstock._src.system.units import GIB
from penstock.errors import PenstockError, StoreError, UsageError
from penstock.plan import DatasetOptimizer

ROOT = Path(__file__).resolve().parents[2]
SHARED = ROOT.parent / "shared" / "data" / "vqa" / "mllm_demo.json"


def _jpeg(path: Path, height: int = 48, width: int = 64) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encode_jpeg(np.zeros((height, width, 3), np.uint8)))
    return path


@pytest.fixture
def vqa(tmp_path: Path) -> Path:
    """Forty questions about four images."""
    for number in range(4):
        _jpeg(tmp_path / "images" / f"{number}.jpg")
    records = [{"image": f"{n % 4}.jpg", "question": "what is it?" * n, "answer": "a box"} for n in range(40)]
    path = tmp_path / "train.json"
    path.write_text(json.dumps(records))
    return path


def _analyze(path: Path, **options: Any) -> dict[str, Any]:
    return DatasetOptimizer.analyze_and_recommend(data_path=path, batch_size=16, **options)


def test_samples_are_counted_and_images_measured(vqa: Path) -> None:
    found = _analyze(vqa, available_memory_gb=32.0)
    assert (found["num_samples"], found["available_memory_gb"]) == (40, 32.0)
    assert found["images_gb"] * GIB == pytest.approx(40 * 48 * 64 * 3)
    assert 40 * 250 < found["records_gb"] * GIB < 40 * 1000
    assert found["estimated_memory_gb"] == pytest.approx(found["images_gb"] + found["records_gb"])
    assert found["recommended_strategy"] == "small_dataset"
    at_training_size = _analyze(vqa, image_size=(224, 224), image_dtype="float32")
    assert at_training_size["images_gb"] * GIB == pytest.approx(40 * 224 * 224 * 12)


def test_each_strategy_has_its_advice(vqa: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole_gb = _analyze(vqa)["estimated_memory_gb"]
    for share, strategy, words in (
        (3.0, "small_dataset", "可以预加载全部数据：Dataset"),
        (1.0, "medium_dataset", "数据集中等大小，建议使用LazyLoadVQADataset"),
        (0.4, "large_dataset", "StreamingVQADataset"),
    ):
        found = _analyze(vqa, available_memory_gb=share * whole_gb)
        assert found["recommended_strategy"] == strategy
        assert words in found["recommendations"][0]
        assert found["cache_images"] is (strategy == "medium_dataset")
        DatasetOptimizer.print_recommendations(found)
        shown = capsys.readouterr().out.splitlines()
        assert shown[3] == "样本数量: 40"
        assert shown[6] == f"推荐策略: {strategy}"
        assert [line for line in shown if line.startswith("  1. ")] == [f"  1. {found['recommendations'][0]}"]
    medium = _analyze(vqa, available_memory_gb=whole_gb)
    assert any("启用图像缓存（cache_images=True）" in each for each in medium["recommendations"])
    assert any(each.startswith("num_workers: ") for each in medium["recommendations"])
    assert any(each.startswith("建议batch_size: ") for each in medium["recommendations"])
    english = _analyze(vqa, available_memory_gb=whole_gb, lang="en")
    assert english["recommendations"][0] == "The data set is of medium size: use LazyLoadVQADataset"


def test_a_batch_that_would_fill_the_memory_is_made_smaller(vqa: Path) -> None:
    sample_gb = _analyze(vqa)["estimated_memory_gb"] / 40
    found = _analyze(vqa, available_memory_gb=400 * sample_gb)
    assert found["batch_size"] in (4, 8)
    assert found["batches_gb"] <= 0.25 * found["available_memory_gb"]


def test_json_lines_are_counted_and_broken_ones_named(tmp_path: Path) -> None:
    _jpeg(tmp_path / "a.jpg")
    lines = [json.dumps({"images": ["a.jpg", "a.jpg"], "text": "x"})] * 9 + ["{broken", ""]
    (tmp_path / "train.jsonl").write_text("\n".join(lines))
    found = measure_files(tmp_path / "train.jsonl")
    assert (found.kind, found.samples, found.images, found.image_pixels) == ("JSONL", 10, 2.0, 48 * 64 * 3)
    assert "1 of 10 records checked cannot be read" in found.notes


def test_records_without_an_image_are_no_images_and_no_failures(tmp_path: Path) -> None:
    _jpeg(tmp_path / "a.jpg")
    records = [{"question": "x", "answer": "y", **({"image": "a.jpg"} if n % 4 else {})} for n in range(12)]
    (tmp_path / "train.json").write_text(json.dumps(records))
    found = measure_files(tmp_path / "train.json")
    assert (found.samples, found.images, found.image_pixels, found.notes) == (12, 0.75, 48 * 64 * 3, ())


def test_the_list_of_an_object_has_the_samples(tmp_path: Path) -> None:
    path = tmp_path / "questions.json"
    questions = [{"image_id": n, "question": "why?", "question_id": n} for n in range(12)]
    path.write_text(json.dumps({"info": {"year": 2015}, "license": ["x"], "questions": questions}))
    found = measure_files(path)
    assert (found.samples, found.images) == (12, 1.0)
    assert found.image_pixels == 0


def test_a_folder_of_images_is_measured_by_its_headers(tmp_path: Path) -> None:
    for number in range(6):
        _jpeg(tmp_path / f"class_{number % 2}" / f"{number}.JPG", 10 + number, 20)
    (tmp_path / "class_0" / "broken.png").write_bytes(b"no image")
    found = measure_files(tmp_path)
    assert (found.kind, found.samples, found.images) == ("image folder", 7, 1.0)
    assert found.image_pixels == 3 * 20 * 12.5
    assert any(note.startswith("1 of 7 images checked cannot be read") for note in found.notes)


def test_a_store_is_opened(tmp_path: Path) -> None:
    path = tmp_path / "episode_0.hdf5"
    with h5py.File(path, "w") as file:
        file["observations/images/top"] = np.zeros((30, 24, 32, 3), np.uint8)
        file["observations/qpos"] = np.zeros((30, 14), np.float32)
        file["action"] = np.zeros((30, 14), np.float32)
    found = _analyze(path, available_memory_gb=32.0)
    assert found["num_samples"] == 30
    assert found["images_gb"] * GIB == pytest.approx(30 * 24 * 32 * 3)
    assert found["records_gb"] * GIB == pytest.approx(30 * 28 * 4)
    assert "penstock.Loader(penstock.open(" in found["recommendations"][0]


def test_what_is_no_data_set_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PenstockError):
        measure_files(tmp_path / "absent.json")
    (tmp_path / "empty").mkdir()
    with pytest.raises(StoreError):
        measure_files(tmp_path / "empty")
    (tmp_path / "none.json").write_text("[]")
    with pytest.raises(StoreError, match="has no records"):
        measure_files(tmp_path / "none.json")
    with pytest.raises(UsageError, match="batch_size=0"):
        DatasetOptimizer.analyze_and_recommend(tmp_path, batch_size=0)


@pytest.mark.skipif(not SHARED.exists(), reason="needs ../shared/data")
def test_chat_messages_with_images() -> None:
    found = measure_files(SHARED)
    assert found.samples == 6
    assert found.images > 0
    assert found.image_pixels > 10_000
