"""Message definitions and values: ROS 1, ROS 2 CDR, protobuf and JSON.

Own decoders beside rosbags, for three reasons. A reader takes the wanted fields alone and moves over the rest, and
arrays are views into the payload, where rosbags makes an object of the whole message. No code is generated from the
text of a recording, which may be hostile. A definition that cannot be read costs its own topic and no other.
`benchmarks/parts.py` measures decoding against rosbags. Definitions in .msg text are parsed here as well, within limits
and a hundred times as fast as rosbags does; IDL is left to rosbags, protobuf to its library.
"""
