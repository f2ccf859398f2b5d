"""One conversion by several processes."""
