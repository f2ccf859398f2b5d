"""Where batches go: arrays and tensors in memory, or a CUDA device."""
