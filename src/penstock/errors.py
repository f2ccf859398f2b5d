"""Everything that penstock raises on purpose.

PenstockError                     exit 1; `hint` says what to do next
├── UsageError                    exit 2: the words of the call are wrong
│   ├── ConfigError               a key or value of a configuration
│   └── MissingExtra              an optional package is needed: one sentence with the pip command
├── LimitExceeded                 a size, claimed or real, is over a limit (carries both)
│   └── BudgetExceeded            the memory budget cannot hold it
├── RecordingError                a ROS recording cannot be read (as asked)
│   ├── NotARecording             the file is something else
│   ├── RecordingCorrupt          broken at a byte offset
│   ├── SchemaError               a message definition is missing, broken or hostile
│   └── MessageError              one message does not match its definition
├── MediaError
│   ├── ImageError                one image: not a JPEG, cut, other size, unknown encoding
│   ├── VideoError                a video file or codec
│   └── SpikeError                a spike file: other size, more than one layout that fits, wrong number of bins
├── StoreError                    a store (HDF5 file) cannot be read (as asked)
│   ├── StoreCorrupt              cut, damaged, or left open for writing
│   └── ExternalRefused           it would read another file (carries its name)
├── AlignError                    the topics cannot be paired as the policy asks
├── DataSetError
│   ├── OutputExists              the output is there already, or is not ours to replace
│   ├── OutputFailed              the system refused to write: no space, a broken disk, no permission
│   └── DataSetCorrupt            a data set contradicts itself
├── RemoteError                   an object store or a web server (carries its URL)
│   ├── RemoteMissing             no such object; also a FileNotFoundError
│   ├── RemoteDenied              no rights, or credentials that are refused
│   ├── RemoteThrottled           the store asks to slow down, and retries were not enough
│   ├── RemoteChanged             replaced since it was opened (another ETag)
│   ├── RemoteTaken               a conditional write came too late: somebody else wrote first
│   └── RemoteUnavailable         cannot be reached, fails, or cuts its answers at every attempt
└── Interrupted                   exit 130
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import ClassVar


class PenstockError(Exception):
    """Base of all errors that penstock raises on purpose; `hint` is the next thing to try."""

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n  → {self.hint}" if self.hint else self.message

    def __reduce__(self) -> tuple[object, ...]:
        # Errors cross process borders whole, whatever their constructors ask for.
        return _rebuild, (type(self), self.args, self.__dict__)


def _rebuild(kind: type[PenstockError], args: tuple[object, ...], state: dict[str, object]) -> PenstockError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(state)
    return error


def carried_error(answer: Mapping[str, str | None]) -> PenstockError:
    """The error of another process (`kind`, `message`, `hint`), as far as words and kind can be carried over."""
    kind = globals().get(str(answer["kind"]), PenstockError)
    error: PenstockError = kind.__new__(kind, answer["message"])
    Exception.__init__(error, answer["message"])
    error.message, error.hint = str(answer["message"]), answer["hint"]
    if isinstance(error, RemoteError):
        error.url = ""
    return error


class UsageError(PenstockError):
    """The words of the call are wrong."""

    exit_code: ClassVar[int] = 2


class ConfigError(UsageError):
    """A key or a value of a configuration is wrong."""


class MissingExtra(UsageError):
    """An optional package is needed for what was asked."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs the package {package!r}: pip install 'penstock[{extra}]'")
        self.package = package
        self.extra = extra


class LimitExceeded(PenstockError):
    """A size is over a limit; both are in bytes unless the message says otherwise."""

    def __init__(self, message: str, *, size: int, limit: int, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.size = size
        self.limit = limit


class BudgetExceeded(LimitExceeded):
    """The memory budget cannot hold what is needed at once."""


class RecordingError(PenstockError):
    """A ROS recording cannot be read as asked."""


class NotARecording(RecordingError):
    """The path holds no recording that penstock knows."""


class RecordingCorrupt(RecordingError):
    """A recording is broken at a byte offset."""

    def __init__(self, message: str, *, path: str, offset: int | None = None, hint: str | None = None) -> None:
        where = f"{path}: byte {offset:,}: " if offset is not None else f"{path}: "
        super().__init__(where + message, hint=hint)
        self.path = path
        self.offset = offset


class SchemaError(RecordingError):
    """A message definition is missing, broken or hostile."""


class MessageError(RecordingError):
    """One message does not match its definition."""


class MediaError(PenstockError):
    """Pixels or packets."""


class ImageError(MediaError):
    """One image cannot be used."""


class VideoError(MediaError):
    """A video file or codec cannot be used."""


class SpikeError(MediaError):
    """A spike file cannot be used as asked."""


class StoreError(PenstockError):
    """A store cannot be read as asked."""


class StoreCorrupt(StoreError):
    """A store is cut, damaged, or was left open for writing."""


class ExternalRefused(StoreError):
    """A store would read another file, which is refused unless asked for; `target` names that file."""

    def __init__(self, message: str, *, target: str, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.target = target


class AlignError(PenstockError):
    """The topics cannot be paired as the policy asks."""


class DataSetError(PenstockError):
    """A LeRobot data set cannot be written or read."""


class OutputExists(DataSetError):
    """The output is there already, or is not ours to replace."""


class OutputFailed(DataSetError):
    """The system refused to write a file of the output; what was committed before is still there."""

    def __init__(self, path: object, doing: str, error: BaseException) -> None:
        number = getattr(error, "errno", None)
        reason = getattr(error, "strerror", None) or str(error).strip() or type(error).__name__
        super().__init__(f"{path}: {doing}: {reason}", hint=_write_hint(number))
        self.path = str(path)
        self.errno = number


def _write_hint(number: int | None) -> str:
    if number in (errno.ENOSPC, errno.EDQUOT):
        return "make room on that file system (`df -h` shows it)"
    if number in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "choose an output directory that may be written"
    if number in (errno.ENOENT, errno.ENOTDIR):
        return "make the directory first (`mkdir -p`), or choose another one"
    if number == errno.EISDIR:
        return "name a file in it"
    return "check the free space and the health of the disk"


class DataSetCorrupt(DataSetError):
    """A data set contradicts itself."""


class RemoteError(PenstockError):
    """Bytes behind a URL cannot be read or written; `url` names them."""

    def __init__(self, message: str, *, url: str, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.url = url


class RemoteMissing(RemoteError, FileNotFoundError):
    """There is no such object; for whoever asks whether a file is there, it is a FileNotFoundError."""

    def __init__(self, url: str) -> None:
        super().__init__(f"{url}: there is no such object", url=url, hint="check its name")
        self.errno, self.strerror, self.filename = errno.ENOENT, "there is no such object", url


class RemoteDenied(RemoteError):
    """No rights, or credentials that are refused."""


class RemoteThrottled(RemoteError):
    """The store asks to slow down, and all retries were spent."""


class RemoteChanged(RemoteError):
    """The object was replaced since it was opened."""


class RemoteTaken(RemoteError):
    """A conditional write came too late."""


class RemoteUnavailable(RemoteError):
    """The store cannot be reached, fails, or cuts its answers at every attempt."""


class Interrupted(PenstockError):
    """The user asked to stop."""

    exit_code: ClassVar[int] = 130


@contextmanager
def os_errors(kind: type[PenstockError], doing: str) -> Iterator[None]:
    """What the system raises within becomes an error of ours, with what could not be done and why."""
    try:
        yield
    except OSError as error:
        if isinstance(error, PenstockError):  # a remote file that is missing: it says more
            raise
        raise kind(f"{doing}: {error.strerror or error}") from error
