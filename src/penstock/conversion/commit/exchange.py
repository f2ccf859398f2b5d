"""Two directories change their names in one step."""

from __future__ import annotations

import errno
import os
from functools import lru_cache
from pathlib import Path
from typing import Any

OLD_SUFFIX = ".penstock-old"

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_UNABLE = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP)


def exchange(new: Path, old: Path) -> None:
    """`new` takes the place of `old` and the other way round; where the system cannot, in three steps."""
    call = _renameat2()
    if call is not None:
        import ctypes

        if call(_AT_FDCWD, os.fsencode(new), _AT_FDCWD, os.fsencode(old), _RENAME_EXCHANGE) == 0:
            return
        number = ctypes.get_errno()
        if number not in _UNABLE:
            raise OSError(number, os.strerror(number), str(old))
    aside = aside_of(old)
    os.rename(old, aside)
    os.rename(new, old)
    os.rename(aside, new)


def aside_of(path: Path) -> Path:
    """Where the old directory lies between the steps."""
    return path.with_name(path.name + OLD_SUFFIX)


@lru_cache(maxsize=1)
def _renameat2() -> Any:
    import ctypes

    try:
        call = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError):
        return None
    call.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint]
    return call
