"""`python -m penstock` is the command `penstock`."""

from __future__ import annotations

from penstock._src.cli import entry

entry()
