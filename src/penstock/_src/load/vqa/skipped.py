"""Which samples could not be used, over all workers: counted, and the first of them named by row."""

from __future__ import annotations

import warnings

from penstock._src.load.vqa.shared_cells import SharedCells
from penstock.errors import PenstockError

_NAMED = 16


class SkippedImages:
    """Rows that were left out because of their images."""

    def __init__(self) -> None:
        self._cells = SharedCells(1 + _NAMED)

    def note(self, row: int, error: PenstockError) -> None:
        """Count a row; the first one is a warning in the process that meets it."""
        with self._cells.locked() as cells:
            count = int(cells[0])
            if count < _NAMED:
                cells[1 + count] = row
            cells[0] = count + 1
        if not count:
            warnings.warn(f"row {row:,} is left out: {error.message}", RuntimeWarning, stacklevel=2)

    @property
    def count(self) -> int:
        """How often a row was left out."""
        with self._cells.locked() as cells:
            return int(cells[0])

    @property
    def rows(self) -> tuple[int, ...]:
        """The first of them."""
        with self._cells.locked() as cells:
            return tuple(sorted(set(cells[1 : 1 + min(int(cells[0]), _NAMED)].tolist())))

    def __repr__(self) -> str:
        return f"<{self.count:,} left out: rows {', '.join(map(str, self.rows))}>" if self.count else "<none left out>"
