"""What binds the training step, what would change it, and a trial of the best change."""
