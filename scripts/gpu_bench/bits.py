"""Which sizes of passes give a token the same bits, with all layers in VRAM, at several lengths of the text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpu_bench.bench import Bench, OutOfTimeError
from specrun.decoding import calibration_texts
from specrun.errors import LlamaError, SpecrunError
from specrun.llama.invariance import exact_sizes
from specrun.llama_settings import ALL_LAYERS, LlamaSettings
from specrun.loading.model import Model
from specrun.loading.run_options import RunOptions
from specrun.long_run import Run
from specrun.processes import child_process
from specrun.speculation.drafters.specexec import SPECEXEC
from specrun.speculation.method import OFF
from specrun.speculation.planning.pass_sizes import MOST_PADDED

BOUNDARIES = (768, 1280, 1536, 2304)  # cells; tokens on both sides of them are compared
QUICK_BOUNDARIES = (256,)
LARGEST = 64  # tokens of a pass
SMS = "NSM"  # the variable that a patched build takes the number of multiprocessors from


def rows(bench: Bench) -> Iterator[dict[str, Any]]:
    """A row for each length of the text, with flash attention and without, and for each number of multiprocessors."""
    every = [(flash, n) for n in bench.sms or (None,) for flash in ("on", "off")]
    for i, (flash, n) in enumerate(every):
        what = f"flash attention {flash}" + (f", {n} multiprocessors" if n else "")
        bench.run.show(f"bits: {what}")
        request = {
            "path": str(bench.models.for_bits),
            "flash": flash,
            "seconds": bench.share(len(every) - i),
            "quick": bench.quick,
        }
        try:
            found = bench.answer("gpu_bench.bits", request, **({SMS: str(n)} if n else {}))["rows"]
        except OutOfTimeError:
            bench.note(f"no time for {what}; more --minutes measure all")
            return
        except LlamaError as error:
            bench.note(f"{what}: {error}")
            continue
        if len(found) < len(BOUNDARIES) and not bench.quick:
            bench.note(f"{what}: time for {len(found)} of {len(BOUNDARIES)} lengths")
        yield from ({"flash": flash, "sms": n} | row for row in found)


def serve(request: str) -> None:
    """Print the rows for a request of `rows`, which is JSON."""
    child_process.reply(request, _compared, failures=SpecrunError)


def _compared(given: dict[str, Any]) -> dict[str, Any]:
    settings = LlamaSettings(gpu_layers=ALL_LAYERS, flash_attn=given["flash"], type_k="f16", type_v="f16")
    # Room for the longest text, and for what passes are padded with.
    largest = SPECEXEC.plan(LARGEST + MOST_PADDED, 8)
    ctx_size = BOUNDARIES[-1] + 256
    options = RunOptions(Path(given["path"]), None, (OFF.plan(),), largest, ctx_size, settings)
    run = Run().stage(given["seconds"])
    rows: list[dict[str, Any]] = []
    with Model(options) as model:
        tokens = model.llama_model.tokenize(calibration_texts.together(), add_special=False)
        for boundary in QUICK_BOUNDARIES if given["quick"] else BOUNDARIES:
            if rows and run.is_over():
                break
            sizes, survey = exact_sizes(model.engine.target, tokens, LARGEST, given["quick"], boundary)
            groups = [list(group) for group in survey.groups]
            rows.append({"boundary": boundary, "exact": str(sizes), "groups": groups})
    return {"rows": rows}
