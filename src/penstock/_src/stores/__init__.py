"""Random access to what is on disk: files whose columns are read by row, in bounded memory."""
