"""The parts of examples/train_vqa.py: words, model, data, training."""
