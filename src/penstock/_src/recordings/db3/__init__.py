"""ROS 2 bags in SQLite files.

SQLite itself reads every file that it can, through Python's own module. Own code, beside rosbags: the index over
times and sizes is made without reading a payload, rows are read in the order of the file within a given memory, and
the leaf pages of files that SQLite cannot follow are read one by one (`pages.py` says why). `benchmarks/parts.py`
measures opening and reading against rosbags.
"""
