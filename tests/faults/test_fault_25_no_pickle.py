"""Fault 25: pickle in `.npy` and `.pt` files, YAML tags, Python objects in HDF5.

Expected: nothing that a data file says is ever run. The source has no call that could, and hostile files are refused,
or read as plain data.
"""

from __future__ import annotations

import ast
import json
import pickle
from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np
import pytest

import penstock
from penstock._src.cli import main
from penstock._src.system import plain_yaml
from penstock.errors import PenstockError, StoreError
from tests.stores import hdf5_files as files

SOURCE = Path(penstock.__file__).resolve().parent
FORBIDDEN = {
    "pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal",
}  # fmt: skip
"""Modules whose import alone is a finding."""
CALLS = {
    "eval", "exec", "yaml.unsafe_load", "yaml.unsafe_load_all", "yaml.full_load", "yaml.full_load_all",
    "pandas.read_pickle", "torch.hub.load", "numpy.lib.format.read_array", "numpy.lib.npyio.load",
}  # fmt: skip
SAFE_YAML = ("SafeLoader", "CSafeLoader", "BaseLoader", "CBaseLoader")


def names_of(tree: ast.AST) -> dict[str, str]:
    """What the names of a module stand for: `np` → numpy."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                root = alias.name.partition(".")[0]
                found[alias.asname or root] = alias.name if alias.asname else root
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                found[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return found


def called(node: ast.Call, names: dict[str, str]) -> str:
    parts: list[str] = []
    inner: ast.expr = node.func
    while isinstance(inner, ast.Attribute):
        parts.append(inner.attr)
        inner = inner.value
    if not isinstance(inner, ast.Name):
        return ""
    return ".".join([names.get(inner.id, inner.id), *reversed(parts)])


BETWEEN_PROCESSES = "_src/load/process/packing.py: "
"""Unpacks what an engine process sends through a socket without a name, and nothing that was read from anywhere."""


def findings(text: str) -> Iterator[str]:
    """Calls and imports by which data could become code."""
    tree = ast.parse(text)
    names = names_of(tree)
    for whole in names.values():
        if whole.partition(".")[0] in FORBIDDEN:
            yield f"import of {whole}"
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = called(node, names)
        words = {word.arg: word.value for word in node.keywords if word.arg}
        if name in CALLS:
            yield name
        if name == "numpy.load" and not is_constant(words.get("allow_pickle"), False):
            yield "numpy.load without allow_pickle=False"
        if name == "torch.load" and not is_constant(words.get("weights_only"), True):
            yield "torch.load without weights_only=True"
        if name in ("yaml.load", "yaml.load_all") and "Loader" not in words and len(node.args) < 2:
            yield f"{name} without a Loader"
        if any(is_constant(word, True) for key, word in words.items() if key == "allow_pickle"):
            yield f"{name} with allow_pickle=True"


def is_constant(node: ast.expr | None, value: object) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


@pytest.mark.parametrize(
    "text",
    [
        "import pickle",
        "from pickle import loads as read",
        "def f():\n    import marshal",
        "import numpy as np\nnp.load(path)",
        "import numpy as np\nnp.load(path, allow_pickle=True)",
        "from numpy import load\nload(path)",
        "import torch\ntorch.load(path)",
        "import torch\ntorch.load(path, weights_only=False)",
        "import yaml\nyaml.load(text)",
        "import yaml\nyaml.unsafe_load(text)",
        "eval(text)",
    ],
)
def test_25_the_search_finds_what_it_looks_for(text: str) -> None:
    assert list(findings(text))


def test_25_the_search_lets_safe_calls_be() -> None:
    safe = "import numpy as np, torch, yaml\nnp.load(p, allow_pickle=False); torch.load(p, weights_only=True)"
    assert list(findings(f"{safe}; yaml.safe_load(text)")) == []


def test_25_no_module_turns_data_into_code() -> None:
    modules = sorted(SOURCE.rglob("*.py"))
    assert len(modules) > 100
    found = [f"{path.relative_to(SOURCE)}: {each}" for path in modules for each in findings(path.read_text("utf-8"))]
    assert [each for each in found if not each.startswith(BETWEEN_PROCESSES)] == []
    assert any(each.startswith(BETWEEN_PROCESSES) for each in found)


def test_25_every_yaml_loader_is_a_safe_one() -> None:
    for path in SOURCE.rglob("*.py"):
        text = path.read_text("utf-8")
        if "yaml.load" in text:
            bases = [
                base.attr
                for node in ast.walk(ast.parse(text))
                for base in (node.bases if isinstance(node, ast.ClassDef) else [])
                if isinstance(base, ast.Attribute) and base.attr.endswith("Loader")
            ]
            chosen = [word for word in SAFE_YAML if word in text]
            assert chosen and set(bases) <= set(SAFE_YAML) and "UnsafeLoader" not in text, path


class Payload:
    """Makes a file when it is unpickled."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.target,)


@pytest.fixture
def ran(tmp_path: Path) -> Iterator[Path]:
    """The file that a payload would make; it must never be there."""
    target = tmp_path / "ran"
    pickle.loads(pickle.dumps(Payload(target)))
    assert target.exists()  # the payload works
    target.unlink()
    yield target
    assert not target.exists()


@pytest.mark.parametrize(
    "text",
    [
        "!!python/object/apply:pathlib.Path.touch [!!python/object/apply:pathlib.Path [RAN]]",
        "fps: !!python/object/apply:os.mkdir [RAN]",
        "fps: !!python/name:os.system",
        "task: !!python/object/new:os.system [touch RAN]",
    ],
)
def test_25_yaml_tags_are_refused(text: str, tmp_path: Path, ran: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "robot.yaml"
    config.write_text(text.replace("RAN", str(ran)))
    with pytest.raises(PenstockError):
        plain_yaml.parse(config.read_text(), str(config))
    files.aloha(tmp_path / "episode_0.hdf5", 2)
    assert main(["inspect", str(tmp_path / "episode_0.hdf5"), "--config", str(config)]) == 2
    assert str(config) in capsys.readouterr().err


@pytest.mark.parametrize("name", ["payload.npy", "payload.npz", "payload.pt", "payload.pkl", "episode_0.hdf5"])
def test_25_a_pickle_is_no_store_whatever_its_name(name: str, tmp_path: Path, ran: Path) -> None:
    path = tmp_path / name
    if name.endswith(".npy"):
        np.save(path, np.array([Payload(ran)], object), allow_pickle=True)
    elif name.endswith(".npz"):
        np.savez(path, action=np.array([Payload(ran)], object))
    else:
        path.write_bytes(pickle.dumps(Payload(ran)))
    with pytest.raises(StoreError, match=name):
        penstock.open(path)


def test_25_objects_in_hdf5_are_left_out_or_refused(tmp_path: Path, ran: Path) -> None:
    path = tmp_path / "episode_0.hdf5"
    files.aloha(path, 4)
    pickled = pickle.dumps(Payload(ran))
    with h5py.File(path, "r+") as file:
        file["observations"].create_dataset("references", (4,), h5py.ref_dtype)[:] = file["action"].ref
        file["observations/opaque"] = np.array([np.void(pickled)] * 4)
        file.attrs["env"] = np.void(pickled)
    with penstock.open(path) as store:
        assert not {"observations/references", "observations/opaque"} & set(store.columns)
        for name in ("references", "opaque"):
            assert any(name in note for note in store.notes), store.notes
        with penstock.Loader(store, batch_size=4, output="numpy", view="off") as loader:
            assert len(list(loader)) == 1


def test_25_actions_that_are_objects_are_no_actions(tmp_path: Path) -> None:
    path = tmp_path / "replay.hdf5"
    with h5py.File(path, "w") as file:
        file["observations"] = np.zeros((4, 2), np.float32)
        file.create_dataset("actions", (4,), h5py.ref_dtype)[:] = file["observations"].ref
    with penstock.open(path) as store:
        assert list(store.columns) == ["observations"] and "action" not in store.roles
        assert any("actions is left out" in note for note in store.notes), store.notes


def test_25_a_state_is_json(tmp_path: Path) -> None:
    files.replay(tmp_path / "replay.hdf5")
    with penstock.open(tmp_path / "replay.hdf5") as store, penstock.Loader(store, penstock.Transition()) as loader:
        state = loader.state_dict()
        assert json.loads(json.dumps(state)) == state
        loader.load_state_dict(json.loads(json.dumps(state)))
