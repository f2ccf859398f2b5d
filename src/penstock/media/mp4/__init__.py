"""MP4 files: written byte by byte, and read by their index alone."""
