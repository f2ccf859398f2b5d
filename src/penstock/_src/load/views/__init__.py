"""Views: columns decoded once at the training size, in RAM or on disk, for all threads and processes."""
