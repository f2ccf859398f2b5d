"""Writing a LeRobot data set: the sink of a conversion."""
