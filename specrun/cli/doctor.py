"""`specrun doctor`: whether this machine and this installation are as they should be."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from specrun.views import output


def doctor(
    json: Annotated[
        bool, typer.Option("--json", help="A JSON list of objects with check, status, detail and fix.")
    ] = False,
) -> int:
    """Look for what makes specrun slow or fail on this machine, and say how to mend it.

    Versions, backends, instructions of the processor, a layer on each device, facts about llama.cpp that specrun relies
    on, memory, other load, folders, disk, hub and profiles. Nothing is downloaded and nothing is left behind. The exit
    code is 1 if a check fails, else 0.
    """
    from specrun.doctor.examine import examine
    from specrun.views import doctor_view

    with output.progress() as show:
        findings = list(examine(show, output.debug))
    if json:
        output.write_json([asdict(finding) for finding in findings])
    elif output.stdout.is_terminal:
        output.print_table(doctor_view.as_table(findings))
    else:
        output.write(doctor_view.lines(findings))
    return 1 if any(finding.status == "fail" for finding in findings) else 0
