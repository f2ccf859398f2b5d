"""MP4 files: written byte by byte, and read by their index alone.

Own code beside PyAV, for three reasons. The writer moves frames of many messages to the file in one call and copies
none of them, stores a frame that serves several rows once, and can go back to the last whole episode. Its bytes do
not depend on the version of FFmpeg. The reader gives the place of every frame from the index, without a demuxer that
walks the file. `benchmarks/parts.py` measures writing and opening against PyAV.
"""
