"""The memory of a run over time: a sampler with its peaks and plots, and a live view."""
