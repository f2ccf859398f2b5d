"""Writes docs/reference/cli.md from the command line's own parser: `python docs/make_cli_reference.py`.

The text is that of `--help`; the layout is made here, because argparse's own differs between versions of Python.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from penstock._src.cli import build_parser

TARGET = Path(__file__).resolve().parent / "reference" / "cli.md"

_HEAD = """\
# The command line

*Made by `python docs/make_cli_reference.py` from the same text as `penstock --help`; edit the verbs, not this page.*
"""


def render() -> str:
    """The whole page."""
    parser = build_parser()
    parts = [_HEAD, _described(parser), _options(parser), _verbs(parser)]
    for verb, verb_parser in verb_parsers(parser).items():
        parts += [f"## penstock {verb}\n", _usage(verb_parser), _described(verb_parser), _options(verb_parser)]
        for kind, kind_parser in _kinds(verb_parser).items():
            parts += [f"### penstock {verb} {kind}\n", _usage(kind_parser), _described(kind_parser)]
            parts.append(_options(kind_parser))
    return "\n".join(part for part in parts if part)


def verb_parsers(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The parser of each verb by its name."""
    return dict(_subparsers(parser).choices)


def _kinds(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The parsers of a verb that has several kinds, such as `bench convert`."""
    actions = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return dict(actions[0].choices) if actions else {}


def verb_summaries(parser: argparse.ArgumentParser) -> dict[str, str | None]:
    """The one line that `penstock --help` shows for each verb."""
    return {action.dest: action.help for action in _subparsers(parser)._choices_actions}


def _subparsers(parser: argparse.ArgumentParser) -> argparse._SubParsersAction[argparse.ArgumentParser]:
    return next(action for action in parser._actions if isinstance(action, argparse._SubParsersAction))


def _described(parser: argparse.ArgumentParser) -> str:
    texts = [text.strip() for text in (parser.description, parser.epilog) if text]
    # Text in several lines is laid out on purpose.
    return "\n".join((f"```text\n{text}\n```" if "\n" in text else text) + "\n" for text in texts)


def _verbs(parser: argparse.ArgumentParser) -> str:
    rows = [f"| [`{verb}`](#penstock-{verb}) | {summary} |" for verb, summary in verb_summaries(parser).items()]
    return "\n".join(["| verb | what it does |", "|---|---|", *rows]) + "\n"


def _usage(parser: argparse.ArgumentParser) -> str:
    words = [parser.prog]
    if any(action.option_strings and action.dest != "help" for action in parser._actions):
        words.append("[options]")
    words += [_positional(action) for action in parser._actions if not action.option_strings]
    return f"    {' '.join(words)}\n"


def _positional(action: argparse.Action) -> str:
    name = str(action.metavar or action.dest)
    if "…" in name:  # it says itself what repeats
        return name
    return {"*": f"[{name} …]", "+": f"{name} …", "?": f"[{name}]"}.get(str(action.nargs), name)


def _options(parser: argparse.ArgumentParser) -> str:
    rows: list[str] = []
    for action in parser._actions:
        if isinstance(action, (argparse._SubParsersAction, argparse._HelpAction)) or action.help == argparse.SUPPRESS:
            continue
        name = f"`{_positional(action)}`" if not action.option_strings else _option(action)
        rows.append(f"| {name} | {_cell(_help(action, parser))} |")
    return "\n".join(["| argument | meaning |", "|---|---|", *rows]) + "\n" if rows else ""


def _option(action: argparse.Action) -> str:
    value = ""
    if action.nargs != 0:
        choices = "{" + ",".join(str(choice) for choice in action.choices) + "}" if action.choices else None
        value = f" {action.metavar or choices or action.dest.upper()}"
    return ", ".join(f"`{option}{value}`" for option in action.option_strings)


def _help(action: argparse.Action, parser: argparse.ArgumentParser) -> str:
    return (action.help or "") % {**vars(action), "prog": parser.prog}


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def main() -> int:
    """Write the page; with --check only say whether it is current."""
    page = render()
    if "--check" in sys.argv[1:]:
        return 0 if TARGET.exists() and TARGET.read_text(encoding="utf-8") == page else 1
    TARGET.write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
