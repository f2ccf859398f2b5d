"""A node of the tree of spans that a thread is in."""

from __future__ import annotations


class Node:
    """A span under its parents in one thread. While the span is open: when it began, and the time in its children.

    One that is not recorded has its parent's number and no name: what is inside it stands under its parent.
    """

    __slots__ = ("child_ns", "depth", "ended_by", "kids", "name", "number", "parent", "start_ns")

    def __init__(self, name: str, parent: Node | None, number: int, *, is_recorded: bool = True) -> None:
        self.name = name if is_recorded else ""
        self.ended_by = name
        self.parent: Node = self if parent is None else parent
        self.number = number
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.kids: dict[str, Node] = {}
        self.start_ns = 0
        self.child_ns = 0

    @property
    def is_recorded(self) -> bool:
        return bool(self.name)

    def recorded_ns(self, end_ns: int) -> int:
        """What it is, open, of the time in its parent's children; one that is not recorded only by its own children."""
        return end_ns - self.start_ns if self.is_recorded else self.child_ns

    def copy(self) -> Node:
        """This call of it: the node itself may be entered again before it ends."""
        kept = Node(self.ended_by, self.parent, self.number, is_recorded=self.is_recorded)
        kept.start_ns, kept.child_ns = self.start_ns, self.child_ns
        return kept
