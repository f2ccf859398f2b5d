"""Visual question answering: records of text and images, found by a byte-offset index and parsed when asked for."""
