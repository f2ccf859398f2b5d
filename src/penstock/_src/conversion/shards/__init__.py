"""One conversion by several machines: groups of inputs, each written whole by one task, and a commit of them all."""
