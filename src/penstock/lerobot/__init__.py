"""The LeRobot v3.0 format and nothing else: layout, statistics, writer, reader, check.

Modules are imported by name (`from penstock.lerobot.write.writer import DataSetWriter`), so that a command pays only
for what it uses.
"""
