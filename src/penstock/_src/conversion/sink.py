"""What a conversion writes to: the protocol of a sink, and the outputs that are known.

A sink writes the files of one output format and knows nothing else. The journal, the lock, resuming, joining what
worker processes wrote, statistics, task numbers and publishing are done for it (`conversion/commit`):

    sink = factory(root, description, names)       # touches nothing on the disk
    sink.survey(records); sink.restore(state)      # only for a data set that goes on
    episode = sink.begin_episode(0, rows=1800)
    episode.video("observation.images.cam").append(jpegs)
    episode.write_rows(columns)
    finished = episode.finish()                    # or episode.discard()
    sink.state(); sink.sync(closing=False)         # then the line of the journal is written
    sink.settle()                                  # the episode is committed
    sink.sync(closing=True); sink.close(records, …)

A sink may have two methods more: `begin_group(number)`, after which files of several episodes begin anew under names
that belong to the group, and `adopt_video` of its episodes, which takes finished files of a worker output without
copying them (`penstock._src.lerobot.write.sink`). Without them frames are copied. An output in object storage needs a
sink with `number_from(chunks)`, which says in which chunks files are numbered, and `finished(last)`, which names the
files that no episode after this one changes.

A new output is a module with such a class and one registration: a line in `OUTPUTS`, an entry point of the group
`penstock.sinks`, or a call of `register`. `output=NAME` chooses it. The classes are structural: a sink imports nothing
from here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from penstock._src.formats.format import load
from penstock._src.system import config
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from penstock._src.lerobot.features import Description
    from penstock._src.lerobot.layout import UnsyncedNames
    from penstock._src.lerobot.stats import Stats
    from penstock._src.media.video.encode import EncodedSample, VideoEncoder

ENTRY_POINTS = "penstock.sinks"
DEFAULT_OUTPUT = "v3.0"

Record = Mapping[str, Any]
"""A committed episode as the journal keeps it, plain JSON: `episode_index`, `tasks` (texts), `first_row`, `rows`,
`stats` (by feature; None or absent where the closed data set held them, see `Sink.holds_statistics`), and beside them
the entries of `FinishedEpisode.place`."""

Piece = memoryview | bytes


class VideoSink(Protocol):
    """Takes the frames of one camera for one episode: JPEG images as they are, or encoded samples after `set_codec`."""

    @property
    def frames(self) -> int:
        """Frames of this episode so far, repeated ones included."""

    def set_codec(self, stsd: bytes, info: Mapping[str, Any]) -> None:
        """Encoded samples follow: their MP4 sample description, and what is known of the codec (`video.codec`,
        `video.pix_fmt`, …). Called before the first sample."""

    def append(
        self,
        pieces: Sequence[Piece],
        keys: Sequence[bool] | None = None,
        *,
        shifts: Sequence[int] | None = None,
        checked: bool = False,
    ) -> None:
        """One frame per piece, which is valid during the call only. `keys` marks key frames of a codec. `shifts`, in
        frames, says where frames are shown in another order than they are stored. `checked` says that the images were
        appended to a sink before, after others of their episode."""

    def append_encoded(self, samples: Sequence[EncodedSample], encoder: VideoEncoder) -> None:
        """What an encoder gave; the first samples of an episode bring their codec with them."""

    def repeat(self, count: int = 1) -> None:
        """`count` more rows show the last frame."""


class FinishedEpisode(Protocol):
    """What `EpisodeSink.finish` returns."""

    @property
    def place(self) -> Mapping[str, Any]:
        """Where the episode lies: plain JSON that the journal keeps, and gives back in a `Record`. Its keys are the
        sink's own and none of those of every record."""

    @property
    def size_bytes(self) -> int:
        """What the episode added to the disk: small episodes are committed in groups."""

    @property
    def kept(self) -> Mapping[str, Any] | None:
        """None; only the sink of worker outputs keeps something (`penstock._src.lerobot.write.sink`)."""


class EpisodeSink(Protocol):
    """One episode being written."""

    def write_rows(self, columns: Mapping[str, NDArray[Any] | list[Any]]) -> None:
        """The next rows, complete and checked: every feature but videos, as arrays (n, *shape), lists of texts or lists
        of encoded images; and `timestamp`, `frame_index`, `episode_index`, `index` and `task_index`."""

    def video(self, key: str) -> VideoSink:
        """Where the frames of a video feature go. May be written by a thread of its own."""

    def finish(self) -> FinishedEpisode:
        """All rows and frames were written; every camera has one frame per row. What was written belongs to the data
        set from now on, but a later `Sink.restore` may still take it back."""

    def discard(self) -> None:
        """Leave no trace of the episode."""

    def leave(self) -> None:
        """Close files as they are, whatever they hold. Never fails."""


class Sink(Protocol):
    """The files of one data set. One episode is written at a time."""

    @property
    def holds_statistics(self) -> bool:
        """Whether the closed data set holds the statistics of each episode and the sink gets them back from there after
        `reopen`. If not, the journal keeps them, and every `Record` has them."""

    def begin_episode(self, episode_index: int, rows: int | None) -> EpisodeSink:
        """Begin the next episode; `rows` where they are known beforehand."""

    def sync(self, *, closing: bool) -> None:
        """Bring the finished episodes to the disk: nothing that they need may be in memory only. With `closing` no
        episode follows, and open files are ended. Names of new files go to `names`; the caller syncs those."""

    def state(self) -> dict[str, Any]:
        """What `restore` needs besides the records: JSON values, arrays and bytes. Asked before every `sync`."""

    def settle(self) -> None:
        """The episodes synced last are in the journal: files may be moved now. Done again by `restore` when killed."""

    def close(
        self,
        records: Iterable[Record],
        *,
        tables: Mapping[str, Sequence[str]],
        stats: Mapping[str, Stats],
        episodes: int,
        frames: int,
    ) -> None:
        """Write the metadata, after `sync(closing=True)`. `records` are read from the disk one by one; `tables` has
        the texts of `tasks` and `subtasks` by number; `stats` are those of the whole data set, by feature."""

    def closed(self) -> None:
        """The journal says that the data set is closed: what was kept until then may go."""

    def leave(self) -> None:
        """Close all files as they are: nothing is deleted, nothing more is written. Never fails."""

    def survey(self, records: Iterable[Record]) -> None:
        """Before a data set goes on: read all records, look at every file that they name, and change nothing. Raises
        DataSetError that lists what is missing."""

    def reopen(self) -> None:
        """A closed data set goes on: keep aside what `close` needs of its metadata. May be killed and called again."""

    def restore(self, state: Mapping[str, Any] | None) -> None:
        """After `survey`: remove what belongs to no committed episode, and the metadata, and be as the sink was that
        gave `state`; None when nothing was committed."""

    def grows(self, last: Record) -> Iterable[str]:
        """The files, relative to the root, that are changed in place when a data set with this last episode goes on:
        a copy to append to has them copied, all others linked."""

    def name_in_copy(self, relative: str) -> str | None:
        """Where a file of the sink lies in a copy to append to; None for metadata that `close` writes anew."""


SinkFactory = Callable[[Path, "Description", "UnsyncedNames"], Sink]
"""Makes the sink of a data set in a directory; `names` takes the paths of new files, and `names.fsync` says whether
files are to be synced. A description that the format cannot hold raises DataSetError. It may have `label`, the name of
the format for people, and `default_video`, what becomes of images where the user does not say."""

# Each output by the name that users write, and where its factory lies: imported when it is used.
OUTPUTS: dict[str, str] = {
    DEFAULT_OUTPUT: "penstock._src.lerobot.write.sink:LeRobotSink",
    "v2.1": "penstock._src.lerobot.write.version21:Version21Sink",
}
_registered: dict[str, SinkFactory] = {}


def register(name: str, factory: SinkFactory) -> None:
    """Make an output known to this process; packages use an entry point of the group `penstock.sinks` instead."""
    _registered[name] = factory


def check_output(name: str) -> None:
    """Refuse the name of an unknown output."""
    if name not in OUTPUTS:
        sink_factory(name)


def sink_factory(name: str) -> SinkFactory:
    """The factory of an output; ConfigError for an unknown name."""
    if name in _registered:
        return _registered[name]
    if name in OUTPUTS:
        return cast(SinkFactory, load(OUTPUTS[name]))
    from importlib.metadata import entry_points

    installed = entry_points(group=ENTRY_POINTS)
    if name not in installed.names:
        known = [*OUTPUTS, *_registered, *installed.names]
        raise ConfigError(
            f"output: {name!r} is not known{config.did_you_mean(name, known)}",
            hint=f"known outputs: {', '.join(known)}",
        )
    return cast(SinkFactory, installed[name].load())


def default_video(name: str) -> str:
    """What an output makes of images where `video` is not given."""
    return "copy" if name == DEFAULT_OUTPUT else str(getattr(sink_factory(name), "default_video", "copy"))


def label(name: str) -> str:
    """The name of an output for people."""
    return str(getattr(sink_factory(name), "label", name))


if TYPE_CHECKING:
    from penstock._src.lerobot.write.sink import LeRobotSink
    from penstock._src.lerobot.write.version21 import Version21Sink

    _fits: tuple[SinkFactory, ...] = (LeRobotSink, Version21Sink)
