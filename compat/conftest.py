"""pytest runs none of these: some begin with `test_`, as the documents that name them have it, and are commands."""

collect_ignore_glob = ["*"]
