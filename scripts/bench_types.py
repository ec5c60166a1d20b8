"""What passes cost by type of the weights on this machine's CPU, with and without re-ordered weights.

    python scripts/bench_types.py [--types q4_0,q4_k_m] [--rounds N] [--threads N] [--rows FILE.json]

Widens the embedded target to 0.39 billion parameters in each type (docs/widening.md), times passes over 1 to 32 tokens
and over a prompt of 128, and deletes the file. A machine may be half as fast a minute later, so the file as it is, the
same re-ordered, and a Q8_0 file as the reference are all loaded and timed in turn: a pass is compared with those of its
own round, and the medians over the rounds are kept. Milliseconds are those at the reference's fastest speed. The last
column is the arithmetic of one plan from these times: the tokens per second of the best chain, if each drafted token is
accepted with a chance of 0.7 and drafting costs nothing, and the length of that chain. --rows keeps what was measured
in a file: a later call adds its types to it and prints all of them.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import widen_gguf

from specrun.catalog import embedded
from specrun.hardware.cpu import usable_cores
from specrun.llama import LlamaModel
from specrun.llama.batch import committed_tokens
from specrun.llama.context import ALL_SEQUENCES, ContextConfig, LlamaContext
from specrun.llama_settings import LlamaSettings

TYPES = ("q4_0", "iq4_nl", "iq4_xs", "q4_k_m", "mxfp4", "q3_k_m", "q5_k_m", "q6_k", "q8_0", "bf16", "f16", "f32")
SHAPE = ["--embd", "2048", "--layers", "8", "--ff", "5632", "--heads", "64", "--kv-heads", "8", "--vocab", "8192"]
REFERENCE = "q8_0"
SIZES = (1, 2, 3, 4, 8, 16, 32)
N_PROMPT = 128
N_CELLS = 64  # tokens before every timed pass
AGREEMENT = 0.7


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

    def chain(self) -> tuple[float, int]:
        """Tokens in the time of a pass over one token, by the best chain, and its drafted tokens; 0 is plain."""
        gains = {n - 1: sum(AGREEMENT**k for k in range(n)) / self.factors[n] for n in SIZES}
        length = max(gains, key=lambda n: gains[n])
        return gains[length], length

    def line(self, reference_ms: float) -> str:
        """A row of the table, at a speed of the machine."""
        plain = 1e3 / (self.cost * reference_ms)
        gain, length = self.chain()
        cells = [self.name, "re-ordered" if self.repack else "as in the file", f"{self.n_bytes / 1e6:.0f}"]
        cells += [f"{1e3 / plain:.1f}", *(f"{self.factors[n]:.1f}" for n in SIZES[1:])]
        cells += [f"{plain * N_PROMPT / self.factors[N_PROMPT]:.0f}", f"{plain:.0f}", f"{plain * gain:.0f} ({length})"]
        return "| " + " | ".join(cells) + " |"


@contextmanager
def opened(path: Path, repack: bool, threads: int) -> Iterator[LlamaContext]:
    """A context of the model, filled with N_CELLS tokens."""
    settings = LlamaSettings(threads=threads, type_v="bf16")
    config = ContextConfig(n_ctx=512, n_seq_max=1, n_batch=N_PROMPT, n_outputs=max(SIZES), settings=settings)
    with LlamaModel(path, LlamaSettings(repack=repack)) as model, LlamaContext(model, config) as context:
        context.decode(committed_tokens(tokens(N_CELLS), 0, 1, n_outputs=0))
        yield context


def tokens(count: int) -> list[int]:
    """Some tokens; which ones does not change the time of a dense model."""
    return [3 + 7 * i % 2000 for i in range(count)]


def pass_ms(context: LlamaContext, n: int) -> float:
    """Milliseconds of a pass over n tokens whose logits are all read, or of a prompt."""
    batch = committed_tokens(tokens(n), N_CELLS, 1, n_outputs=1)
    batch.outputs[:] = n <= max(SIZES)
    batch.outputs[-1] = True
    started = time.perf_counter()
    context.decode(batch)
    ms = (time.perf_counter() - started) * 1e3
    context.remove(ALL_SEQUENCES, N_CELLS)
    return ms


def measure(path: Path, reference: Path, rounds: int, threads: int) -> list[Measured]:
    """The rows of a file: with its weights as they are, and re-ordered. The first round is the warm-up."""
    contexts = [opened(reference, False, threads), opened(path, False, threads), opened(path, True, threads)]
    sizes = (*SIZES, N_PROMPT)
    with ExitStack() as stack:
        one, *both = [stack.enter_context(context) for context in contexts]
        times = [
            (pass_ms(one, 1), [[pass_ms(context, n) for n in sizes] for context in both]) for _ in range(rounds + 1)
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
        code = widen_gguf.main([str(embedded.TARGET), str(path), *SHAPE, "--type", name, "--no-check"])
    if code:
        raise SystemExit(errors.getvalue())
    return path


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--types", default=",".join(TYPES), metavar="LIST")
    parser.add_argument("--rounds", type=int, default=15, metavar="N")
    parser.add_argument("--threads", type=int, default=usable_cores(), metavar="N")
    parser.add_argument("--rows", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    rows = read(options.rows) if options.rows else []
    with tempfile.TemporaryDirectory() as folder:
        reference = made(Path(folder), REFERENCE)
        for name in options.types.split(","):
            path = reference if name == REFERENCE else made(Path(folder), name)
            rows += measure(path, reference, options.rounds, options.threads)
            if path != reference:
                path.unlink()
    if options.rows:
        options.rows.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n", encoding="utf-8")
    print("\n".join(table(sorted(rows, key=lambda row: row.n_bytes))))


def read(path: Path) -> list[Measured]:
    """The rows of earlier calls."""
    rows = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    return [Measured(**{**row, "factors": {int(n): x for n, x in row["factors"].items()}}) for row in rows]


def table(rows: Sequence[Measured]) -> list[str]:
    """The rows in Markdown, all at the machine's fastest speed, and how much that changed."""
    fastest, slowest = (choose(row.reference_ms for row in rows) for choose in (min, max))
    head = ["type", "weights", "MB", "ms of 1 token", *(f"of {n}" for n in SIZES[1:])]
    head += ["prompt, tokens/s", "plain, tokens/s", "best chain, tokens/s (length)"]
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    lines += [row.line(fastest) for row in rows]
    return [*lines, "", f"A token of {REFERENCE} took {fastest:.2f} to {slowest:.2f} ms while this was measured."]


if __name__ == "__main__":
    main()
