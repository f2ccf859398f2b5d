"""Message definitions of ROS, IDL, protobuf and JSON, and the values of a message."""
