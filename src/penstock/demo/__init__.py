"""A recording that anyone can make: what `penstock demo`, the tests and the benchmarks convert."""
