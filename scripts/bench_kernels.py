"""What passes cost on this machine's CPU: by type of the weights, with tiled kernels or others, and with or without
flash attention.

    python scripts/bench_kernels.py types [--types q4_0,q4_k_m] [--sizes 1,2,3] [--rounds N] [--threads N]
                                           [--rows FILE.json]
    python scripts/bench_kernels.py tiled [--rounds N] [--threads N]
    python scripts/bench_kernels.py attention [--rounds N] [--threads N]

`types` widens the embedded target to 0.39 billion parameters in each type (docs/widening.md), times passes over 1 to 32
tokens, or these --sizes, and over a prompt of 128, and deletes the file. A machine may be half as fast a minute later,
so the file as it is, the same re-ordered, and a Q8_0 file as the reference are all loaded and timed in turn: a pass is
compared with those of its own round, and the medians over the rounds are kept. Milliseconds are those at the
reference's fastest speed. The last column is the arithmetic of one plan from these times: the tokens per second of the
best chain, if each drafted token is accepted with a chance of 0.7 and drafting costs nothing, and the length of that
chain. --rows keeps what was measured in a file: a later call adds its types to it and prints all of them.

`tiled` prints what specrun's own trial measures: milliseconds of passes over one layer with weights as they are in the
file, with tiled kernels and with llama.cpp's others, the least of N trials, and the size from which on an untuned
target takes tiled kernels.

`attention` prints the milliseconds that one layer's attention takes of a prompt of 500 tokens and an answer of 256, one
half of it written one by one and the other half in small trees, by the shape of the heads, the median of N trials; and
what an untuned target with such heads does (specrun/loading/default_settings.py).
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from widening import model as widening

from specrun import clock
from specrun.catalog import embedded
from specrun.catalog.gguf_file import GgufFile
from specrun.hardware.cpu import usable_cores
from specrun.llama import LlamaModel
from specrun.llama.batch import committed_tokens
from specrun.llama.context import ALL_SEQUENCES, ContextConfig, LlamaContext
from specrun.llama.facts.tiny_model import write_dense
from specrun.llama_settings import LlamaSettings
from specrun.loading import default_settings
from specrun.loading.trial import ANSWER, PROMPT
from specrun.speculation.planning.pass_sizes import tokens_of

TILED_TYPES = ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS", "IQ3_S", "IQ2_S")  # some of those that have them
TYPES = ("q4_0", "iq4_nl", "iq4_xs", "q4_k_m", "mxfp4", "q3_k_m", "q5_k_m", "q6_k", "q8_0", "bf16", "f16", "f32")
SHAPE = ["--embd", "2048", "--layers", "8", "--ff", "5632", "--heads", "64", "--kv-heads", "8", "--vocab", "8192"]
REFERENCE = "q8_0"
SIZES = "1,2,3,4,8,16,32"
N_PROMPT = 128
N_CELLS = 64  # tokens before every timed pass
AGREEMENT = 0.7

MODELS = {  # heads, those of K and V, and the numbers of one
    "Llama 3.1 8B": (32, 8, 128),
    "Qwen2.5 7B": (28, 4, 128),
    "Qwen2.5 0.5B": (14, 2, 64),
    "the 1.1 B target of bench_headline.py": (64, 8, 32),
}
CONTEXTS = (64, 768)  # tokens; llama.cpp's attention kernels for long contexts are at work from 512 cells on
TREES = (1, 4)  # tokens of the timed passes
PROMPT_PASS = 512  # tokens of a pass over the prompt
PASSES = 7  # of each size
NARROW_LAYER = 256  # width of a layer whose matrices are not what is timed


# --- types of weights -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Measured:
    """What passes over a type cost.

    cost: of a pass over one token, in passes of the reference over one token.
    factors: of the passes over n tokens, in passes over one token of the same weights, by n.
    reference_ms: milliseconds of the reference's pass meanwhile.
    """

    name: str
    repack: bool
    n_bytes: int
    cost: float
    factors: dict[int, float]
    reference_ms: float

    @property
    def sizes(self) -> list[int]:
        """The tokens of the timed passes, but for a prompt's."""
        return [n for n in self.factors if n != N_PROMPT]

    def chain(self) -> tuple[float, int]:
        """Tokens in the time of a pass over one token, by the best chain, and its drafted tokens; 0 is plain."""
        gains = {n - 1: sum(AGREEMENT**k for k in range(n)) / self.factors[n] for n in self.sizes}
        length = max(gains, key=lambda n: gains[n])
        return gains[length], length

    def line(self, reference_ms: float) -> str:
        """A row of the table, at a speed of the machine."""
        plain = 1e3 / (self.cost * reference_ms)
        gain, length = self.chain()
        cells = [self.name, "re-ordered" if self.repack else "as in the file", f"{self.n_bytes / 1e6:.0f}"]
        cells += [f"{1e3 / plain:.1f}", *(f"{self.factors[n]:.1f}" for n in self.sizes[1:])]
        cells += [f"{plain * N_PROMPT / self.factors[N_PROMPT]:.0f}", f"{plain:.0f}", f"{plain * gain:.0f} ({length})"]
        return "| " + " | ".join(cells) + " |"


@contextmanager
def opened(path: Path, repack: bool, threads: int) -> Iterator[LlamaContext]:
    """A context of the model, filled with N_CELLS tokens."""
    settings = LlamaSettings(threads=threads, type_v="bf16")
    config = ContextConfig(n_ctx=512, n_seq_max=1, n_batch=N_PROMPT, n_outputs=N_PROMPT, settings=settings)
    with LlamaModel(path, LlamaSettings(repack=repack)) as model, LlamaContext(model, config) as context:
        context.decode(committed_tokens(some_tokens(N_CELLS), 0, 1, n_outputs=0))
        yield context


def some_tokens(count: int) -> list[int]:
    """Which ones they are does not change the time of a dense model."""
    return [3 + 7 * i % 2000 for i in range(count)]


def pass_ms(context: LlamaContext, tokens: list[int], start: int, n_outputs: int) -> float:
    """Milliseconds of a pass over tokens after `start` others, with logits of the last `n_outputs`."""
    batch = committed_tokens(tokens, start, 1, n_outputs)
    started = clock.now()
    context.decode(batch)
    ms = (clock.now() - started) * 1e3
    context.remove(ALL_SEQUENCES, start)
    return ms


def of_type(path: Path, reference: Path, options: argparse.Namespace) -> list[Measured]:
    """The rows of a file: with its weights as they are, and re-ordered. The first round is the warm-up."""
    threads = options.threads
    contexts = [opened(reference, False, threads), opened(path, False, threads), opened(path, True, threads)]
    # Tokens of a pass -> of how many it reads the logits.
    sizes = {**{n: n for n in options.sizes}, N_PROMPT: 1}
    with ExitStack() as stack:
        fixed, *both = [stack.enter_context(context) for context in contexts]
        times = [
            (
                pass_ms(fixed, some_tokens(1), N_CELLS, 1),
                [
                    [pass_ms(context, some_tokens(n), N_CELLS, wanted) for n, wanted in sizes.items()]
                    for context in both
                ],
            )
            for _ in range(options.rounds + 1)
        ][1:]
    rows = []
    for i, repack in enumerate((False, True)):
        costs = [ms[i][0] / reference_ms for reference_ms, ms in times]
        factors = {n: statistics.median(ms[i][k] / ms[i][0] for _, ms in times) for k, n in enumerate(sizes)}
        reference_ms = statistics.median(reference_ms for reference_ms, _ in times)
        rows.append(Measured(path.stem, repack, path.stat().st_size, statistics.median(costs), factors, reference_ms))
    return rows


def made(folder: Path, name: str) -> Path:
    """The widened model in a type."""
    path = folder / f"{name}.gguf"
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as errors:
        code = widening.main([str(embedded.TARGET), str(path), *SHAPE, "--type", name, "--no-check"])
    if code:
        raise SystemExit(errors.getvalue())
    return path


def types(options: argparse.Namespace) -> None:
    """Measure the types, and print them with those of earlier calls."""
    rows = read_rows(options.rows) if options.rows else []
    if any(row.sizes != options.sizes for row in rows):
        raise SystemExit(f"{options.rows} has rows of other --sizes")
    with tempfile.TemporaryDirectory() as folder:
        reference = made(Path(folder), REFERENCE)
        for name in options.types.split(","):
            path = reference if name == REFERENCE else made(Path(folder), name)
            rows += of_type(path, reference, options)
            if path != reference:
                path.unlink()
    if options.rows:
        options.rows.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n", encoding="utf-8")
    print("\n".join(table(sorted(rows, key=lambda row: row.n_bytes))))


def numbers(text: str) -> list[int]:
    """A list that was given on the command line."""
    return [int(number) for number in text.split(",")]


def read_rows(path: Path) -> list[Measured]:
    """The rows of earlier calls."""
    rows = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    return [Measured(**{**row, "factors": {int(n): x for n, x in row["factors"].items()}}) for row in rows]


def table(rows: Sequence[Measured]) -> list[str]:
    """The rows in Markdown, all at the machine's fastest speed, and how much that changed."""
    fastest, slowest = (choose(row.reference_ms for row in rows) for choose in (min, max))
    head = ["type", "weights", "MB", "ms of 1 token", *(f"of {n}" for n in rows[0].sizes[1:])]
    head += ["prompt, tokens/s", "plain, tokens/s", "best chain, tokens/s (length)"]
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    lines += [row.line(fastest) for row in rows]
    return [*lines, "", f"A token of {REFERENCE} took {fastest:.2f} to {slowest:.2f} ms while this was measured."]


# --- flash attention --------------------------------------------------------------------------------------------------


def attention_ms(heads: tuple[int, int, int], threads: int) -> dict[str, float]:
    """Milliseconds that one layer's attention takes of a prompt and an answer, `with` flash attention and `without`."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        path = write_dense(Path(folder) / "layer.gguf", heads, NARROW_LAYER, NARROW_LAYER, 32, 1, ["F16", "F16"])
        contexts = {}
        for name in ("with", "without"):
            flash_attn: Literal["on", "off"] = "on" if name == "with" else "off"
            settings = LlamaSettings(threads=threads, type_k="f16", type_v="f16", flash_attn=flash_attn)
            config = ContextConfig(
                CONTEXTS[-1] + max(TREES), 1, n_batch=PROMPT_PASS, n_outputs=max(TREES), settings=settings
            )
            model = stack.enter_context(LlamaModel(path, settings))
            contexts[name] = stack.enter_context(LlamaContext(model, config))
            read_prompt(contexts[name], 0, CONTEXTS[0])
        few = passes(contexts, CONTEXTS[0])
        far = {name: read_prompt(context, *CONTEXTS) for name, context in contexts.items()}
        many = passes(contexts, CONTEXTS[1])
    return {
        name: PROMPT * far[name] / (CONTEXTS[1] - CONTEXTS[0])
        + ANSWER * statistics.mean((few[name, n] + many[name, n]) / 2 / tokens_of(n) for n in TREES)
        for name in contexts
    }


def read_prompt(context: LlamaContext, start: int, end: int) -> float:
    """Milliseconds of a prompt up to `end` where `start` tokens lie already."""
    started = clock.now()
    for first in range(start, end, PROMPT_PASS):
        context.decode(committed_tokens([1] * min(PROMPT_PASS, end - first), first, 1, n_outputs=0))
    return (clock.now() - started) * 1e3


def passes(contexts: dict[str, LlamaContext], start: int) -> dict[tuple[str, int], float]:
    """Milliseconds of passes after `start` tokens, by name and size. All take turns: the machine's speed changes."""
    taken: dict[tuple[str, int], list[float]] = {(name, n): [] for n in TREES for name in contexts}
    for _ in range(PASSES):
        for (name, n), ms in taken.items():
            ms.append(pass_ms(contexts[name], [1] * n, start, n))
    return {key: statistics.median(ms) for key, ms in taken.items()}


def tiled(options: argparse.Namespace) -> None:
    """Measure each type with and without tiled kernels, and print each as it is known."""
    sizes = default_settings.TILED_SIZES
    print(f"| type | {' | '.join(f'{n} tokens, ms' for n in sizes)} | tiled from |")
    print("| --- |" + " ---: |" * (len(sizes) + 1))
    for kind in TILED_TYPES:
        trials = [default_settings.tiled_ms(kind, options.threads) for _ in range(options.rounds)]
        ms = {way: {n: min(trial[way][n] for trial in trials) for n in sizes} for way in trials[0]}
        cells = [f"{ms['tiled'][n]:.1f}, {ms['other'][n]:.1f}" for n in sizes]
        print(f"| {kind} | {' | '.join(cells)} | {default_settings.tiled_least(ms)} |", flush=True)


def attention(options: argparse.Namespace) -> None:
    """Measure the shapes of heads, and print each as it is known."""
    models = dict(MODELS)
    if embedded_draft := GgufFile.read(embedded.DRAFT).heads:
        models["the embedded draft"] = embedded_draft
    print("| heads of | heads, of K and V, size | with, ms | without, ms | without / with | flash attention |")
    print("| --- | --- | ---: | ---: | ---: | --- |")
    for name, heads in models.items():
        trials = [attention_ms(heads, options.threads) for _ in range(options.rounds)]
        ms = {kind: statistics.median(trial[kind] for trial in trials) for kind in trials[0]}
        chosen = "off" if heads[-1] <= default_settings.NARROW else "on"
        print(
            f"| {name} | {', '.join(map(str, heads))} | {ms['with']:.0f} | {ms['without']:.0f} "
            f"| {ms['without'] / ms['with']:.2f} | {chosen} |",
            flush=True,
        )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(required=True)
    by_type, by_kernel, by_heads = (parts.add_parser(name) for name in ("types", "tiled", "attention"))
    by_type.add_argument("--types", default=",".join(TYPES), metavar="LIST")
    by_type.add_argument(
        "--sizes", type=numbers, default=SIZES, metavar="LIST", help="tokens of the timed passes, from 1 to 127"
    )
    by_type.add_argument("--rows", type=Path, metavar="FILE")
    for part, measure, rounds in ((by_type, types, 15), (by_kernel, tiled, 3), (by_heads, attention, 3)):
        part.add_argument("--rounds", type=int, default=rounds, metavar="N")
        part.add_argument("--threads", "-t", type=int, default=usable_cores(), metavar="N")
        part.set_defaults(measure=measure)
    options = parser.parse_args(arguments)
    options.measure(options)


if __name__ == "__main__":
    main()
