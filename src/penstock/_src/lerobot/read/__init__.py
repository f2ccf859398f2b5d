"""Reading a LeRobot data set: metadata, rows, where frames lie."""
