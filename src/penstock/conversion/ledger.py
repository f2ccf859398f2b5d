"""What became of each input so far: losses, notes, alignment; kept in the journal, so that a resumed job knows it."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import field
from typing import Any

from penstock.conversion.inputs import Found, Outcome, State
from penstock.lazy import dataclass


@dataclass
class Entry:
    """One input: how many episodes it gave, the state after the last one, and its outcome once it is through."""

    found: Found
    size_bytes: int
    episodes: int = 0
    state: State | None = None
    outcome: Outcome | None = None
    failed: str | None = None

    @property
    def is_through(self) -> bool:
        return self.outcome is not None or self.failed is not None


@dataclass
class Ledger:
    """All inputs of the data set, in the order in which they were given."""

    entries: list[Entry] = field(default_factory=list)

    def add_episode(self, note: Mapping[str, Any]) -> None:
        """Take the note of a committed episode."""
        entry = self.entries[note["input"]]
        entry.episodes += 1
        entry.state = note["state"]
        if "outcome" in note:
            entry.outcome = _outcome(note["outcome"])

    def add_note(self, note: Mapping[str, Any]) -> None:
        """Take a line of the journal that belongs to no episode."""
        if "input" in note:
            entry = self.entries[note["input"]]
            entry.failed = note.get("failed")
            entry.outcome = _outcome(note["outcome"]) if "outcome" in note else entry.outcome

    def lost(self, first: int = 0) -> dict[str, int]:
        counted: Counter[str] = Counter()
        for entry in self.entries[first:]:
            counted.update(entry.outcome.lost if entry.outcome else {})
        return dict(counted)

    def failed(self, first: int = 0) -> dict[str, str]:
        """Why inputs failed, by path; not those that were given again later and went through."""
        found: dict[str, tuple[str, str]] = {}
        for entry in self.entries[first:]:
            real = os.path.realpath(entry.found.path)
            found.pop(real, None)
            if entry.failed is not None:
                found[real] = str(entry.found.path), entry.failed
        return dict(found.values())

    def notes(self) -> list[str]:
        """Everything that was said of the inputs, each with its file name."""
        found: dict[str, None] = {}
        for entry in self.entries:
            for note in entry.outcome.notes if entry.outcome else ():
                found[f"{entry.found.path.name}: {note}"] = None
        return list(found)

    def alignment(self) -> tuple[Mapping[str, Any], ...]:
        found = [entry.outcome.alignment for entry in self.entries if entry.outcome]
        return tuple(each for each in found if each is not None)


def episode_note(number: int, state: State, outcome: Outcome | None) -> dict[str, Any]:
    """What the journal keeps beside an episode."""
    note: dict[str, Any] = {"input": number, "state": state}
    return note if outcome is None else {**note, "outcome": _written(outcome)}


def outcome_note(number: int, outcome: Outcome) -> dict[str, Any]:
    """What the journal keeps of an input whose end was no episode."""
    return {"input": number, "outcome": _written(outcome)}


def failure_note(number: int, reason: str) -> dict[str, Any]:
    return {"input": number, "failed": reason}


def _written(outcome: Outcome) -> dict[str, Any]:
    return {"lost": dict(outcome.lost), "notes": list(outcome.notes), "alignment": outcome.alignment}


def _outcome(tree: Mapping[str, Any]) -> Outcome:
    return Outcome(tree["lost"], tuple(tree["notes"]), tree["alignment"])
