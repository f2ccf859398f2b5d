"""What fits, before anything starts: memory, strategy and batch size."""
