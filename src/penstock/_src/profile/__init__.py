"""Where the time of a training step goes: spans over threads and processes, outputs, and a verdict that is checked."""
