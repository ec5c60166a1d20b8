"""`specrun doctor`: whether this machine and this installation are as they should be; and a GPU that cannot be used."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from specrun import kept_facts
from specrun.display_text import size_text
from specrun.errors import disk_errors
from specrun.hardware.machine import gpu_driver, nvidia_card, offload_devices
from specrun.views import output

if TYPE_CHECKING:
    from specrun.doctor import Finding

_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}
_JSON_HELP = "A JSON list of objects with check, status, detail and fix."
_FORGET_HELP = "Delete what is kept of prompts that were read, and check nothing."


def doctor(
    json: Annotated[bool, typer.Option("--json", help=_JSON_HELP)] = False,
    forget_prompts: Annotated[bool, typer.Option("--forget-prompts", help=_FORGET_HELP)] = False,
) -> int:
    """Find what makes specrun slow or fail here, and what mends it.

    Versions, backends, instructions of the processor, a layer on each device, facts about llama.cpp that specrun relies
    on, memory, other load, folders, disk, hub, profiles and other facts that are kept. Nothing is downloaded. The exit
    code is 1 if a check fails, else 0.
    """
    from specrun.decoding import prompt_folder
    from specrun.doctor.examine import examine

    if forget_prompts:
        with disk_errors("deleted"):
            n_bytes = prompt_folder.forget()
        output.note(f"prompts deleted: {size_text(n_bytes)} free again")
        return 0
    with output.progress() as show:
        findings = list(examine(show, output.debug))
    if json:
        output.write_json([asdict(finding) for finding in findings])
    elif output.stdout.is_terminal:
        output.print_table(as_table(findings))
    else:
        output.write(lines(findings))
    return 1 if any(finding.status == "fail" for finding in findings) else 0


def lines(findings: Sequence[Finding]) -> str:
    """A line for each finding, and an indented one for what mends it: for pipes and files."""
    text = ""
    for finding in _told(findings):
        text += f"{finding.status:<4}  {finding.check}: {finding.detail}\n"
        text += f"      -> {finding.fix}\n" if finding.fix else ""
    return text


def as_table(findings: Sequence[Finding]) -> output.FittingTable:
    """A row for each finding, with what mends it below."""
    table = output.FittingTable("", "", "")
    for finding in _told(findings):
        detail = Text(finding.detail)
        if finding.fix:
            detail.append(f"\n-> {finding.fix}", style="bold")
        table.add_row(Text(finding.status, style=_STYLES[finding.status]), finding.check, detail)
    return table


def _told(findings: Sequence[Finding]) -> Iterator[Finding]:
    """The findings for people: facts about llama.cpp that hold are one line, where the last of them stands."""
    from specrun.doctor import FACT, Finding

    facts = [finding for finding in findings if finding.check.startswith(FACT)]
    holding = [fact for fact in facts if fact.status == "ok"]
    for finding in findings:
        if finding not in holding:
            yield finding
        elif finding is holding[-1]:
            which = f"all {len(facts)}" if holding == facts else f"{len(holding)} of {len(facts)}"
            yield Finding("facts", "ok", f"{which} that specrun relies on in llama.cpp hold")


def unusable_gpu() -> Finding | None:
    """Why llama.cpp cannot use the GPU of this machine; None if no GPU is known to be there, or if it can be used.

    Unlike `specrun doctor`, which looks from child processes, this imports llama.cpp.
    """
    from specrun.doctor import installation
    from specrun.llama import devices, library

    driver, has_nvidia = gpu_driver(), nvidia_card()
    if offload_devices(devices.devices()) or not (driver or has_nvidia):
        return None
    return installation.backends(library.backends(), 0, driver, has_nvidia)


def note_unusable_gpu() -> None:
    """Tell the user about a GPU that cannot be used, unless an earlier run has said the same."""
    found = unusable_gpu()
    if found and is_news("unusable GPU", found.detail):
        output.note(f"{found.detail}; {found.fix}")


def is_news(what: str, state: str | bool) -> bool:
    """Whether this state differs from that of the run before, which is kept."""
    of = {"what": what}
    before = kept_facts.recall("said", of, type(state)) or type(state)()
    if before != state:
        kept_facts.remember("said", of, state)
    return before != state
