"""Formats: what a path is, and who reads it."""
