"""Inputs into one data set, episode after episode, each committed with the state after it; what became of each."""

from __future__ import annotations

import contextlib
import json
import os
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from typing import Any

from penstock._src.conversion.commit.groups import Group
from penstock._src.conversion.commit.journal import Journal
from penstock._src.conversion.commit.writer import DataSetWriter
from penstock._src.conversion.inputs.input import EpisodeCallbacks, EpisodePlan, Input, InputRef, RetryEpisode, State
from penstock._src.conversion.stop import StopSignals
from penstock._src.profile.record.spans import span
from penstock._src.system.budget import Budget
from penstock._src.system.closing import on_error

# Of the inputs of a large job the report shows some in full; sums count all of them.
SHOWN_ALIGNMENTS = 100
SHOWN_NOTES = 1000


class InputProgress:
    """One input: how many episodes it gave, and until it is through the state after the last one.

    A fleet has a hundred thousand of these: what became of an input goes into the sums of the job.
    """

    __slots__ = ("episodes", "failed", "is_done", "ref", "size_bytes", "state")

    def __init__(self, ref: InputRef, size_bytes: int) -> None:
        self.ref = ref
        self.size_bytes = size_bytes
        self.episodes = 0
        self.state: State | None = None
        self.is_done = False  # its outcome is known
        self.failed: str | None = None

    @property
    def is_finished(self) -> bool:
        return self.is_done or self.failed is not None


@dataclass(eq=False)
class JobInputs:
    """Inputs of the data set, in the order in which they were given; a worker knows the one with the number `first`."""

    entries: list[InputProgress] = field(default_factory=list)
    first: int = 0
    first_new: int = 0  # the inputs before it were in the data set before this call appended to it
    lost: Counter[str] = field(default_factory=Counter)
    lost_before: int = 0  # of those, in the inputs before `first_new`
    notes: dict[str, None] = field(default_factory=dict)  # everything that was noted of the inputs, as far as shown
    more_notes: int = 0
    groups: Sequence[Group] = ()
    videos_by_group: bool = False  # whether videos begin anew with each group
    group_shift: int = 0  # from the number of a group to the chunk of its videos
    _alignments: dict[int, str] = field(default_factory=dict)  # as JSON: a tenth of the memory
    _alignments_with_loss: dict[int, str] = field(default_factory=dict)

    def entry(self, number: int) -> InputProgress:
        return self.entries[number - self.first]

    def video_group(self, number: int) -> int | None:
        """The chunk to which the videos of an input belong, where they begin anew with each group."""
        if not self.videos_by_group:
            return None
        return self.groups[bisect_right(self.groups, number, key=attrgetter("first")) - 1].number + self.group_shift

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
        reasons: dict[str, tuple[str, str]] = {}
        for entry in self.entries[first:]:
            real = os.path.realpath(entry.ref.path)
            reasons.pop(real, None)
            if entry.failed is not None:
                reasons[real] = str(entry.ref.path), entry.failed
        return dict(reasons.values())

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
                self.notes[f"{entry.ref.name}: {text.removeprefix(f'{entry.ref.name}: ')}"] = None
            else:
                self.more_notes += 1
        shown = self._alignments_with_loss if any(outcome["lost"].values()) else self._alignments
        if outcome["alignment"] is not None and len(shown) < SHOWN_ALIGNMENTS:
            shown[number] = json.dumps(outcome["alignment"])
        return tuple(outcome["notes"])


@dataclass(eq=False)
class SerialWriter:
    """Writes inputs with one writer in one process; `on_moved(input, bytes)` and `on_rows(text)` report progress."""

    writer: DataSetWriter
    inputs: JobInputs
    budget: Budget
    stop: StopSignals
    on_moved: Callable[[int, int], None]
    on_rows: Callable[[str], None]
    _noted: tuple[str, ...] = ()

    def take(self, source: Input, number: int, *, last: bool = False) -> tuple[str, ...]:
        """Write all episodes of an input that are not written yet; what there is to note of it.

        `last` says that the data set ends with it.
        """
        entry = self.inputs.entry(number)
        self.writer.begin_group(self.inputs.video_group(number))
        state = None if entry.state is None else source.resumed(entry.state)
        plan = source.next_episode(state)
        while plan is not None:
            self.stop.check()
            try:
                state, plan = self._episode(source, number, plan, last)
            except RetryEpisode as again:
                state = again.state
                plan = source.next_episode(state)
        if not entry.is_done:
            self._noted = self._note({"input": number, "outcome": _outcome(source, state)})
        return self._noted

    def fail(self, number: int, reason: str) -> None:
        """The rest of an input is given up; what it gave before stays."""
        self._note({"input": number, "failed": reason})

    def _note(self, note: Mapping[str, Any]) -> tuple[str, ...]:
        """Write what the journal keeps of an input beside no episode."""
        self.writer.note(note)
        return self.inputs.add_note(note)

    def _episode(self, source: Input, number: int, plan: EpisodePlan, last: bool) -> tuple[State, EpisodePlan | None]:
        callbacks = EpisodeCallbacks(on_moved=partial(self._moved, number), on_rows=self._flushed)
        with contextlib.ExitStack() as held:
            for name, size_bytes in source.memory.parts().items():
                held.enter_context(self.budget.reserve(name, size_bytes))
            episode = self.writer.episode(rows=plan.rows, task=plan.task)
            with on_error(episode.abort):
                with span("30_episode_write"):
                    state = source.write(plan, episode, callbacks)
                following = source.next_episode(state)
                note = {"input": number, "state": state}
                if following is None:
                    note["outcome"] = _outcome(source, state)
                # Short episodes share one round of waiting for the disk, and so do the last one and the end of the data
                # set. What was encoded took its time, and is not risked for it.
                last_one = last and following is None and not source.encodes
                with span("31_episode_commit"):
                    episode.commit(note, last=last_one, grouped=not source.encodes)
        self._noted = self.inputs.add_episode(note)
        return state, following

    def _flushed(self, rows: int) -> None:
        # Everything may have been read long before the last image is encoded.
        self.stop.check()
        self.on_rows(f"row {self.writer.frames + rows:,}")

    def _moved(self, number: int, done_bytes: int) -> None:
        self.stop.check()
        self.on_moved(number, done_bytes)


def _outcome(source: Input, state: State | None) -> dict[str, Any]:
    """As the journal keeps it: with what was noted before the first episode."""
    outcome = source.finish(state)
    notes = [*source.notes, *outcome.notes]
    return {"lost": dict(outcome.lost), "notes": notes, "alignment": outcome.alignment}
