"""`specrun demo`: the same text with and without speculation, side by side."""

from __future__ import annotations

from typing import Annotated

import typer

from specrun.cli import output
from specrun.interrupts import InterruptFlag
from specrun.options.machine_options import MachineOptions
from specrun.options.model_options import ModelOptions
from specrun.options.speculation_options import SpeculationOptions


def demo(
    remove: Annotated[bool, typer.Option("--remove", help="Delete the pair that the demonstration has made.")] = False,
) -> int:
    """See it pay: the same text written plainly and with speculation, side by side.

    The embedded pair is widened to half a billion parameters, so that its passes cost what a real model's do. That
    takes some seconds and 1.1 GB in the cache folder, once. The text stays as poor as that of the tiny model.
    """
    from specrun.demo import wide_pair

    if remove:
        from specrun.units import size_text

        output.note(f"{size_text(wide_pair.remove())} are free again")
        return 0
    from specrun.catalog.local_pair import SilentFetcher
    from specrun.demo.comparison import Comparison
    from specrun.engine.model import open_model
    from specrun.long_run import Run
    from specrun.views import demo_view

    with output.progress() as display:
        target, draft = wide_pair.wide_pair(Run(display, output.note))
    models = ModelOptions(str(target), str(draft))
    with open_model(
        models,
        SpeculationOptions(learn=False),
        MachineOptions(),
        0.0,
        SilentFetcher(False),
        output.note,
        progress=output.progress,
    ) as model:
        for notice in model.notices:
            output.note(notice)
        comparison = Comparison(model)
        with InterruptFlag() as interrupted:
            steps = comparison.write(interrupted)
            if output.stdout.is_terminal:
                demo_view.show(comparison, steps, output.stdout)
            else:
                for _ in steps:
                    pass
                output.write(demo_view.lines(comparison))
        if output.stdout.is_terminal:
            output.stdout.print(comparison.verdict, style="bold", soft_wrap=False)
        else:
            output.note(comparison.verdict)
    return 0
