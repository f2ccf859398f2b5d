"""Message definitions and values: ROS 1, ROS 2 CDR, protobuf and JSON.

Own decoders beside rosbags, for three reasons. A reader takes the wanted fields alone and moves over the rest, and
arrays are views into the payload, where rosbags makes an object of the whole message. No code is generated from the
text of a recording, which may be hostile. A definition that cannot be read costs its own topic and no other.
`benchmarks/parts.py` measures decoding against rosbags. Definitions are parsed here as well: the parsers of rosbags
know no limits of depth and size, take broken lines and fields that stand twice, and give no type for an IDL enum.
"""
