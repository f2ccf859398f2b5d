"""What became of each input so far: losses, notes, alignment; kept in the journal, so that a resumed job knows it."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.conversion.commit.journal import Journal
from penstock.conversion.inputs.input import Found, Outcome, State

# Of the inputs of a large job the report shows some in full; sums count all of them.
SHOWN_ALIGNMENTS = 100
SHOWN_NOTES = 1000


class InputProgress:
    """One input: how many episodes it gave, and until it is through the state after the last one.

    A fleet has a hundred thousand of these: what became of an input goes into the sums of the job.
    """

    __slots__ = ("episodes", "failed", "found", "is_done", "size_bytes", "state")

    def __init__(self, found: Found, size_bytes: int) -> None:
        self.found = found
        self.size_bytes = size_bytes
        self.episodes = 0
        self.state: State | None = None
        self.is_done = False  # its outcome is known
        self.failed: str | None = None

    @property
    def is_through(self) -> bool:
        return self.is_done or self.failed is not None


@dataclass
class JobInputs:
    """Inputs of the data set, in the order in which they were given; a worker knows the one with the number `first`."""

    entries: list[InputProgress] = field(default_factory=list)
    first: int = 0
    first_new: int = 0  # the inputs before it were in the data set before this call appended to it
    lost: Counter[str] = field(default_factory=Counter)
    lost_before: int = 0  # of those, in the inputs before `first_new`
    notes: dict[str, None] = field(default_factory=dict)  # everything that was noted of the inputs, as far as shown
    more_notes: int = 0
    _alignments: dict[int, str] = field(default_factory=dict)  # as JSON: a tenth of the memory
    _alignments_with_loss: dict[int, str] = field(default_factory=dict)

    def entry(self, number: int) -> InputProgress:
        return self.entries[number - self.first]

    def add_episode(self, note: Mapping[str, Any]) -> tuple[str, ...]:
        """Take the note of a committed episode; what it says of its input, if that is through."""
        entry = self.entry(note["input"])
        entry.episodes += 1
        entry.state = note["state"]
        return self._take_outcome(note)

    def add_note(self, note: Mapping[str, Any]) -> tuple[str, ...]:
        """Take a line of the journal that belongs to no episode; what it says of its input, if that is through."""
        if "input" not in note:
            return ()
        self.entry(note["input"]).failed = note.get("failed")
        return self._take_outcome(note)

    def add_journal(self, journal: Journal) -> None:
        """Take everything that a journal says."""
        for record in journal.episodes():
            self.add_episode(record.note or {})
        for note in journal.notes():
            self.add_note(note)

    def failed(self, first: int = 0) -> dict[str, str]:
        """Why inputs failed, by path; not those that were given again later and went through."""
        if not any(entry.failed is not None for entry in self.entries):
            return {}
        found: dict[str, tuple[str, str]] = {}
        for entry in self.entries[first:]:
            real = os.path.realpath(entry.found.path)
            found.pop(real, None)
            if entry.failed is not None:
                found[real] = str(entry.found.path), entry.failed
        return dict(found.values())

    def alignment(self) -> tuple[Mapping[str, Any], ...]:
        """How the rows of the inputs were paired: of those that lost something, and of the first ones."""
        with_loss = list(self._alignments_with_loss.items())
        shown = with_loss + list(self._alignments.items())[: SHOWN_ALIGNMENTS - len(with_loss)]
        return tuple(json.loads(text) for _, text in sorted(shown))

    def _take_outcome(self, note: Mapping[str, Any]) -> tuple[str, ...]:
        if "outcome" not in note:
            return ()
        number, outcome = note["input"], note["outcome"]
        entry = self.entry(number)
        entry.is_done, entry.state = True, None
        self.lost.update(outcome["lost"])
        if number < self.first_new:
            self.lost_before += sum(outcome["lost"].values())
        for text in outcome["notes"]:
            if len(self.notes) < SHOWN_NOTES:
                self.notes[f"{entry.found.name}: {text}"] = None
            else:
                self.more_notes += 1
        shown = self._alignments_with_loss if any(outcome["lost"].values()) else self._alignments
        if outcome["alignment"] is not None and len(shown) < SHOWN_ALIGNMENTS:
            shown[number] = json.dumps(outcome["alignment"])
        return tuple(outcome["notes"])


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
