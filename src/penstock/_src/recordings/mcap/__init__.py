"""mcap files: summary, chunks, records; written and scanned.

Own code beside the mcap package, for four reasons. Opening reads the index records alone and keeps 20 bytes per
message. Payloads come in any order through recycled buffers of a given size, where the package makes an object for
each message. Files without a summary or an index, and damaged ones, are read in bounded memory. Checksums are
verified whichever way a chunk is reached. `benchmarks/parts.py` measures opening and reading against the mcap
package.
"""
