"""Which topic becomes which feature, when nobody says."""
