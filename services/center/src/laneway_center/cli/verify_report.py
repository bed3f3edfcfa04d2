"""How the checker's result reads: counts, rules, findings with evidence."""

import io
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import orjson
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from laneway_center.verify.execution_rules import coverage
from laneway_center.verify.facts import Facts
from laneway_center.verify.findings import Finding, instant
from laneway_center.verify.rules import RULES
from laneway_shared.lifecycle import Status

UNFOLDED = 1_000_000  # columns


@dataclass(frozen=True, kw_only=True)
class Report:
    """What was judged and what came of it."""

    facts: Facts
    verdicts: Mapping[str, list[Finding] | None]  # by rule name; None: not judged
    most: int  # findings shown per rule

    @property
    def is_sound(self) -> bool:
        """Whether no rule is broken."""
        return not any(self.verdicts.values())

    @cached_property
    def statuses(self) -> dict[str, int]:
        """Commands by state, in the order of the lifecycle."""
        counted = Counter(command.status for command in self.facts.commands.values())
        return {str(status): counted[status] for status in Status if counted[status]}

    @cached_property
    def lane_states(self) -> dict[str, int]:
        """Lanes by state."""
        return dict(sorted(Counter(lane.state for lane in self.facts.lanes.values()).items()))

    @cached_property
    def uncovered(self) -> list[str]:
        """Driver services of commands reported as SUCCESS of which no device is in a journal."""
        drivers = {command.driver for command in self.facts.commands.values() if command.status == Status.SUCCESS}
        return sorted(drivers - set(coverage(self.facts).since))

    def shown(self, name: str) -> list[Finding]:
        """The findings of a rule that are shown."""
        return (self.verdicts[name] or [])[: self.most]


def as_json(report: Report) -> str:
    """The result as one document."""
    facts = report.facts
    document: dict[str, Any] = {
        "at": facts.at,
        "sound": report.is_sound,
        "commands": {"count": len(facts.commands), "byStatus": report.statuses},
        "lanes": {"count": len(facts.lanes), "byState": report.lane_states},
        "events": len(facts.events),
        "journals": [
            {"name": journal.name, "executions": len(journal.executions), "beginsAt": journal.begins_at}
            for journal in facts.journals
        ],
        "driversWithoutJournal": report.uncovered,
        "rules": [
            {
                "name": rule.name,
                "means": rule.means,
                "verdict": _verdict(report.verdicts[rule.name]),
                "count": len(report.verdicts[rule.name] or ()),
                "findings": report.shown(rule.name),
            }
            for rule in RULES
        ],
    }
    return orjson.dumps(document, option=orjson.OPT_INDENT_2).decode()


def _verdict(findings: list[Finding] | None) -> str:
    if findings is None:
        return "not judged"
    return "broken" if findings else "ok"


def as_table(report: Report, console: Console) -> None:
    """The result for a reader at a terminal."""
    console.print(_counts(report))
    console.print()
    console.print(_rules(report))
    for rule in RULES:
        findings = report.verdicts[rule.name]
        if findings:
            _findings(rule.name, len(findings), report.shown(rule.name), console)
    console.print()
    total = sum(len(findings or ()) for findings in report.verdicts.values())
    console.print("Sound." if report.is_sound else f"{total} findings." if total > 1 else "1 finding.")


def as_lines(report: Report) -> list[str]:
    """The same for a pipe: nothing is folded, nothing stands behind the last word of a line."""
    written = io.StringIO()
    as_table(
        report, Console(file=written, width=UNFOLDED, highlight=False, markup=False, emoji=False, color_system=None)
    )
    return [line.rstrip() for line in written.getvalue().splitlines()]


def _counts(report: Report) -> Table:
    facts = report.facts
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row("snapshot", "", instant(facts.at))
    table.add_row("commands", f"{len(facts.commands):,}", _listed(report.statuses))
    table.add_row("lanes", f"{len(facts.lanes):,}", _listed(report.lane_states))
    table.add_row("events", f"{len(facts.events):,}", "")
    for journal in facts.journals:
        cut = "" if journal.begins_at is None else f", whole from {instant(journal.begins_at)} on"
        table.add_row("executions", f"{len(journal.executions):,}", f"{journal.name}{cut}")
    if facts.journals and report.uncovered:
        table.add_row("", "", f"SUCCESS without a journal to hold it against: driver {', '.join(report.uncovered)}")
    return table


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items())


def _rules(report: Report) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for rule in RULES:
        findings = report.verdicts[rule.name]
        said, style = (f"{len(findings):,} found", "bold red") if findings else ("ok", "green")
        if findings is None:
            said, style = "no journal", "yellow"
        table.add_row(rule.name, Text(said, style=style), rule.means)
    return table


def _findings(name: str, count: int, shown: list[Finding], console: Console) -> None:
    more = "" if len(shown) == count else f", {len(shown)} shown"
    console.print()
    console.print(Text(f"{name}: {count:,} found{more}", style="bold"))
    for finding in shown:
        console.print(Padding(Text(f"{finding.about}: {finding.says}"), (0, 0, 0, 2), expand=False))
        for line in finding.evidence:
            console.print(Padding(Text(line, style="dim"), (0, 0, 0, 6), expand=False))
