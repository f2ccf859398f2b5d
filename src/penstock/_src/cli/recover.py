"""penstock recover: a cut, unindexed or damaged recording → a new one, and what was lost."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from penstock._src.cli.display import count, print_json, row, table
from penstock._src.system import units

if TYPE_CHECKING:
    from penstock._src.recordings.recovery.report import Damage, RecoveryReport

_SHOWN_DAMAGES = 20

_EPILOG = """\
examples:
  penstock recover run.bag.active run.bag
  penstock recover broken.mcap saved.mcap --json
  penstock recover rosbag2_2024_05_01/ saved/
The source is only read. Exit code 0: no message was lost (the index alone was missing, say); 3: something was lost.
"""


def add_parser(verbs: Any) -> None:
    parser = verbs.add_parser(
        "recover",
        help="save what can be read of a damaged recording",
        description="Rebuild an unindexed, cut or damaged ROS 1 bag, mcap or db3 recording as a new one of its kind, "
        "in bounded memory, and say how many messages were lost and where.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("broken", metavar="BROKEN", help="a .bag, .bag.active, .mcap or .db3 file, or a bag directory")
    parser.add_argument("new", metavar="NEW", help="the new recording: a file, or a directory for a bag directory")
    parser.add_argument("--overwrite", action="store_true", help="replace NEW if it is there")
    parser.add_argument(
        "--keep-suspect",
        action="store_true",
        help="keep messages of chunks that fail their checksum or break while decompressing; they are counted",
    )
    parser.add_argument("--json", action="store_true", help="print the report as one JSON object")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from penstock._src.recordings.recovery.recover import recover

    report = recover(args.broken, args.new, overwrite=args.overwrite, keep_suspect=args.keep_suspect)
    if args.json:
        print_json(report.to_json())
    else:
        print("\n".join(report_lines(report)))
    return report.exit_code


def report_lines(report: RecoveryReport) -> list[str]:
    """What a person reads of a recovery."""
    lines = table([(name, f"{number:,}") for name, number in sorted(report.topics.items())], right=(1,))
    for damage in report.damages[:_SHOWN_DAMAGES]:
        lines.append(_damage_line(damage))
    if report.damage_count > _SHOWN_DAMAGES:
        lines.append(row("damage", f"… and {report.damage_count - _SHOWN_DAMAGES:,} more places (--json lists them)"))
    lines += [row("note", note) for note in report.notes]
    lost = report.lost_text
    if report.suspect_messages:
        lost += f" · {report.suspect_messages:,} kept without proof"
    if report.lost_parts:
        lost += f" · {count(report.lost_parts, 'records other than messages')} lost"
    size = f"{units.format_size(report.bytes_in)} → {units.format_size(report.bytes_out)}"
    lines.append(f"wrote {report.output} · {count(report.messages, 'messages')} · {lost} · {size}")
    return lines


def _damage_line(damage: Damage) -> str:
    file = f"{damage.file}: " if damage.file else ""
    if damage.messages == 0:
        return row("note", f"{file}{damage.note()}")
    held = "messages unknown" if damage.messages is None else f"{damage.messages:,} messages"
    return row("damage", f"{file}{damage.where} · {held} · {damage.cause}")
