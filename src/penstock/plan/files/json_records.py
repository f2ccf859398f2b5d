"""Records of a JSON file one after the other, in memory for one of them: a list, or an object with lists."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from penstock.errors import StoreError

_BLOCK_BYTES = 1 << 20
_NUMBER_ENDS = 4  # characters by which a cut number may be longer than what was read of it: "1" of "1e+"
_SPACE = " \t\r\n"


def json_records(path: Path) -> Iterator[tuple[str, Any]]:
    """(name, record) of each record of the file's lists; the name is "" where the file itself is a list.

    `{"info": …, "questions": [a, b], "annotations": [c]}` gives ("questions", a), ("questions", b), ("annotations", c).
    """
    with path.open("rb") as file:
        reader = _Reader(path, file)
        start = reader.peek()
        if start == "[":
            yield from (("", record) for record in reader.items())
        elif start == "{":
            for name in reader.names():
                if reader.peek() == "[":
                    yield from ((name, record) for record in reader.items())
                else:
                    reader.value()
        else:
            raise reader.error("neither a list nor an object")


def json_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """(place in the file, line) of each line that is not blank."""
    with path.open("rb") as file:
        place = 0
        for line in file:
            if line.strip():
                yield place, line
            place += len(line)


class _Reader:
    """A window over the text of a file, which grows to the longest value and moves on."""

    def __init__(self, path: Path, file: Any) -> None:
        self._path, self._file = path, file
        self._decode = codecs.getincrementaldecoder("utf-8-sig")(errors="replace")
        self._text, self._place, self._is_end = "", 0, False
        self._decoder = json.JSONDecoder()

    def error(self, what: str) -> StoreError:
        return StoreError(f"{self._path}: {what}", hint="python -m json.tool shows where a file is no JSON")

    def peek(self) -> str:
        """The next character that is no space; "" at the end."""
        while True:
            while self._place < len(self._text) and self._text[self._place] in _SPACE:
                self._place += 1
            if self._place < len(self._text) or not self._more():
                return self._text[self._place : self._place + 1]

    def take(self, wanted: str) -> None:
        if self.peek() != wanted:
            raise self.error(f"{wanted!r} expected, {self.peek()!r} found")
        self._place += 1

    def value(self) -> Any:
        """The next value, whole."""
        self.peek()
        while True:
            try:
                found, end = self._decoder.raw_decode(self._text, self._place)
            except json.JSONDecodeError as error:
                if not self._more():
                    raise self.error(f"a value is cut or broken: {error.msg}") from error
                continue
            if len(self._text) - end < _NUMBER_ENDS and self._more():  # a number may go on
                continue
            self._place = end
            return found

    def items(self) -> Iterator[Any]:
        """The values of a list."""
        self.take("[")
        if self.peek() == "]":
            self.take("]")
            return
        while True:
            yield self.value()
            if self.peek() != ",":
                break
            self.take(",")
        self.take("]")

    def names(self) -> Iterator[str]:
        """The keys of an object; the caller takes the value of each."""
        self.take("{")
        while self.peek() != "}":
            name = self.value()
            if not isinstance(name, str):
                raise self.error("an object has a key that is no text")
            self.take(":")
            yield name
            if self.peek() == ",":
                self.take(",")
        self.take("}")

    def _more(self) -> bool:
        if self._is_end:
            return False
        # A long value is decoded again when more of it is there: twice as much each time keeps that linear.
        kept = self._text[self._place :]
        block = self._file.read(max(_BLOCK_BYTES, len(kept)))
        self._is_end = not block
        self._text, self._place = kept + self._decode.decode(block, final=self._is_end), 0
        return True
