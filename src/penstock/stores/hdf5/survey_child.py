"""What runs in the child that surveys HDF5 files for a store: it may crash or hang on one, and nobody else does."""

from __future__ import annotations

import json
import sys
from typing import Any

from penstock.errors import PenstockError
from penstock.stores.hdf5.file import Hdf5File
from penstock.stores.hdf5.spots import Asked, like_from
from penstock.stores.hdf5.survey import Surveyor
from penstock.stores.hdf5.trial_child import limit_myself

_CPU_SECONDS = 20  # for one file or one group of it


def main() -> None:
    """Survey the files of a job, line by line; the first error is the last line."""
    limit_myself()
    job = json.load(sys.stdin)
    asked = Asked(**{**job["asked"], **{key: _tuple(job["asked"][key]) for key in ("columns", "only")}})
    surveyor = Surveyor(asked, like_from(job["like"]) if job["like"] else None)
    for number, path in job["files"]:
        _say({"at": number})
        try:
            with Hdf5File(path, allow_external=asked.allow_external, tried=True) as file:
                for line in surveyor.survey(file):
                    _allow_time()
                    _say({"file": number, **line})
        except PenstockError as error:
            _say({"file": number, "error": as_plain(error)})
            return
        _say({"done": number})


def as_plain(error: PenstockError) -> dict[str, Any]:
    """An error as JSON: its class by name, and what it carries."""
    carried = {key: value for key, value in vars(error).items() if isinstance(value, (str, int, float, type(None)))}
    return {"class": type(error).__name__, "carried": carried}


def _tuple(values: Any) -> Any:
    return None if values is None else tuple(values)


def _say(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    if "at" in line or "error" in line:
        sys.stdout.flush()


def _allow_time() -> None:
    """A child that hangs ends by itself, however many files it has surveyed before."""
    import resource

    used = resource.getrusage(resource.RUSAGE_SELF)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    soft = int(used.ru_utime + used.ru_stime) + _CPU_SECONDS
    resource.setrlimit(resource.RLIMIT_CPU, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))


if __name__ == "__main__":
    main()
