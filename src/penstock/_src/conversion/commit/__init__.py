"""Journal, lock, resume and atomic publishing of an output."""
