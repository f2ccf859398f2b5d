"""Whether this version converts as another one does: the same files byte by byte, losses and exit codes.

    python benchmarks/same_bytes.py --against OLD_SRC [--data DIR] [CASE…]

Inputs: everything under DIR that can be converted (recordings, HDF5 files, data sets), and made ones: the demo, the
Kuavo demo, ALOHA, robomimic and replay HDF5 files, LeRobot data sets of every kind. Each is converted by both versions
with the same command. The report (times, memory) is compared by its losses and notes alone, and the journal not at all:
which episodes share a line's state depends on how long they took. Notes and errors are compared apart: their words may
get better.
`--record FILE` keeps the results of the old version, `--recorded FILE` uses them again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
from measure import Claim, finish

HERE = Path(__file__).resolve().parent
OWN_SRC = HERE.parent / "src"
_NOT_COMPARED = ("report.json", "journal.jsonl")
Case = tuple[str, list[str]]  # a name, and the words after `penstock convert` without the output


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help="only cases whose names begin so")
    parser.add_argument("--against", metavar="SRC", help="the src folder of the other version")
    parser.add_argument("--src", metavar="SRC", default=str(OWN_SRC), help="the src folder of this version")
    parser.add_argument("--data", metavar="DIR", default=str(HERE.parent.parent / "shared" / "data"))
    parser.add_argument("--work", metavar="DIR", help="where made inputs lie; kept when given")
    parser.add_argument("--record", metavar="FILE", help="write the results of the other version here and end")
    parser.add_argument("--recorded", metavar="FILE", help="take them from here instead of converting again")
    parser.add_argument("--list", action="store_true", help="show the cases and end")
    args = parser.parse_args()
    work = Path(args.work) if args.work else Path(tempfile.mkdtemp(prefix="penstock-same-"))
    work.mkdir(parents=True, exist_ok=True)
    try:
        _run(args, work)
    finally:
        if not args.work:
            shutil.rmtree(work)


def _run(args: argparse.Namespace, work: Path) -> None:
    cases = [(name, words) for name, words in _cases(Path(args.data), work) if _is_selected(name, args.cases)]
    if args.list:
        print("\n".join(f"{name:<44} {' '.join(words)}" for name, words in cases))
        return
    known: dict[str, Any] = json.loads(Path(args.recorded).read_text()) if args.recorded else {}
    equal = equal_texts = 0
    for name, words in cases:
        old = known.get(name) or _converted(args.against, words, work)
        if args.record:
            known[name] = old
            print(f"{name}: exit {old['exit']}, {len(old['files'])} files", flush=True)
            continue
        new = _converted(args.src, words, work)
        differences, other_texts = _differences(old, new), _other_texts(old, new)
        equal, equal_texts = equal + (not differences), equal_texts + (not other_texts)
        print(f"{'same' if not differences else 'DIFFERS':<8} {name} (exit {old['exit']}, {len(old['files'])} files)")
        for line in (*differences[:12], *other_texts):
            print(f"         {line}")
        sys.stdout.flush()
    if args.record:
        Path(args.record).write_text(json.dumps(known, indent=0, sort_keys=True))
        return
    finish([
        Claim("conversions that give the same bytes, losses and exit codes", equal, f">= {len(cases)}"),
        Claim("and the same words in notes and errors, informational", equal_texts, ">= 0"),
    ])  # fmt: skip


def _is_selected(name: str, wanted: list[str]) -> bool:
    return not wanted or any(name.startswith(each) for each in wanted)


def _converted(src: str, words: list[str], work: Path) -> dict[str, Any]:
    """What a version makes of a case: exit code, the digest of every file, losses and notes."""
    with tempfile.TemporaryDirectory(prefix="penstock-same-out-") as directory:
        return _converted_into(Path(directory) / "out", src, words, work)


def _converted_into(out: Path, src: str, words: list[str], work: Path) -> dict[str, Any]:
    environment = {**os.environ, "PYTHONPATH": src}
    command = [sys.executable, "-m", "penstock", "convert", *words[:1], str(out), *words[1:], "--json"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=work)
    files = {}
    for path in sorted(out.rglob("*")) if out.exists() else []:
        if path.is_file() and path.name not in _NOT_COMPARED:
            files[path.relative_to(out).as_posix()] = hashlib.sha256(path.read_bytes()).hexdigest()[:20]
    report = _json(done.stdout.replace(str(out), "OUT"))
    notes = {key: report.get(key) for key in ("lost", "notes", "error", "hint", "rows", "episodes") if key in report}
    return {"exit": done.returncode, "files": files, "told": notes}


def _json(text: str) -> Mapping[str, Any]:
    try:
        found = json.loads(text)
    except json.JSONDecodeError:
        return {"error": text[-2000:]}
    return found if isinstance(found, dict) else {}


def _differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    found = [] if old["exit"] == new["exit"] else [f"exit {old['exit']} → {new['exit']}"]
    for name in sorted(old["files"].keys() | new["files"].keys()):
        if old["files"].get(name) != new["files"].get(name):
            before, now = (str(each["files"].get(name, "absent")) for each in (old, new))
            found.append(f"{name}: {before} → {now}")
    for key in ("lost", "rows", "episodes"):
        found += _changed(key, old, new)
    return found


def _other_texts(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    return [line for key in ("notes", "error", "hint") for line in _changed(key, old, new)]


def _changed(key: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    before, now = old["told"].get(key), new["told"].get(key)
    if before == now:
        return []
    return [f"{key}: {json.dumps(before)[:300]}", f"{' ' * len(key)}→ {json.dumps(now)[:300]}"]


def _cases(data: Path, work: Path) -> Iterator[Case]:
    if data.is_dir():
        yield from _data_cases(data)
    for name, make, variants in _MADE:
        path = work / name
        if not path.exists():
            make(path)
        for variant, words in variants.items():
            yield f"{name.split('.')[0]}-{variant}", [str(path), *words]


def _data_cases(data: Path) -> Iterator[Case]:
    for path in sorted(data.glob("recordings/*/*/**/*")):
        if path.suffix in (".bag", ".mcap", ".db3") and path.is_file():
            yield f"recording-{path.relative_to(data / 'recordings')}", [str(path)]
    for path in sorted(data.glob("hdf5/*.hdf5")):
        yield f"hdf5-{path.name}", [str(path), "fps=20"]
        yield f"hdf5-{path.name}-auto", [str(path)]
    for path in sorted(data.glob("lerobot/*")):
        yield f"lerobot-{path.name}", [str(path)]
        yield f"lerobot-{path.name}-drop", [str(path), "bad_episodes=drop"]
        yield f"lerobot-{path.name}-mjpeg", [str(path), "bad_episodes=drop", "video=mjpeg"]


def _demo(path: Path) -> None:
    from penstock._src.demo.recording import Script, write_recording

    write_recording(path, Script(seconds=4.0))


def _kuavo(path: Path) -> None:
    from penstock._src.demo.kuavo import KuavoScript, write_kuavo_recording

    write_kuavo_recording(path, KuavoScript(seconds=4.0, end_effector="leju_claw"))


def _aloha(path: Path) -> None:
    from penstock._src.demo.act import ReachScript, write_episodes

    write_episodes(path, ReachScript(episodes=3, rows=40))


def _robomimic(path: Path) -> None:
    import h5py
    import numpy as np

    rng = np.random.default_rng(3)
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs["env_args"] = json.dumps({"env_name": "Lift", "env_kwargs": {"control_freq": 20}})
        for demo in range(3):
            group = data.create_group(f"demo_{demo}")
            rows = 30 + demo
            group.attrs["num_samples"] = rows
            group["actions"] = rng.random((rows, 7))
            group["rewards"] = np.zeros(rows)
            group["dones"] = np.arange(rows) == rows - 1
            for name, width in (("robot0_eef_pos", 3), ("robot0_eef_quat", 4), ("robot0_gripper_qpos", 2)):
                values = rng.random((rows, width))
                group[f"obs/{name}"] = values
                group[f"next_obs/{name}"] = np.concatenate([values[1:], values[-1:]])
            images = rng.integers(0, 255, (rows, 48, 64, 3), np.uint8)
            group.create_dataset("obs/agentview_image", data=images, chunks=(4, 48, 64, 3), compression="gzip")
            group["success"] = demo != 1


def _replay(path: Path, holds: bool) -> None:
    import cv2
    import h5py
    import numpy as np

    rng = np.random.default_rng(4)
    rows = 120
    with h5py.File(path, "w") as file:
        states = rng.random((rows, 5), np.float32)
        following = np.concatenate([states[1:], states[-1:]])
        file["observations"] = states
        file["next_observations"] = following if holds else rng.random((rows, 5), np.float32)
        file["actions"] = rng.random((rows, 3), np.float32)
        file["rewards"] = rng.random(rows, np.float32)
        file["terminals"] = np.arange(rows) % 40 == 39
        file["timeouts"] = np.zeros(rows, bool)
        kind = h5py.vlen_dtype(np.uint8)
        images = file.create_dataset("images", (rows,), dtype=kind)
        for row in range(rows):
            done, jpeg = cv2.imencode(".jpg", rng.integers(0, 255, (48, 64, 3), np.uint8))
            images[row] = jpeg.reshape(-1) if done else b""


def _data_set(video: str) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        import penstock
        from penstock._src.demo.recording import Script, write_recording

        bag = path.with_name("source.bag")
        write_recording(bag, Script(seconds=3.0))
        penstock.convert([bag], path, video=video)
        bag.unlink()

    return make


_ENCODED = {"h264": ["video=h264"], "images": ["video=images"], "small": ["resize=[120,160]", "video=mjpeg"]}
_MADE: tuple[tuple[str, Callable[[Path], None], dict[str, list[str]]], ...] = (
    ("demo.bag", _demo, {"plain": [], "flush": ["rosbag.chunk_size=7"], **_ENCODED}),
    ("kuavo.bag", _kuavo, {"plain": [], "depth": ["depth=metric"]}),
    ("aloha", _aloha, {"plain": [], "drop": ["sample_drop=3", "stride=2"], **_ENCODED}),
    ("robomimic.hdf5", _robomimic, {"plain": [], "next": ["hdf5.next_observations=keep"], "h264": ["video=h264"]}),
    ("replay.hdf5", lambda path: _replay(path, True), {"plain": ["fps=20"], "images": ["fps=20", "video=images"]}),
    ("augmented.hdf5", lambda path: _replay(path, False), {"plain": ["fps=20"]}),
    ("set-mjpeg", _data_set("copy"), {"plain": [], **_ENCODED, "left-out": ["leave_out=[observation.state]"]}),
    ("set-h264", _data_set("h264"), {"plain": [], "mjpeg": ["video=mjpeg"]}),
    ("set-av1", _data_set("av1"), {"plain": []}),
    ("set-images", _data_set("images"), {"plain": [], "copy": ["video=copy"], "mjpeg": ["video=mjpeg"]}),
)


if __name__ == "__main__":
    main()
