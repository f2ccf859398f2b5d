"""Spike cameras: one bit per pixel and frame, in files without a header."""
