"""Video codecs: frames decoded and encoded through FFmpeg."""
