"""The doctor of a data set."""
