"""The LeRobot formats and nothing else: layout, statistics, the sink, reader, check.

Modules are imported by name (`from penstock._src.lerobot.read.reader import open_data_set`): a command pays only for
what it uses.
"""
