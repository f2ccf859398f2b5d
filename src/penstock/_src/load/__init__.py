"""From data on disk to batches: which sample comes next, what it needs, and how it gets there within the budget."""
