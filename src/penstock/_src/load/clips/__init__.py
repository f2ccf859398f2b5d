"""Clips of blurred and sharp images with spikes: samples, a cache that all processes share, loaders from one YAML."""
