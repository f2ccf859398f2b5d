"""Writing a LeRobot data set."""
