"""ROS 1 bags: index, chunks, records; written and scanned.

Own code beside rosbags, for four reasons. Opening keeps 20 bytes per message in arrays, where rosbags makes an object
for each. Payloads come in any order through recycled buffers of a given size, many messages in one read. A loss is
counted and named instead of ending the work. Bags without an index, and damaged ones, are read. `benchmarks/parts.py`
measures opening and reading against rosbags.
"""
