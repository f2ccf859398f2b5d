"""Pixels and packets: JPEG headers, images, MP4 files, video codecs.

This package imports nothing by itself. Take the module you need: `from penstock._src.media.image import jpeg`. Codecs
are loaded only when an image is really touched.
"""
