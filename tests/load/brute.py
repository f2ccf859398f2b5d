"""Windows, clips and transitions word for word, in plain Python loops over episodes and rows; no code of penstock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Sample = dict[str, list[int]]
"""By output the rows, and by "<output> pad" 0 or 1."""


def episodes_of(lengths: Sequence[int]) -> list[list[int]]:
    found, row = [], 0
    for length in lengths:
        found.append(list(range(row, row + length)))
        row += length
    return found


def window_samples(lengths: Sequence[int], offsets: Mapping[str, int | Sequence[int]], pad: bool) -> list[Sample]:
    samples = []
    for rows in episodes_of(lengths):
        for place, row in enumerate(rows):
            sample: Sample = {"anchor": [row]}
            exists = True
            for name, each in offsets.items():
                steps = [each] if isinstance(each, int) else list(each)
                sample[name], pads = [], []
                for step in steps:
                    wanted = place + step
                    inside = 0 <= wanted < len(rows)
                    if not inside and (not pad or isinstance(each, int)):
                        exists = False
                    sample[name].append(rows[0] if wanted < 0 else rows[-1] if wanted >= len(rows) else rows[wanted])
                    pads.append(0 if inside else 1)
                if not isinstance(each, int):
                    sample[f"{name} pad"] = pads
            if exists:
                samples.append(sample)
    return samples


def clip_samples(lengths: Sequence[int], frames: int, stride: int, step: int) -> list[list[int]]:
    samples = []
    for rows in episodes_of(lengths):
        place = 0
        while place < len(rows):
            wanted = [place + number * stride for number in range(frames)]
            if wanted[-1] < len(rows):
                samples.append([rows[each] for each in wanted])
            place += step
    return samples


def transition_samples(lengths: Sequence[int], terminal: Sequence[bool] | None) -> list[tuple[int, int]]:
    samples = []
    for number, rows in enumerate(episodes_of(lengths)):
        for row in rows:
            if row != rows[-1]:
                samples.append((row, row + 1))
            elif terminal is not None and terminal[number]:
                samples.append((row, row))
    return samples
