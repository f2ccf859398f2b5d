"""The job: recordings → plan → stream → commit → report."""
