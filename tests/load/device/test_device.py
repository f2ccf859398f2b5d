"""Batches on a CUDA device: the same rows, masks and texts as in memory, images within what two decoders differ."""

from __future__ import annotations

import gc
from typing import Any

import cv2
import numpy as np
import pytest

from penstock._src.load.loader import Loader
from penstock._src.load.sampling.window import Transition, Window
from penstock.errors import StoreCorrupt, UsageError
from tests.load.image_store import ArrayStore
from tests.threads import earlier_threads, left_running, penstock_threads

torch = pytest.importorskip("torch")
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def _batches(device: str | None, window: Any, broken: tuple[int, ...] = (), **options: Any) -> list[dict[str, Any]]:
    store = ArrayStore([9, 14], size=(96, 128), broken=broken)
    with Loader(store, window, 8, (48, 64), device=device, threads=2, view="off", **options) as loader:
        return [
            {name: value.cpu().numpy().copy() if hasattr(value, "cpu") else value for name, value in batch.items()}
            for batch in loader
        ]


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is here")
def test_without_a_device_it_says_so() -> None:
    with pytest.raises(UsageError, match="no CUDA device"):
        Loader(ArrayStore([9]), device="cuda")
    with pytest.raises(UsageError, match="device"):
        Loader(ArrayStore([9]), device="meta")


@needs_cuda
@pytest.mark.parametrize("gpu_decode", [True, False])
@pytest.mark.parametrize("window", [Window(action=range(3)), Transition()])
def test_a_batch_on_the_device_is_the_batch_in_memory(gpu_decode: bool, window: Any) -> None:
    expected = _batches(None, window, exact=True, output="numpy")
    found = _batches("cuda", window, exact=True, gpu_decode=gpu_decode)
    for ours, theirs in zip(found, expected, strict=True):
        assert list(ours) == list(theirs)
        for name, value in theirs.items():
            if name.endswith("cam") and gpu_decode:
                assert np.mean((ours[name].astype(float) - value) ** 2) < 4  # another decoder: 42 dB or better
            else:
                assert np.array_equal(ours[name], value), name


@needs_cuda
def test_floats_are_made_on_the_device() -> None:
    mean, std = (0.4, 0.5, 0.6), (0.2, 0.3, 0.4)
    options: dict[str, Any] = {"dtype": "float32", "normalize": (mean, std), "exact": True}
    found = _batches("cuda", Window(), gpu_decode=False, **options)
    expected = _batches(None, Window(), output="numpy", **options)
    for ours, theirs in zip(found, expected, strict=True):
        assert np.allclose(ours["raw"], theirs["raw"], atol=1e-5)


@needs_cuda
def test_a_broken_image_is_named_or_left_out() -> None:
    with pytest.raises(StoreCorrupt, match="row 5"):
        _batches("cuda", Window(columns=["cam"]), broken=(5,))
    found = _batches("cuda", Window(columns=["cam"]), broken=(5,), on_error="skip", max_skip_rate=0.1)
    assert sorted(int(row) for batch in found for row in batch["index"]) == [row for row in range(23) if row != 5]


@needs_cuda
def test_nvjpeg_by_its_own_interface_is_torchvisions() -> None:
    from torchvision.io import decode_jpeg

    from penstock._src.load.device.nvjpeg import BatchDecoder

    store = ArrayStore([50], size=(96, 128))
    decoder = BatchDecoder(torch.device("cuda", 0))
    for count in (1, 31, 32, 50, 7):
        expected = torch.stack(decode_jpeg([torch.from_numpy(each) for each in store.jpeg[:count]], device="cuda"))
        found = decoder.decode(store.jpeg[:count], (96, 128))
        assert found.shape == expected.shape and int((found.int() - expected.int()).abs().max()) <= 3
    progressive = cv2.imencode(".jpg", store.raw[0], [cv2.IMWRITE_JPEG_PROGRESSIVE, 1])[1].reshape(-1)
    store.jpeg[3] = progressive
    assert len(_all(store, gpu_decode=True)) == 50
    decoder.close()
    decoder.close()


def _all(store: ArrayStore, **options: Any) -> list[int]:
    # By threads: an engine process would make the store anew, without what was changed in it.
    words = {"device": "cuda", "view": "off", "engine": "thread", **options}
    with Loader(store, Window(columns=["cam"]), 8, (48, 64), **words) as loader:
        return [int(row) for batch in loader for row in batch["index"]]


@needs_cuda
def test_a_image_whose_header_lies_reaches_no_decoder() -> None:
    store = ArrayStore([20], size=(96, 128))
    hostile = store.jpeg[7].copy()
    at = hostile.tobytes().index(b"\xff\xc0")
    hostile[at + 5 : at + 9] = (0x10, 0x00, 0x10, 0x00)  # 4,096 × 4,096 by its header
    store.jpeg[7] = hostile
    with pytest.raises(StoreCorrupt, match="row 7"):
        _all(store, gpu_decode=True)
    assert sorted(_all(store, gpu_decode=True, on_error="skip", max_skip_rate=0.1)) == [*range(7), *range(8, 20)]


@needs_cuda
def test_a_pass_that_is_left_leaves_nothing_behind() -> None:
    earlier = earlier_threads()
    loader = Loader(ArrayStore([60]), batch_size=4, device="cuda", view="off")
    for _ in range(3):
        next(iter(loader))
    loader.close()
    assert not penstock_threads() - earlier


@needs_cuda
@pytest.mark.parametrize("gpu_decode", [True, False])
def test_epochs_follow_one_another_and_end_with_the_loader(gpu_decode: bool) -> None:
    earlier = earlier_threads()
    options: dict[str, Any] = {"batch_size": 8, "view": "off", "threads": 2, "seed": 3}
    with Loader(ArrayStore([9, 14]), output="numpy", **options) as here:
        expected = [[batch["index"].tolist() for batch in here] for _ in range(4)]
    loader = Loader(ArrayStore([9, 14]), device="cuda", gpu_decode=gpu_decode, **options)
    for epoch in (0, 1, 2):
        loader.set_epoch(epoch)
        assert [batch["index"].tolist() for batch in loader] == expected[epoch]
    loader.set_epoch(1)
    assert [batch["index"].tolist() for batch in loader] == expected[1]
    loader.set_epoch(3)
    next(iter(loader))
    assert loader.state_dict()["position"] == 8
    loader.load_state_dict({**loader.state_dict(), "epoch": 2, "position": 16})
    assert [batch["index"].tolist() for batch in loader] == expected[2][2:]
    assert [batch["index"].tolist() for batch in loader] == expected[3]
    loader.close()
    forgotten = Loader(ArrayStore([9, 14]), device="cuda", gpu_decode=gpu_decode, **options)
    assert [batch["index"].tolist() for batch in forgotten] == expected[0]
    del forgotten
    assert not left_running(earlier)


@needs_cuda
def test_images_are_decoded_on_the_device_where_views_in_memory_do_not_hold_all_of_them() -> None:
    store = ArrayStore([9, 14], size=(96, 128))
    for memory, view, is_device in (("4GiB", "auto", False), ("4GiB", "off", True)):
        with Loader(store, Window(), 8, (48, 64), device="cuda", threads=2, memory=memory, view=view) as loader:
            assert any("decoded on the device" in note for note in loader.notes) is is_device, loader.notes


@needs_cuda
@pytest.mark.parametrize("gpu_decode", [True, False])
@pytest.mark.parametrize("engine", ["thread", "process"])
def test_one_loader_after_the_other_takes_the_same_memory_of_the_device(gpu_decode: bool, engine: str) -> None:
    store = ArrayStore([64], size=(480, 640))
    held: list[int] = []
    for number in range(6):
        loader = Loader(store, Window(), 32, device="cuda", gpu_decode=gpu_decode, engine=engine, view="off", threads=2)
        next(iter(loader))
        if number % 2:
            loader.close()
        del loader
        gc.collect()
        torch.cuda.synchronize()
        held.append(torch.cuda.memory_reserved())
    assert held[-1] == held[2], held
