"""mcap files: summary, chunks, records; written and scanned."""
