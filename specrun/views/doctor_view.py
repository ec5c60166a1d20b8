"""The findings of `specrun doctor` as lines."""

from __future__ import annotations

from collections.abc import Iterable

from rich.table import Table
from rich.text import Text

from specrun.doctor import Finding

_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def lines(findings: Iterable[Finding]) -> str:
    """A line for each finding, and an indented one for what mends it: for pipes and files."""
    text = ""
    for finding in findings:
        text += f"{finding.status:<4}  {finding.check}: {finding.detail}\n"
        text += f"      -> {finding.fix}\n" if finding.fix else ""
    return text


def as_table(findings: Iterable[Finding]) -> Table:
    """A row for each finding, with what mends it below."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        detail = Text(finding.detail)
        if finding.fix:
            detail.append(f"\n-> {finding.fix}", style="bold")
        table.add_row(Text(finding.status, style=_STYLES[finding.status]), finding.check, detail)
    return table
