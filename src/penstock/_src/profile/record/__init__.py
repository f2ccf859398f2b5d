"""Spans, counters, steps and memory of a run, recorded on a shared board by all its threads and processes."""
