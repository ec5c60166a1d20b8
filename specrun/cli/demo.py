"""`specrun demo`: the same text with and without speculation, side by side."""

from __future__ import annotations

from typing import Annotated

import typer

from specrun.display_text import size_text
from specrun.interrupts import InterruptFlag
from specrun.options.model_options import ModelOptions
from specrun.options.speculation_options import SpeculationOptions
from specrun.views import output


def demo(
    remove: Annotated[bool, typer.Option("--remove", help="Delete the pair that the demonstration has made.")] = False,
) -> None:
    """See it pay: the same text written plainly and with speculation, side by side.

    The embedded pair is widened to half a billion parameters, so that its passes cost what a real model's do, and this
    machine is measured. Both are done once, in about a minute and a half, and take 1.1 GB in the cache folder. The text
    stays as poor as that of the tiny model.
    """
    from specrun.demo import wide_pair

    if remove:
        output.note(f"{size_text(wide_pair.remove())} are free again")
        return
    from specrun.catalog.local_pair import Fetcher
    from specrun.cli.opening import opened
    from specrun.demo.comparison import Comparison
    from specrun.engine.resolving import run_options
    from specrun.long_run import Run
    from specrun.views import demo_view

    speculation, machine = SpeculationOptions(learn=False), wide_pair.LLAMA_DEFAULTS
    with output.progress() as display:
        run = Run(display, output.note)
        target, draft = wide_pair.wide_pair(run)
        models = ModelOptions(str(target), str(draft))
        wide_pair.measure_once(run_options(models, speculation, machine, Fetcher(False), output.note), run)
    with opened(models, speculation, machine, temperature=0.0) as model:
        comparison = Comparison(model)
        with InterruptFlag() as interrupted:
            steps = comparison.write(interrupted)
            if output.stdout.is_terminal:
                demo_view.show(comparison, steps, output.stdout)
                output.stdout.print(comparison.verdict, style="bold", soft_wrap=False)
            else:
                for _ in steps:
                    pass
                output.write(demo_view.lines(comparison))
                output.note(comparison.verdict)
