"""What a training step changes, kept on the host and put back: weights, buffers, gradients, optimizer, randomness."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class TrainingState:
    """Model and optimizer as they are now. Copies lie on the host, so that the device has what it has in training."""

    def __init__(self, model: Any, optimizer: Any) -> None:
        self._model, self._optimizer = model, optimizer
        self._modes = [(module, module.training) for module in model.modules()]
        self._tensors = [(tensor, _copy(tensor)) for tensor in _unique([*model.parameters(), *model.buffers()])]
        parameters = [each for group in optimizer.param_groups for each in group["params"]]
        self._parameters = _unique([*model.parameters(), *parameters])
        self._gradients = [None if each.grad is None else _copy(each.grad) for each in self._parameters]
        self._groups = [{key: value for key, value in group.items() if key != "params"}
                        for group in optimizer.param_groups]  # fmt: skip
        self._slots = {
            parameter: {key: (value, _copy(value)) for key, value in slots.items()}
            for parameter, slots in optimizer.state.items()
        }

    def start_over(self) -> None:
        """The optimizer as it was, and no gradients: each probe starts as a training does."""
        for parameter in self._parameters:
            parameter.grad = None
        state = self._optimizer.state
        for parameter in list(state):
            if parameter not in self._slots:
                del state[parameter]
        for parameter, slots in self._slots.items():
            state[parameter] = {key: _put_back(value, copy) for key, (value, copy) in slots.items()}
        for group, kept in zip(self._optimizer.param_groups, self._groups, strict=True):
            group.update(kept)

    def restore(self) -> None:
        """Everything as it was."""
        import torch

        self.start_over()
        with torch.no_grad():
            for tensor, copy in self._tensors:
                tensor.copy_(copy)
        for parameter, gradient in zip(self._parameters, self._gradients, strict=True):
            parameter.grad = None if gradient is None else gradient.to(parameter.device)
        for module, was_training in self._modes:
            module.training = was_training


@contextmanager
def same_random_numbers() -> Iterator[None]:
    """Afterwards the random number generators of Python, numpy and torch stand where they stood."""
    import numpy as np
    import torch

    python, numpy, cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(cpu)
        if cuda is not None:
            torch.cuda.set_rng_state_all(cuda)


def tensors_of(value: Any) -> Iterator[Any]:
    """The tensors of a batch, whatever it is made of."""
    torch = sys.modules["torch"]
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from tensors_of(each)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from tensors_of(each)


def to_device(value: Any, device: Any) -> Any:
    """A batch with its tensors on a device; what lies there is not copied."""
    torch = sys.modules["torch"]
    if isinstance(value, torch.Tensor):
        return value.to(device, non_blocking=True)
    if isinstance(value, dict):
        return {key: to_device(each, device) for key, each in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(to_device(each, device) for each in value))
    if isinstance(value, (list, tuple)):
        return type(value)(to_device(each, device) for each in value)
    return value


def _copy(value: Any) -> Any:
    torch = sys.modules["torch"]
    return value.detach().to("cpu", copy=True) if isinstance(value, torch.Tensor) else value


def _put_back(value: Any, copy: Any) -> Any:
    torch = sys.modules["torch"]
    if not isinstance(value, torch.Tensor):
        return copy
    with torch.no_grad():
        value.copy_(copy)
    return value


def _unique(tensors: list[Any]) -> list[Any]:
    return list({id(each): each for each in tensors}.values())
