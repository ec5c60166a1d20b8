"""`specrun demo`: the embedded pair at the cost of a real one, and the same text written by it plainly and with drafts.

The pair is widened once, and kept. The target has 0.38 billion parameters in Q8_0, 409 MB, of which passes read 339 MB
from disk with `MOST_RAM`: what does not belong to a layer stays, and the layers take turns in two slots. A pass over a
few tokens gives each of them the same bits as a pass over one, so both texts are the same. The draft is a 17th of the
target, as Qwen2.5 0.5B is of 7B, and has its tokens, as llama.cpp's own tools want it.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from pathlib import Path

from specrun.catalog import embedded
from specrun.catalog.entries import Entry
from specrun.catalog.gguf_file import GgufFile, file_identity
from specrun.decoding.generation import make_request
from specrun.display_text import counted, rate_text, size_text
from specrun.errors import SpecrunError, disk_errors
from specrun.hardware.fit import Fit, Fits
from specrun.interrupts import never
from specrun.loading.known_rates import keep_rates
from specrun.loading.local_fit import LocalFits
from specrun.loading.model import Model
from specrun.locations import cache_dir
from specrun.long_run import Run
from specrun.making.widening import WiderModel
from specrun.options.sampling_options import SamplingOptions
from specrun.speculation.controllers.chooser import FixedPlan
from specrun.speculation.method import OFF

PROMPT = "def read_config(path):"
N_DRAFTED = 8  # tokens that are drafted before each pass: so many are right more often than not with this pair
MOST_TOKENS = 96
_FEWEST_TOKENS = 24
_N_WARM = 4  # tokens that are written before, so that memory is taken and the speed is known when the clock starts
_LEAST_GAIN = 1.1  # times plain decoding's speed; less may be chance
_SECONDS = 30.0  # that the plain text may take; on a slow disk it is shorter


class Comparison:
    """The two texts of a prompt, greedy, one after the other.

    Nothing else differs between them: the same process, weights, memory, settings of llama.cpp and prompt. A few tokens
    are written at once, whose time says how long the texts can be.

    model: loaded with the plan of the second text. most_tokens: of each text.
    """

    def __init__(self, model: Model, most_tokens: int = MOST_TOKENS) -> None:
        self.model = model
        request = make_request(SamplingOptions(temp=0.0, max_tokens=_N_WARM))
        request = replace(request, prompt=model.prompt_tokens(PROMPT, raw=True))
        warm = model.complete(request, FixedPlan(OFF.plan())).run()
        n_tokens = max(int(_SECONDS * warm.statistics.tokens_per_second), _FEWEST_TOKENS)
        request = replace(request, max_tokens=min(n_tokens, most_tokens))
        self.plain = model.complete(request, FixedPlan(OFF.plan()))
        self.fast = model.complete(request)

    def write(self, interrupted: Callable[[], bool] = never) -> Iterator[tuple[int, str]]:
        """Write both texts. Yields the index of a text, 0 for the plain text, which comes first, and a piece of it.

        Raises KeyboardInterrupt once `interrupted` returns True.
        """
        for which, completion in enumerate((self.plain, self.fast)):
            self.model.engine.reset()
            for piece in completion.stream(interrupted):
                yield which, piece
            if completion.finish_reason == "interrupted":
                raise KeyboardInterrupt

    @property
    def is_streamed(self) -> bool:
        """Whether each pass of both texts reads weights from disk."""
        return self.model.residency.mode == "ring"

    @property
    def announcement(self) -> str:
        """What will be seen, and what to expect of this machine."""
        residency = self.model.residency
        if self.is_streamed:
            return (
                f"of the large model {size_text(residency.resident_bytes)} stay in memory, and each pass reads the "
                f"other {size_text(residency.streamed_bytes)} from disk, in both texts alike and on the processor "
                f"alone: first plainly, then with {N_DRAFTED} drafted tokens a pass"
            )
        return (
            "specrun cannot read weights from disk in each pass here, so both texts are written from RAM, where drafts "
            "bring the least: expect 0.5 to 1.5 times plain decoding's speed. They are for models that neither the GPU "
            "nor RAM holds"
        )

    @property
    def ratio(self) -> float:
        """How many times as fast the second text was written as the first."""
        return self.fast.statistics.tokens_per_second / self.plain.statistics.tokens_per_second

    @property
    def pass_cost(self) -> float:
        """How many times as long a pass with its drafts took as a plain one."""
        return self.fast.statistics.tokens_per_pass / self.ratio

    @property
    def verdict(self) -> str:
        """What came out, in a sentence."""
        same = "the same text"
        if self.plain.token_ids != self.fast.token_ids:  # some processors' kernels round passes of each size otherwise
            pairs = zip(self.plain.token_ids, self.fast.token_ids, strict=False)
            n_same = len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))
            same += (
                f" for {counted(n_same, 'token')}, where rounding decided between two tokens that were nearly equal "
                "(`--exact` prevents it)"
            )
        reads = f", which reads {size_text(self.model.residency.streamed_bytes)} from disk," if self.is_streamed else ""
        brought = f"{self.fast.statistics.tokens_per_pass:.1f} tokens instead of 1"
        return (
            f"{same}, {self.ratio:.1f} times as fast: each pass of the large model{reads} brought {brought}, and took "
            f"{self.pass_cost:.1f} times as long"
        )

    @property
    def beside(self) -> str:
        """A sentence about the same texts in RAM, to stand beside those for which weights were streamed."""
        rates = [rate_text(completion.statistics.tokens_per_second) for completion in (self.plain, self.fast)]
        lesson = "drafts pay where passes wait for weights; elsewhere specrun omits them"
        if self.ratio > _LEAST_GAIN:
            lesson = "on this machine drafts pay there too; where they do not, specrun omits them"
        return (
            f"With all weights in RAM the pair writes {rates[0]} tokens/s plainly and {rates[1]} with the same drafts, "
            f"{self.ratio:.1f} times as fast: {lesson}"
        )


ASKED = ("qwen3-14b", "qwen3-32b", "llama-70b")  # dense, in Q4_K_M: the sizes that people ask for
# What a pass brought with a draft that is right as often as those of real families (docs/benchmarks/headline.md, a
# chain of 6, greedy). The embedded pair's draft is right more often.
_TOKENS_PER_PASS = 3.9
_PARTLY_IN_VRAM = 2.0  # times plain decoding with half of a 7B in VRAM (docs/gpu.md), which the demonstration lacks


def outlook(
    texts: Sequence[Comparison], target: Path, catalog: Mapping[str, Entry], is_busy: bool
) -> tuple[str, list[tuple[Entry, Fit, float]]]:
    """Estimate what the models of `ASKED` do on this machine. Returns a sentence on what the estimate is made from, and
    for each model how it fits and its tokens a second with a draft, 0 where it does not fit.

    The rates at which passes have read are kept, so that other estimates use them, too.

    texts: written in RAM, or with weights that were streamed, or both. target: the file of the model that wrote them.
    is_busy: whether other programs held cores.
    """
    file, read = GgufFile.read(target), dict[str, float]()
    gains: dict[Fits, float] = {"partly": _PARTLY_IN_VRAM}  # times plain decoding's rate, by where the weights lie
    for comparison in texts:
        s = comparison.plain.statistics
        if comparison.is_streamed:
            read["disk"] = s.bytes_read / s.seconds
        else:  # a token looks up one row of the embedding
            read["ram"] = (target.stat().st_size - file.embedding_bytes) * s.tokens_per_second
        gains["streamed" if comparison.is_streamed else "ram"] = _TOKENS_PER_PASS / comparison.pass_cost
    keep_rates(read, is_busy)
    here = LocalFits.now(catalog)
    gpus = "".join(f"{gpu.name} and " for gpu in here.gpus)
    sentence = (
        f"On this machine, estimated with {gpus}{size_text(here.ram_bytes)} of free RAM, by reading {here.rates_text}, "
        f"and with a draft that is right as often as those of real families ({_TOKENS_PER_PASS:g} tokens a pass):"
    )
    fits = [(entry, fit) for entry in map(catalog.__getitem__, ASKED) if (fit := here.of(entry, None))]
    # Where drafts bring nothing, specrun decodes plainly.
    return sentence, [(entry, fit, fit.tokens_per_second * max(gains.get(fit.fits, 1.0), 1.0)) for entry, fit in fits]


MOST_RAM = 300_000_000  # bytes for both models with their caches: room for no layer beside the slots
IN_RAM = 1_000_000_000  # bytes that are free where all weights stay in RAM, what is kept free for others included

_SPARE = 100_000_000  # bytes that stay free for metadata and for others
_TYPE = "q8_0"  # of the widened matrices
# How target and draft are widened: the source, and the sizes that change.
WIDENED: dict[str, tuple[Path, dict[str, int]]] = {
    "target": (embedded.TARGET, {"embd": 1024, "layers": 16, "ff": 5632, "heads": 32, "kv_heads": 8, "vocab": 32000}),
    "draft": (embedded.DRAFT, {"embd": 288, "vocab": 32000}),
}


def folder() -> Path:
    """Where the widened pair is kept."""
    return cache_dir() / "demo"


def _path(name: str) -> Path:
    """The file says by its name what it was made from, so that a new version of specrun makes its own."""
    source, sizes = WIDENED[name]
    made_from = file_identity([source])[:8]
    return folder() / f"{name}-{'-'.join(map(str, sizes.values()))}-{_TYPE}-{made_from}.gguf"


def wide_pair(run: Run) -> tuple[Path, Path]:
    """The files of target and draft, made first if they are not here. Pairs of an older specrun are deleted.

    Raises SpecrunError where the disk has no room or cannot be written, and KeyboardInterrupt.
    """
    target, draft = _path("target"), _path("draft")
    missing = [name for name in WIDENED if not _path(name).exists()]
    if missing:
        with disk_errors("written; set SPECRUN_CACHE_DIR to a folder that can", folder()):
            _write(missing, run)
            for old in folder().glob("*.gguf"):
                if old not in (target, draft):
                    old.unlink()
    return target, draft


def remove() -> int:
    """Delete the pair. Returns the number of bytes that are free again. Raises SpecrunError if that is refused."""
    if not folder().exists():
        return 0
    with disk_errors("deleted; delete it by hand", folder()):
        freed = sum(path.stat().st_size for path in folder().iterdir())
        shutil.rmtree(folder())
    return freed


def _write(names: Sequence[str], run: Run) -> None:
    folder().mkdir(parents=True, exist_ok=True)
    models = {_path(name): WiderModel(*WIDENED[name], _TYPE) for name in names}
    total, free = sum(model.n_bytes for model in models.values()), shutil.disk_usage(folder()).free
    parameters = models[_path(names[0])].n_parameters / 1e9
    if free < total + _SPARE:
        raise SpecrunError(
            f"{folder()} has {size_text(free)} free; the pair takes {size_text(total)}, and "
            f"{size_text(_SPARE)} have to stay free; make room, or set SPECRUN_CACHE_DIR to another disk"
        )
    run.note(
        f"making a pair of {parameters:.2g} billion parameters in {folder()}: {size_text(total)}, "
        f"of {size_text(free)} that are free; `specrun demo --remove` deletes it"
    )
    started, done = time.perf_counter(), 0

    def progress(n_bytes: int) -> None:
        nonlocal done
        done += n_bytes
        seconds = (time.perf_counter() - started) * (total - done) / done
        run.expected_to_take(seconds).show(f"writing the pair, {size_text(done)} of {size_text(total)}")

    for path, model in models.items():
        model.write(path, progress)
