"""What robots recorded: ROS 1 bags, ROS 2 db3 and mcap, opened by one function.

with penstock.recordings.open("run.bag") as recording:
    for topic in recording.topics:
        print(topic.name, topic.type, topic.count)
"""

from penstock._src.recordings import find, open
from penstock._src.recordings.fetch import Block
from penstock._src.recordings.messages.schemas import Schema, SchemaStore
from penstock._src.recordings.recording import DEFAULT_FETCH_BYTES, LargestReads, Loss, OnCorrupt, Recording, Topic
from penstock._src.recordings.recovery.recover import recover
from penstock._src.recordings.split import SplitFiles

__all__ = [
    "DEFAULT_FETCH_BYTES",
    "Block",
    "LargestReads",
    "Loss",
    "OnCorrupt",
    "Recording",
    "Schema",
    "SchemaStore",
    "SplitFiles",
    "Topic",
    "find",
    "open",
    "recover",
]
