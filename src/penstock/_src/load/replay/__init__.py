"""Replay buffers for offline RL: transitions of HDF5 files, sampled when asked or ahead."""
