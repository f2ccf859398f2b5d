"""H.264 and H.265 streams: headers, order, damage."""
