"""What fits, before anything starts."""
