"""What a doctor finds, bounded: a thousand faults of one kind are one line with a count."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Literal

Severity = Literal["error", "loss", "info"]

_SHOWN_PER_KIND = 5


@dataclass(frozen=True)
class Problem:
    """One finding: an `error` makes the data set unreadable or wrong, a `loss` is data that is absent or unusable."""

    severity: Severity
    where: str
    message: str
    hint: str | None = None


@dataclass(frozen=True)
class CheckReport:
    """The result of a check; `counted` says what was looked at."""

    problems: list[Problem]
    counted: dict[str, int]

    @property
    def worst(self) -> Severity | None:
        """The gravest severity among the problems, None when there is none."""
        severities = {problem.severity for problem in self.problems}
        return next((severity for severity in ("error", "loss", "info") if severity in severities), None)

    @property
    def is_clean(self) -> bool:
        """No error and no loss; remarks are allowed."""
        return self.worst in (None, "info")

    @property
    def exit_code(self) -> int:
        """Of the doctor: 1 for an error, 3 for a loss, else 0."""
        return {"error": 1, "loss": 3}.get(self.worst or "", 0)

    def to_json(self) -> dict[str, Any]:
        """Plain values for `--json`."""
        problems = [
            {"severity": p.severity, "where": p.where, "message": p.message, "hint": p.hint} for p in self.problems
        ]
        return {"clean": self.is_clean, "problems": problems, "counted": dict(self.counted)}


@dataclass
class Findings:
    """Collects problems; `kind` groups those that are counted together."""

    problems: list[Problem] = field(default_factory=list)
    counted: Counter[str] = field(default_factory=Counter)
    _seen: Counter[tuple[Severity, str]] = field(default_factory=Counter)

    def add(self, severity: Severity, kind: str, where: object, message: str, hint: str | None = None) -> None:
        self._seen[severity, kind] += 1
        if self._seen[severity, kind] <= _SHOWN_PER_KIND:
            self.problems.append(Problem(severity, str(where), message, hint))

    def error(self, kind: str, where: object, message: str, hint: str | None = None) -> None:
        self.add("error", kind, where, message, hint)

    def report(self) -> CheckReport:
        problems = list(self.problems)
        for (severity, kind), count in self._seen.items():
            if count > _SHOWN_PER_KIND:
                problems.append(Problem(severity, "", f"{count - _SHOWN_PER_KIND} more of the kind “{kind}”"))
        order: list[Severity] = ["error", "loss", "info"]
        problems.sort(key=lambda problem: order.index(problem.severity))
        return CheckReport(problems, dict(self.counted))
