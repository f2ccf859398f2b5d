"""The deblurring network, its measures and its images: shapes, what it sees, and values that are known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from deblur.images import write_comparison  # noqa: E402
from deblur.metrics import charbonnier, psnr, ssim  # noqa: E402
from deblur.model import DeblurNet, shift_in_time  # noqa: E402
from deblur.ranks import Ranks  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


def _net(bins: int = 5, width: int = 8) -> DeblurNet:
    """With a head that is not zero: what goes in matters."""
    torch.manual_seed(0)
    net = DeblurNet(bins, width)
    torch.nn.init.normal_(net.head.weight, std=0.1)
    return net


@pytest.mark.parametrize(
    ("clip_len", "image", "plane", "bins"),
    [(5, (32, 48), (16, 24), 5), (1, (33, 47), (17, 24), 3), (3, (30, 50), (12, 31), 4), (2, (16, 16), (16, 16), 1)],
)
def test_any_size_goes_in_and_comes_out(
    clip_len: int, image: tuple[int, int], plane: tuple[int, int], bins: int
) -> None:
    blur = torch.rand(2, clip_len, 3, *image)
    sharp = _net(bins)(blur, torch.rand(2, clip_len, bins, *plane))
    assert sharp.shape == blur.shape and not torch.equal(sharp, blur)


def test_untrained_it_gives_back_the_blur() -> None:
    blur = torch.rand(1, 5, 3, 24, 40)
    assert torch.equal(DeblurNet(5, 8)(blur, torch.rand(1, 5, 5, 12, 20)), blur)


def test_k_is_the_width() -> None:
    small, large = (sum(each.numel() for each in DeblurNet(5, k).parameters()) for k in (8, 32))
    assert large > 10 * small


def test_the_spikes_and_the_neighbours_of_a_frame_are_seen() -> None:
    net = _net()
    blur, vox = torch.rand(1, 5, 3, 24, 24), torch.rand(1, 5, 5, 12, 12)
    before = net(blur, vox)
    other = vox.clone()
    other[0, 2] += 3
    changed = (net(blur, other) - before).abs().amax(dim=(0, 2, 3, 4))
    assert changed[2] > 1e-3 and changed[1] > 0 and changed[3] > 0


def test_clips_of_a_batch_do_not_mix() -> None:
    net = _net().eval()
    blur, vox = torch.rand(2, 3, 3, 16, 16), torch.rand(2, 3, 5, 8, 8)
    alone = torch.cat([net(blur[k : k + 1], vox[k : k + 1]) for k in range(2)])
    assert torch.allclose(net(blur, vox), alone, atol=1e-5)


def test_a_shift_in_time_takes_an_eighth_from_each_side() -> None:
    frames = torch.arange(4.0).view(4, 1, 1, 1).expand(4, 16, 2, 2)
    found = shift_in_time(frames, 4)[:, :, 0, 0]
    assert found[:, 0].tolist() == [0, 0, 1, 2] and found[:, 2].tolist() == [1, 2, 3, 3]
    assert found[:, 4:].tolist() == [[number] * 12 for number in range(4)]


def test_gradients_become_means_and_lie_as_their_parameters_do() -> None:
    net = _net()
    net(torch.rand(1, 2, 3, 16, 16), torch.rand(1, 2, 5, 8, 8)).sum().backward()
    parameters = list(net.parameters())
    before = [each.grad.clone() for each in parameters]
    Ranks(0, 1, torch.device("cpu")).average_gradients(parameters, torch.tensor(4.0))
    assert all(torch.allclose(4 * each.grad, old) for each, old in zip(parameters, before, strict=True))
    assert all(each.grad.stride() == each.stride() for each in parameters)  # fused optimizers insist on it


def test_psnr_is_of_each_image() -> None:
    sharp = torch.rand(2, 3, 3, 16, 16) * 0.5
    assert torch.allclose(psnr(sharp + 0.1, sharp), torch.full((2, 3), 20.0), atol=1e-3)
    assert bool((psnr(sharp, sharp) >= 99).all())
    assert torch.allclose(psnr(sharp + 7, sharp), psnr(torch.ones_like(sharp), sharp)), "clamped to what can be shown"


def test_ssim_is_what_its_definition_gives() -> None:
    rng = np.random.default_rng(0)
    one, two = (torch.from_numpy(rng.random((2, 3, 3, 20, 24))) for _ in range(2))
    places = np.arange(11) - 5
    window = np.exp(-(places[:, None] ** 2 + places**2) / (2 * 1.5**2))
    window /= window.sum()
    expected = []
    for a, b in zip(one[1, 2].numpy(), two[1, 2].numpy(), strict=True):
        for top, left in np.ndindex(10, 14):
            p, q = (each[top : top + 11, left : left + 11] for each in (a, b))
            mean_p, mean_q = (window * p).sum(), (window * q).sum()
            covariance = (window * (p - mean_p) * (q - mean_q)).sum()
            spread = (window * (p - mean_p) ** 2).sum() + (window * (q - mean_q) ** 2).sum()
            value = (2 * mean_p * mean_q + 1e-4) * (2 * covariance + 9e-4)
            expected.append(value / ((mean_p**2 + mean_q**2 + 1e-4) * (spread + 9e-4)))
    found = ssim(one, two)
    assert found.shape == (2, 3) and found[1, 2].item() == pytest.approx(np.mean(expected), abs=1e-9)
    assert torch.allclose(ssim(one, one), torch.ones(2, 3, dtype=torch.float64))


def test_the_loss_is_of_each_clip_and_smooth_at_zero() -> None:
    found = torch.zeros(2, 3, requires_grad=True)
    charbonnier(found, torch.zeros(2, 3)).sum().backward()
    assert found.grad is not None and found.grad.tolist() == [[0] * 3] * 2
    values = charbonnier(torch.tensor([[1.0, 1, 1], [0, 0, 3]]), torch.zeros(2, 3))
    assert values.tolist() == pytest.approx([1.0, 1.0], abs=1e-3)


def test_images_stand_side_by_side(tmp_path: Path) -> None:
    import cv2

    colours = [torch.tensor([1.0, 0, 0]), torch.tensor([0, 2.0, 0]), torch.tensor([0, -1.0, 1.0])]  # two beyond 0..1
    rows = [tuple(colour.view(3, 1, 1).expand(3, *size) for colour in colours) for size in ((20, 30), (10, 40))]
    write_comparison(tmp_path / "images.png", rows)  # type: ignore[arg-type]
    found = cv2.imread(str(tmp_path / "images.png"))[:, :, ::-1]
    assert found.shape == (22 + 24 + 14, 3 * 44, 3)
    assert found[40, 5].tolist() == [255, 0, 0]
    assert found[40, 40].tolist() == [0, 255, 0] and found[40, 75].tolist() == [0, 0, 255]
