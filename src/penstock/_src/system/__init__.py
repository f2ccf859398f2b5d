"""The machine and its files: units, limits, memory, budget, configuration, bytes."""
