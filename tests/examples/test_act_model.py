"""The model: shapes, what padding may not change, the backbone's weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.errors import UsageError

torch = pytest.importorskip("torch")

from act.backbone import FrozenBatchNorm2d, Narrowing, ResNet18  # noqa: E402
from act.columns import Columns  # noqa: E402
from act.data import Stats  # noqa: E402
from act.layers import sine_grid, sine_positions  # noqa: E402
from act.model import ActModel, CnnMlpModel, Shape  # noqa: E402
from act.policy import ActPolicy, CnnMlpPolicy, Sample, make_policy, masked_mean, style_divergence  # noqa: E402

SMALL = Shape(
    5, 3, 2, 40, 64, 4, hidden_dim=16, dim_feedforward=32, heads=2, enc_layers=1, dec_layers=2, backbone_width=8
)
COLUMNS = Columns("qpos", "action", ("a", "b"))
STATS = {"qpos": Stats(9, [1.0] * 5, [2.0] * 5, [0.0] * 5, [1.0] * 5),
         "action": Stats(9, [3.0] * 3, [0.5, 0.5, 0.0], [0.0] * 3, [1.0] * 3)}  # fmt: skip


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(before)


def _images(count: int = 3, shape: Shape = SMALL) -> list[Any]:
    size = (count, 3, shape.height, shape.width)
    return [torch.randint(0, 256, size, dtype=torch.uint8) for _ in range(shape.cameras)]


def _sample(count: int = 3, steps: int = 4) -> Sample:
    is_pad = torch.zeros(count, steps, dtype=torch.bool)
    is_pad[1, steps // 2 :] = True
    return Sample(torch.randn(count, 5), _images(count), torch.randn(count, steps, 3), is_pad)


def test_resnet18_is_resnet18() -> None:
    net = ResNet18()
    assert sum(each.numel() for each in net.parameters()) == 11_176_512  # torchvision's, without its classifier
    assert net(torch.zeros(1, 3, 64, 96)).shape == (1, 512, 2, 3)
    assert len(net.state_dict()) == 120 and "layer3.0.downsample.1.running_var" in net.state_dict()


def test_narrow_backbones_keep_off_a_convolution_that_spoils_the_heap() -> None:
    for width, few in ((4, 2), (8, 1), (16, 0), (64, 0)):
        net = ResNet18(width)
        ways = [getattr(net, f"layer{number}")[0].downsample[0] for number in (2, 3, 4)]
        assert [isinstance(way, Narrowing) for way in ways] == [number < few for number in range(3)]
        assert all(way.in_channels >= 16 or way.stride == (1, 1) for way in ways)
    way = Narrowing(8, 16, 2).to(memory_format=torch.channels_last)
    usual = torch.nn.Conv2d(8, 16, 1, 2, bias=False)  # not in channels_last: that is what goes wrong
    usual.load_state_dict(way.state_dict())
    x = torch.randn(2, 8, 7, 10)
    assert torch.allclose(way(x.to(memory_format=torch.channels_last)), usual(x), atol=1e-6)
    assert "layer2.0.downsample.0.weight" in ResNet18(8).state_dict()


@pytest.mark.parametrize("amp", [False, True])
def test_actions_have_the_chunk_and_acting_needs_no_actions(amp: bool) -> None:
    model, sample = ActModel(SMALL), _sample()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=amp):
        found, mean, log_variance = model(sample.state, sample.images, sample.actions, sample.is_pad)
        acted, *nothing = model.eval()(sample.state, sample.images)
    assert found.shape == acted.shape == (3, 4, 3) and mean.shape == log_variance.shape == (3, 32)
    assert found.dtype == acted.dtype == mean.dtype == torch.float32 and nothing == [None, None]
    assert bool(torch.isfinite(found).all())


def test_cnnmlp_gives_one_action() -> None:
    assert CnnMlpModel(SMALL)(torch.randn(2, 5), _images(2)).shape == (2, 1, 3)


def test_every_camera_its_place_and_every_cell_matter() -> None:
    model = ActModel(SMALL).eval()
    state, images = torch.zeros(1, 5), _images(1)
    base = model(state, images)[0]
    for camera in range(2):
        changed = [each.clone() for each in images]
        changed[camera][:, :, 34:, 60:] = 0  # the last cell alone
        assert not torch.allclose(model(state, changed)[0], base, atol=1e-7)
    assert not torch.allclose(model(state, images[::-1])[0], base, atol=1e-7)


def test_padding_is_excluded_from_loss_gradient_and_style() -> None:
    policy = ActPolicy(SMALL, COLUMNS, STATS, 10.0)
    sample = _sample()
    spoilt = sample._replace(actions=torch.where(sample.is_pad[..., None], torch.full((), 1e3), sample.actions))
    results = []
    for each in (sample, spoilt):
        torch.manual_seed(1)
        policy.zero_grad()
        losses = policy.losses(each)
        losses.loss.backward()
        grads = [p.grad.clone() for p in policy.parameters() if p.grad is not None]
        results.append((torch.stack(list(losses)), grads))
    assert torch.equal(results[0][0], results[1][0])
    assert all(torch.equal(a, b) for a, b in zip(results[0][1], results[1][1], strict=True))
    lively = sample._replace(actions=sample.actions + 1)
    torch.manual_seed(1)
    assert not torch.equal(torch.stack(list(policy.losses(lively))), results[0][0])


def test_the_masked_mean_counts_what_it_sums() -> None:
    values = torch.tensor([[[1.0, 3.0], [100.0, 100.0]], [[5.0, 7.0], [9.0, 11.0]]])
    is_pad = torch.tensor([[False, True], [False, False]])
    assert masked_mean(values, is_pad).item() == pytest.approx((1 + 3 + 5 + 7 + 9 + 11) / 6)
    assert masked_mean(values, torch.ones(2, 2, dtype=torch.bool)).item() == 0
    assert masked_mean(torch.full((1, 1, 1), float("nan")), torch.tensor([[True]])).item() == 0


def test_the_divergence_is_that_of_normals() -> None:
    normal = torch.distributions.Normal
    mean, log_variance = torch.randn(4, 6), torch.randn(4, 6)
    expected = torch.distributions.kl_divergence(normal(mean, (log_variance / 2).exp()), normal(0.0, 1.0))
    assert style_divergence(mean, log_variance).item() == pytest.approx(expected.sum(-1).mean().item(), rel=1e-5)


def test_policies_normalise_and_act_in_the_units_of_the_data() -> None:
    policy = make_policy("CNNMLP", SMALL, COLUMNS, STATS, 0.0).eval()
    assert isinstance(policy, CnnMlpPolicy)
    batch = {"qpos": torch.full((1, 5), 5.0), "a": _images(1)[0], "b": _images(1)[0],
             "action": torch.full((1, 1, 3), 4.0), "action_is_pad": torch.zeros(1, 1, dtype=torch.bool)}  # fmt: skip
    sample = policy.sample(batch)
    assert sample.state.tolist() == [[2.0] * 5]
    assert sample.actions.flatten().tolist() == pytest.approx([2.0, 2.0, 100.0])  # a joint that rests is not blown up
    acted = policy.act(batch["qpos"], sample.images)
    again = policy.predict(sample.state, sample.images) * policy.action_std + policy.action_mean
    assert torch.allclose(acted, again.double())
    policy.losses(sample).loss.backward()


def test_frozen_batch_norm_is_batch_norm_at_rest() -> None:
    live, frozen = torch.nn.BatchNorm2d(6), FrozenBatchNorm2d(6)
    live(torch.randn(4, 6, 5, 5) * 3 + 1)
    frozen.load_state_dict({name: value for name, value in live.state_dict().items() if "num" not in name})
    x = torch.randn(2, 6, 5, 5)
    assert torch.allclose(frozen.train()(x), live.eval()(x)) and not list(frozen.parameters())


def test_weights_files_are_tensors_of_this_shape_or_refused(tmp_path: Path) -> None:
    source, target = ResNet18(8), ResNet18(8, norm="frozen")
    with torch.no_grad():
        source.train()(torch.randn(4, 3, 32, 32))
    torch.save({**source.state_dict(), "fc.weight": torch.zeros(10, 64)}, tmp_path / "w.pth")
    target.load_weights(tmp_path / "w.pth")
    x = torch.randn(1, 3, 32, 32)
    assert torch.allclose(source.eval()(x), target(x), atol=1e-6)
    with pytest.raises(UsageError, match="no ResNet-18 of this shape"):
        ResNet18(16).load_weights(tmp_path / "w.pth")
    torch.save({"weights": Path("/")}, tmp_path / "p.pth")
    with pytest.raises(UsageError, match=r"p\.pth .* cannot be read as tensors") as caught:
        target.load_weights(tmp_path / "p.pth")
    assert "eights only" in str(caught.value.__cause__)


@pytest.mark.parametrize("dim", [16, 6, 7])
def test_positions_differ(dim: int) -> None:
    assert sine_positions(22, dim).shape == (22, dim)
    grid = sine_grid(3, 4, dim)
    assert grid.shape == (12, dim) and len(torch.unique(grid, dim=0)) == 12


def test_groups_divide_the_channels_of_any_width() -> None:
    for width in (56, 24, 40, 8, 64):
        norms = [each for each in ResNet18(width, "group").modules() if isinstance(each, torch.nn.GroupNorm)]
        assert {each.num_channels for each in norms} == {width << number for number in range(4)}
        for each in norms:
            usual = max(1, each.num_channels // 16)
            assert each.num_groups == usual or each.num_channels % usual  # where it divides, as it always was
