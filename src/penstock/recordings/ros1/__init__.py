"""ROS 1 bags: index, chunks, records; written and scanned."""
