"""`specrun demo`: the same text with and without drafts, side by side, by a model that does not fit its memory."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from specrun.display_text import size_text
from specrun.hardware.cpu import LoadWatch
from specrun.interrupts import InterruptFlag
from specrun.options.machine_options import MachineOptions
from specrun.options.speculation_options import ModelOptions, SpeculationOptions
from specrun.views import output

_SECONDS_OF_A_LOOK = 0.5  # at what other programs do
_TOKENS_IN_RAM = 48  # of the texts in RAM


def demo(
    remove: Annotated[bool, typer.Option("--remove", help="Delete the pair that the demonstration has made.")] = False,
) -> None:
    """See it pay: the same text written plainly and with drafts.

    The embedded pair is widened to 0.4 billion parameters, once, which takes 430 MB in the cache folder. Both texts
    get so little memory that most weights are read from disk in each pass, as with a model that does not fit. The end
    says what the same drafts bring in RAM, and what models of 14 to 70 billion parameters would do on this machine.
    The text stays as poor as that of the tiny model.
    """
    from specrun import demo as shown

    if remove:
        output.note(f"{size_text(shown.remove())} are free again")
        return
    from specrun.catalog.entries import catalog
    from specrun.cli.opening import opened
    from specrun.demo import N_DRAFTED, Comparison
    from specrun.hardware.memory import Memory
    from specrun.long_run import Run
    from specrun.views import demo_view

    watch = LoadWatch()
    with output.progress() as display:
        target, draft = shown.wide_pair(Run(display, output.note))
    models = ModelOptions(str(target), str(draft))
    speculation = SpeculationOptions(speculate="chain", depth=N_DRAFTED, learn=False)
    machine = MachineOptions(gpu_layers="0", gpu_layers_draft="0", threads=_free_threads(watch))
    with opened(models, speculation, machine, temperature=0.0, most_ram=shown.MOST_RAM, is_measured=True) as model:
        first = Comparison(model)
        output.note(demo_view.before(first))
        with InterruptFlag() as interrupted:
            demo_view.show(first, first.write(interrupted))
    texts = [first]
    if first.is_streamed and Memory.read().available_bytes < shown.IN_RAM:
        output.stdout.print("There is no figure with all weights in RAM, because so much is not free")
    elif first.is_streamed:
        with opened(models, speculation, machine, temperature=0.0, is_measured=True) as model:
            texts.append(Comparison(model, _TOKENS_IN_RAM))
            with output.progress() as display, InterruptFlag() as interrupted:
                for _ in texts[1].write(interrupted):
                    display("writing the same text with all weights in RAM")
        output.stdout.print(texts[1].beside)
    sentence, expected = shown.outlook(texts, target, catalog())
    output.stdout.print(sentence)
    output.print_table(demo_view.outlook_table(expected))


def _free_threads(watch: LoadWatch) -> int:
    """As many threads as other programs leave cores for, which all texts then have, whatever changes meanwhile."""
    from specrun.hardware.cpu import usable_cores

    time.sleep(max(_SECONDS_OF_A_LOOK - watch.seconds, 0.0))
    load, wanted = watch.so_far(), usable_cores()
    free = load.threads_beside(wanted)
    if free < wanted:
        held = f"other programs hold {load.cores:.1f} of {load.n_cores} cores"
        output.note(f"{held}, so both texts get {free} of {wanted} threads, and their ratio is lower")
    return free
