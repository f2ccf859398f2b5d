"""Random access to LeRobot data sets."""
