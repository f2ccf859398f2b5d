"""MP4 files: written byte by byte, and read by their index alone.

Own code beside PyAV, whose muxer is as fast (`benchmarks/parts.py`), for what that one does not offer. A file goes
back to a committed length, and another process goes on from there. A frame that serves several rows is stored once.
The bytes of a file are known exactly while it grows, and do not depend on the version of FFmpeg. The reader gives the
place of every frame from the index, without a demuxer that walks the file.
"""
