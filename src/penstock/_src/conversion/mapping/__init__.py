"""Which topic becomes which feature, when no configuration says so."""
