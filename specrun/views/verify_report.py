"""What `specrun verify` found, as a table with the places where texts part."""

from __future__ import annotations

import json
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from specrun.verifying.findings import Divergence, Finding
from specrun.views import output

_STYLES = {"near-tie": "yellow", "different": "bold red", "other distribution": "bold red"}


def report(findings: Sequence[Finding]) -> RenderableType:
    """A row for each finding, and below them both texts around every divergence."""
    right, optional = ("T", "tokens", "a pass"), ("tokens", "a pass")
    table = output.table("kind", "T", "plan", "tokens", "a pass", "result", "", right=right, optional=optional)
    for finding in findings:
        rate = finding.n_tokens / max(finding.n_passes, 1)
        figures = [f"{finding.temperature:g}", finding.plan, str(finding.n_tokens), f"{rate:.1f}"]
        outcome = Text(finding.outcome, style=_STYLES.get(finding.outcome, "green"))
        table.add_row(Text(finding.kind), *figures, outcome, _reason(finding))
    return Group(table, *(_parting(one, one.divergence) for one in findings if one.divergence))


def _reason(finding: Finding) -> str:
    if finding.test:
        return f"p-value {finding.test.p_value:.2g} over {sum(finding.test.observed)} seeds"
    if not finding.divergence:
        return "" if finding.n_drafted else "no pass drafted"
    where = f"token {finding.divergence.at}"
    if finding.divergence.gap is None:
        return f"{where}: one text ends"
    return f"{where}: gap {finding.divergence.gap:.3g}, explained up to {finding.divergence.explained:.3g}"


def _parting(finding: Finding, divergence: Divergence) -> Text:
    """Both texts, written as JSON strings, so that nothing in them reaches the terminal as it is."""
    head = f"\n{finding.kind}, T={finding.temperature:g}, {finding.plan}, around token {divergence.at}:"
    plain, speculated = (json.dumps(text) for text in (divergence.plain, divergence.speculated))
    return Text(f"{head}\n  plainly           {plain}\n  with speculation  {speculated}")
