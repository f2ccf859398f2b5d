"""ROS 2 bags in SQLite files."""
