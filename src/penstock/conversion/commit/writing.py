"""Inputs into one data set: episode after episode, each committed with the state after it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace

from penstock.conversion.commit.input_progress import JobInputs, episode_note, failure_note, outcome_note
from penstock.conversion.commit.writer import DataSetWriter
from penstock.conversion.inputs.input import Again, EpisodePlan, Input, Outcome, Run, State
from penstock.conversion.stop import Stop
from penstock.profile.record.spans import span
from penstock.system.budget import Budget
from penstock.system.closing import on_error


@dataclass
class Writing:
    """Writes inputs with one writer in one process; `on_moved(input, bytes)` and `on_rows(text)` hear how far it is."""

    writer: DataSetWriter
    inputs: JobInputs
    budget: Budget
    stop: Stop
    on_moved: Callable[[int, int], None]
    on_rows: Callable[[str], None]
    _noted: tuple[str, ...] = ()

    def take(self, source: Input, number: int, *, last: bool = False) -> tuple[str, ...]:
        """Write all episodes of an input that are not written yet; what there is to note of it.

        `last` says that the data set ends with it.
        """
        entry = self.inputs.entry(number)
        state = None if entry.state is None else source.resumed(entry.state)
        plan = source.next_episode(state)
        while plan is not None:
            self.stop.check()
            try:
                state, plan = self._episode(source, number, plan, last)
            except Again as again:
                state = again.state
                plan = source.next_episode(state)
        if not entry.is_done:
            note = outcome_note(number, _outcome(source, state))
            self.writer.note(note)
            self._noted = self.inputs.add_note(note)
        return self._noted

    def fail(self, number: int, reason: str) -> None:
        """The rest of an input is given up; what it gave before stays."""
        note = failure_note(number, reason)
        self.writer.note(note)
        self.inputs.add_note(note)

    def _episode(self, source: Input, number: int, plan: EpisodePlan, last: bool) -> tuple[State, EpisodePlan | None]:
        run = Run(
            on_moved=lambda done_bytes: self._moved(number, done_bytes),
            on_rows=self._flushed,
        )
        with contextlib.ExitStack() as held:
            for name, size_bytes in source.memory.parts().items():
                held.enter_context(self.budget.reserve(name, size_bytes))
            episode = self.writer.episode(rows=plan.rows, task=plan.task)
            with on_error(episode.abort):
                with span("30_episode_write"):
                    state = source.write(plan, episode, run)
                following = source.next_episode(state)
                note = episode_note(number, state, _outcome(source, state) if following is None else None)
                # Short episodes share one round of waiting for the disk, and so do the last one and the end of the data
                # set. What was encoded took its time, and is not risked for it.
                last_one = last and following is None and not source.encodes
                with span("31_episode_commit"):
                    episode.commit(note, last=last_one, grouped=not source.encodes)
        self._noted = self.inputs.add_episode(note)
        return state, following

    def _flushed(self, rows: int) -> None:
        # Everything may have been read long before the last picture is encoded.
        self.stop.check()
        self.on_rows(f"row {self.writer.frames + rows:,}")

    def _moved(self, number: int, done_bytes: int) -> None:
        self.stop.check()
        self.on_moved(number, done_bytes)


def _outcome(source: Input, state: State | None) -> Outcome:
    """With what was noted before the first episode, so that the journal knows it, too."""
    outcome = source.finish(state)
    return replace(outcome, notes=(*source.notes, *outcome.notes))
