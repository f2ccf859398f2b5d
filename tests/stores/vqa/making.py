"""Small VQA data sets in every format, and the bytes of their images."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

from penstock._src.media.image import codec
from tests.media.images import rgb_image

SIZES = ((48, 64), (30, 90), (64, 40))


def jpeg(number: int) -> bytes:
    height, width = SIZES[number % len(SIZES)]
    return codec.encode_jpeg(rgb_image(number, height, width))


def records(count: int) -> list[dict[str, Any]]:
    """Plain records; two questions for each image."""
    return [
        {
            "question_id": 100 + n,
            "image_id": n // 2,
            "image": f"images/{n // 2:04d}.jpg",
            "question": f'How many "{n}", {{or}} [\\more]?',
            "answer": str(n % 7),
        }
        for n in range(count)
    ]


def write_images(folder: Path, count: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        (folder / f"{number:04d}.jpg").write_bytes(jpeg(number))


def write_lines(path: Path, count: int) -> Path:
    """JSONL with its images beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(each) + "\n" for each in records(count)), encoding="utf-8")
    write_images(path.parent / "images", (count + 1) // 2)
    return path


def llava(count: int) -> list[dict[str, Any]]:
    return [
        {
            "id": f"{n:09d}",
            "image": f"images/{n:04d}.jpg",
            "conversations": [
                {"from": "human", "value": f"<image>\nWhat is {n}?"},
                {"from": "gpt", "value": f"It is {n}."},
                {"from": "human", "value": "Sure?"},
                {"from": "gpt", "value": "Yes."},
            ],
        }
        for n in range(count)
    ]


def write_vqav2(folder: Path, count: int, *, unanswered: int = 0, indent: int | None = None) -> Path:
    """Questions, annotations in another order, and COCO images in a folder beside."""
    questions = [{"image_id": n // 2, "question": f"Q{n}?", "question_id": 10 * n} for n in range(count)]
    annotations = [
        {
            "question_id": 10 * n,
            "image_id": n // 2,
            "multiple_choice_answer": f"a{n}",
            "answers": [{"answer": f"a{n}", "answer_id": k, "answer_confidence": "yes"} for k in range(10)],
        }
        for n in reversed(range(unanswered, count))
    ]
    head = {"info": {"year": 2017, "list": [1, 2]}, "license": {"name": "CC"}, "data_subtype": "train2014"}
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "v2_OpenEnded_mscoco_train2014_questions.json"
    path.write_text(json.dumps({**head, "questions": questions}, indent=indent), encoding="utf-8")
    text = json.dumps({**head, "annotations": annotations}, indent=indent)
    (folder / "v2_mscoco_train2014_annotations.json").write_text(text, encoding="utf-8")
    images = folder / "train2014"
    images.mkdir(exist_ok=True)
    for number in range((count + 1) // 2):
        (images / f"COCO_train2014_{number:012d}.jpg").write_bytes(jpeg(number))
    return path


def write_tar(path: Path, first: int, count: int) -> Path:
    """Samples of a JPEG with a JSON, as WebDataset has them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for number in range(first, first + count):
            text = json.dumps({"question": f"Q{number}?", "answer": f"a{number}"}).encode()
            for suffix, data in (("jpg", jpeg(number)), ("json", text)):
                member = tarfile.TarInfo(f"{number:06d}.{suffix}")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
    return path
