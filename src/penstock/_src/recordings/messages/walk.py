"""Turns a message type and the wanted fields into the steps of one walk over its payload.

Neighbouring fields of fixed size become one run with one struct; what is not wanted is moved over. Where alignment is
known from the definition alone it costs nothing at run time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from struct import Struct

from penstock._src.recordings.messages import steps as s
from penstock._src.recordings.messages.definitions import (
    DURATION_TYPE,
    SEQUENCE,
    TIME_TYPE,
    FieldDef,
    FieldType,
    MessageDef,
    definition_of,
)
from penstock.errors import SchemaError

MAX_EXPANDED_FIELDS = 20_000
MAX_LEAST_BYTES = 1 << 40


@dataclass(eq=False)
class FieldSelection:
    """What is wanted of a message: all of it, or some of its fields; of an array of messages, those of one index."""

    whole: bool = False
    fields: dict[str, FieldSelection] = field(default_factory=dict)
    index: int | None = None


class TypeTable:
    """The types of one topic in one dialect: sizes, and the steps over array elements (built once per type)."""

    def __init__(self, definitions: Mapping[str, MessageDef], dialect: s.Dialect) -> None:
        self.definitions = definitions
        self.dialect = dialect
        self._least: dict[str, int] = {}
        self._strides: dict[str, tuple[int, int] | None] = {}
        self._elements: dict[str, s.Element] = {}
        self.expanded = 0

    def message(self, name: str) -> MessageDef:
        return definition_of(name, self.definitions)

    def count_field(self, type_name: str) -> None:
        self.expanded += 1
        if self.expanded > MAX_EXPANDED_FIELDS:
            raise SchemaError(f"{type_name} expands to more than {MAX_EXPANDED_FIELDS:,} fields")

    def time_codes(self, kind: FieldType) -> str | None:
        """The struct codes of a time or duration, None for all other types."""
        if kind.name in ("time", TIME_TYPE):
            return self.dialect.time_codes if self._is_time(kind) else None
        if kind.name in ("duration", DURATION_TYPE):
            return self.dialect.duration_codes if self._is_time(kind) else None
        return None

    def _is_time(self, kind: FieldType) -> bool:
        if kind.kind == "primitive":
            return True
        types = [inner.type for inner in self.message(kind.name).fields]
        return len(types) == 2 and all(t.name in ("int32", "uint32") and t.array is None for t in types)

    def least_bytes(self, kind: FieldType) -> int:
        """The fewest bytes a field of this type can take."""
        if kind.array == SEQUENCE:
            return 4
        count = 1 if kind.array is None else kind.array
        return count * self._least_item_bytes(kind)

    def _least_item_bytes(self, kind: FieldType) -> int:
        if kind.kind == "message":
            return self.least_message_bytes(kind.name)
        if kind.kind != "primitive":
            return 4
        return 8 if self.time_codes(kind) else self.dialect.dtype(kind.name).itemsize if kind.name != "byte" else 1

    def least_message_bytes(self, name: str) -> int:
        if name not in self._least:
            fields = self.message(name).fields
            least = sum(self.least_bytes(inner.type) for inner in fields)
            if not fields and self.dialect.aligned:
                least = 1
            if least > MAX_LEAST_BYTES:
                raise SchemaError(f"a message of type {name} would take at least {least:,} bytes")
            self._least[name] = least
        return self._least[name]

    def stride(self, name: str) -> tuple[int, int] | None:
        """(alignment, bytes) of a message whose size never varies, wherever it begins; None for others."""
        if name not in self._strides:
            self._strides[name] = self._stride(name)
        return self._strides[name]

    def _stride(self, name: str) -> tuple[int, int] | None:
        aligns: set[int] = set()
        for inner in self.message(name).fields:
            kind = inner.type
            if kind.array == SEQUENCE or kind.kind in ("string", "wstring"):
                return None
            if kind.kind == "message" and not self.time_codes(kind):
                stride = self.stride(kind.name)
                if stride is None:
                    return None
                aligns.add(stride[0])
            else:
                aligns.add(4 if self.time_codes(kind) else self._least_item_bytes(kind))
        if not self.dialect.aligned:
            return 1, self.least_message_bytes(name)
        # Mixed alignments put padding inside or between elements, which depends on where the first one lies.
        return (aligns.pop() if aligns else 1, self.least_message_bytes(name)) if len(aligns) <= 1 else None

    def element(self, kind: FieldType, label: str) -> s.Element:
        """The steps over one item of an array of messages or times."""
        if kind.name not in self._elements:
            single = FieldType(kind.kind, kind.name)
            skip, read = MessageWalk(self, known_alignment=1), MessageWalk(self, known_alignment=1)
            skip.add_value(single, None, label)
            read.add_value(single, FieldSelection(whole=True), label)
            least = self._least_item_bytes(kind)
            stride = self.stride(kind.name) if kind.kind == "message" else (4 if self.dialect.aligned else 1, 8)
            self._elements[kind.name] = s.Element(skip.finish(), read.finish(), least, stride)
        return self._elements[kind.name]


class MessageWalk:
    """Collects the steps of one walk; `captured` lists the wants in the order in which their values come out."""

    def __init__(self, types: TypeTable, known_alignment: int = 8) -> None:
        self.types = types
        self.dialect = types.dialect
        self.captured: list[FieldSelection] = []
        self._steps: list[s.Step] = []
        self._steps_to_last_value = 0
        # The position is known to be `remainder` modulo `modulus`.
        self._modulus = known_alignment
        self._remainder = 0
        self._run_align = 1
        self._run_bytes = 0
        self._run_codes: list[str] = []
        self._run_values = 0
        self._run_labels: list[str] = []

    def finish(self, *, stop_after_last_value: bool = False) -> tuple[s.Step, ...]:
        self._flush()
        return tuple(self._steps[: self._steps_to_last_value] if stop_after_last_value else self._steps)

    def add_message(self, name: str, want: FieldSelection | None, label: str) -> None:
        """Walk over all fields of a message type."""
        message = self.types.message(name)
        whole = want is not None and want.whole
        if not message.fields and self.dialect.aligned:
            self._add_fixed("x", 1, 1, 0, label)
        for inner in message.fields:
            self.types.count_field(name)
            inner_want = FieldSelection(whole=True) if whole else (want.fields.get(inner.name) if want else None)
            self.add_field(inner, inner_want, f"{label}.{inner.name}")
            if inner_want is not None and not whole and inner_want.whole:
                self.captured.append(inner_want)
        if whole:
            self._add_step(s.fold_message([inner.name for inner in message.fields]), gives_value=True)

    def add_field(self, inner: FieldDef, want: FieldSelection | None, label: str) -> None:
        if inner.type.array is None:
            self.add_value(inner.type, want, label)
        else:
            self._add_array(inner.type, want, label)

    def add_value(self, kind: FieldType, want: FieldSelection | None, label: str) -> None:
        """One value that is no array."""
        codes = self.types.time_codes(kind)
        if codes and (want is None or want.whole):
            for code in codes:
                self._add_fixed(code if want else "4x", 4, 4, 1 if want else 0, label)
            if want:
                self._add_step(s.fold_time(), gives_value=True)
        elif kind.kind == "message":
            self.add_message(kind.name, want, label)
        elif kind.kind == "primitive":
            code = self.dialect.code(kind.name)
            size = Struct("=" + code).size
            self._add_fixed(code if want else f"{size}x", size, size, 1 if want else 0, label)
        else:
            lead, location, keep = self._lead(4), self._location(label), want is not None
            if kind.kind == "string":
                self._add_step(s.text(self.dialect, lead, kind.bound, location, keep=keep), gives_value=keep)
            else:
                self._add_step(s.wide_text(self.dialect, lead, location, keep=keep), gives_value=keep)
            self._forget_position(1)

    def _add_array(self, kind: FieldType, want: FieldSelection | None, label: str) -> None:
        fixed = None if kind.array == SEQUENCE else kind.array
        location, keep = self._location(label), want is not None
        if kind.kind == "primitive" and not self.types.time_codes(kind):
            self._add_numbers(kind, fixed, label, keep=keep)
            return
        if kind.kind == "string":
            lead = self._lead(4)
            self._add_step(s.texts(self.dialect, lead, fixed, kind.bound, location, keep=keep), gives_value=keep)
            self._forget_position(1)
            return
        if want is not None and not want.whole and want.index is not None:
            self._pick(kind, want, fixed, label)
            return
        element = self._wide_element(label) if kind.kind == "wstring" else self.types.element(kind, label)
        if keep and not element.least_bytes:
            raise SchemaError(f"{label}: an array of empty messages holds no values")
        # Elements align themselves; before a fixed array the position can stay as it is.
        lead = self._lead(4 if fixed is None else 1)
        make = s.read_messages if keep else s.skip_messages
        self._add_step(make(self.dialect, lead, fixed, kind.bound, location, element), gives_value=keep)
        self._forget_position(1)

    def _wide_element(self, label: str) -> s.Element:
        lead, location = s.lead_for(4 if self.dialect.aligned else 1), self._location(label)
        read, skip = (s.wide_text(self.dialect, lead, location, keep=keep) for keep in (True, False))
        return s.Element((skip,), (read,), 4, None)

    def _pick(self, kind: FieldType, want: FieldSelection, fixed: int | None, label: str) -> None:
        assert want.index is not None
        inner = MessageWalk(self.types, known_alignment=1)
        inner.add_value(
            FieldType(kind.kind, kind.name), FieldSelection(want.whole, want.fields), f"{label}[{want.index}]"
        )
        plain = self.types.element(kind, label)
        element = s.Element(plain.skip, inner.finish(), plain.least_bytes, plain.stride)
        lead = self._lead(4 if fixed is None else 1)
        step = s.pick_message(self.dialect, lead, fixed, self._location(label), element, want.index)
        self._add_step(step, gives_value=True)
        self.captured += inner.captured
        self._forget_position(1)

    def _add_numbers(self, kind: FieldType, fixed: int | None, label: str, *, keep: bool) -> None:
        size = 1 if kind.name == "byte" else self.dialect.dtype(kind.name).itemsize
        if fixed is not None and not keep:
            self._add_fixed(f"{fixed * size}x", fixed * size, size, 0, label)
            return
        lead = self._lead(size if fixed is not None else 4)
        step = s.numbers(self.dialect, lead, kind.name, fixed, kind.bound, self._location(label), keep=keep)
        self._add_step(step, gives_value=keep)
        if fixed is not None:
            self._remainder = (self._remainder + fixed * size) % self._modulus
        else:
            # An empty sequence leaves the position behind its count, which is aligned to 4.
            self._forget_position(min(size, 4))

    def _location(self, label: str) -> s.Location:
        return s.Location(label, self.dialect.body_offset)

    def _add_step(self, step: s.Step, *, gives_value: bool) -> None:
        self._flush()
        self._steps.append(step)
        if gives_value:
            self._steps_to_last_value = len(self._steps)

    def _forget_position(self, modulus: int) -> None:
        self._modulus, self._remainder = (modulus, 0) if self.dialect.aligned else (8, 0)

    def _add_fixed(self, code: str, size: int, align: int, values: int, label: str) -> None:
        """A part of fixed size joins the present run, with its padding if that is known, else it begins a new run."""
        if self.dialect.aligned and align > self._modulus:
            self._flush()
            self._run_align, self._modulus, self._remainder = align, align, 0
        elif self.dialect.aligned and (padding := -self._remainder % align):
            self._run_codes.append(f"{padding}x")
            self._run_bytes += padding
            self._remainder = (self._remainder + padding) % self._modulus
        self._run_codes.append(code)
        self._run_bytes += size
        self._run_values += values
        if values:
            self._run_labels.append(label)
        self._remainder = (self._remainder + size) % self._modulus

    def _lead(self, align: int) -> s.FieldOffset:
        """What to move over before a field that is no part of a run: the present run, if nothing of it is wanted."""
        if not self.dialect.aligned:
            align = 1
        static = align <= self._modulus
        padding = -self._remainder % align if static else 0
        self._remainder = (self._remainder + padding) % self._modulus
        if static and not self._run_values:
            lead = s.lead_for(self._run_align, self._run_bytes + padding)
            self._clear_run()
        else:
            self._flush()
            lead = s.lead_for(1, padding) if static else s.lead_for(align)
        if not static:
            self._modulus, self._remainder = align, 0
        return lead

    def _flush(self) -> None:
        if not self._run_bytes:
            self._clear_run()
            return
        if self._run_values:
            layout = Struct(self.dialect.order + "".join(self._run_codes))
            first, last = self._run_labels[0], self._run_labels[-1]
            location = self._location(first if first == last else f"{first} … {last.rsplit('.', 1)[-1]}")
            self._steps.append(s.read_run(s.lead_for(self._run_align), layout, location))
            self._steps_to_last_value = len(self._steps)
        else:
            self._steps.append(s.skip_run(s.lead_for(self._run_align, self._run_bytes)))
        self._clear_run()

    def _clear_run(self) -> None:
        self._run_align, self._run_bytes, self._run_values = 1, 0, 0
        self._run_codes, self._run_labels = [], []
