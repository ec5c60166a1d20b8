"""The tools, the settings that are tried with each, and how they are called."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from peer_tools import parsing
from specrun.catalog.gguf_file import GgufFile
from specrun.catalog.heads import MARKOV_BEFORE

COMPLETION = "llama-completion"
SPECULATIVE_SIMPLE = "llama-speculative-simple"
SPECULATIVE = "llama-speculative"
LOOKUP = "llama-lookup"
SERVER = "llama-server"

# Drafting depths; 3 is the default of this llama.cpp.
N_MAX = (2, 3, 4, 6, 8, 12, 16, 32)
P_MIN = (0.0, 0.5, 0.75, 0.9)
QUICK_N_MAX = (3, 8)
QUICK_P_MIN = (0.0, 0.75)

# Added to --max-tokens so that so many of the tool's tokens are timed; `parsing` says which those are.
EXTRA_TOKENS = {COMPLETION: 1, SPECULATIVE_SIMPLE: -1, SPECULATIVE: 0, LOOKUP: 0, SERVER: 1}
PARSERS: dict[str, parsing.Parser] = {
    COMPLETION: parsing.completion,
    SPECULATIVE_SIMPLE: parsing.speculative_simple,
    SPECULATIVE: parsing.speculative,
    LOOKUP: parsing.speculative,
}


# --spec-type for a file that drafts.
DRAFT_MODEL = "draft-simple"
_DSPARK = "draft-dspark"  # a DFlash head with a Markov part
# Others by architecture; a model has any other.
_HEADS = {"eagle3": "draft-eagle3", "dflash": "draft-dflash", "gemma4-assistant": "draft-mtp"}
_SPEC_TYPES = {DRAFT_MODEL, _DSPARK, *_HEADS.values()}


def spec_type_of(file: GgufFile) -> str:
    """The value of --spec-type for this draft."""
    if any(tensor.name == MARKOV_BEFORE for tensor in file.tensors):
        return _DSPARK
    return _HEADS.get(file.architecture, DRAFT_MODEL)


@dataclass(frozen=True)
class Row:
    """A tool with one choice of settings."""

    tool: str
    settings: tuple[str, ...] = ()

    def __str__(self) -> str:
        return " ".join((self.tool, *self.settings))


@dataclass(frozen=True)
class Job:
    """What all rows have in common."""

    target: Path
    draft: Path
    max_tokens: int
    temperature: float
    seed: int
    threads: int
    ctx_size: int
    repack: bool
    extra: tuple[str, ...] = ()


PLAIN = Row(COMPLETION)


def rows(
    tool: str,
    quick: bool,
    greedy: bool,
    n_max: Sequence[int],
    p_min: Sequence[float],
    spec_type: str = DRAFT_MODEL,
) -> list[Row]:
    """The settings of a tool that are tried, fewer kinds of them if `quick`, at the depths and least probabilities
    given. spec_type: of the file that drafts; `llama-speculative` knows only models, so a head gets no rows of it.
    """
    if tool == SPECULATIVE_SIMPLE:
        return [Row(tool, ("--spec-type", spec_type, *_depth(n), "--spec-draft-p-min", str(p)))
                for n in n_max for p in p_min]  # fmt: skip
    if tool == SPECULATIVE:
        if spec_type != DRAFT_MODEL:
            return []
        # Greedy sampling leaves its draft one candidate, so that it never branches; one row shows that.
        branches = (1, 4) if quick or greedy else (1, 2, 4, 8)
        return [Row(tool, (*_depth(n), "--parallel", str(branch))) for n in n_max for branch in branches]
    if tool == LOOKUP:
        return [Row(tool, _depth(n)) for n in n_max]
    return _server_rows(n_max, p_min, quick, spec_type)


def length_and_p_min(settings: Sequence[str]) -> tuple[str, str]:
    """The depth and the least probability of a chain. Raises ValueError for settings without them."""
    length, p_min = (settings[settings.index(name) + 1] for name in ("--spec-draft-n-max", "--spec-draft-p-min"))
    return length, p_min


def _depth(n: int) -> tuple[str, ...]:
    return ("--spec-draft-n-max", str(n))


def _server_rows(n_max: Sequence[int], p_min: Sequence[float], quick: bool, spec_type: str) -> list[Row]:
    """Plain, the draft model or head, and the types of drafting from the text itself, from short to long matches."""
    settings: list[tuple[str, ...]] = [()]
    settings += [("--spec-type", spec_type, *_depth(n), "--spec-draft-p-min", str(p))
                 for n in n_max for p in p_min if p in (0.0, 0.75)]  # fmt: skip
    settings.append(("--spec-type", "ngram-cache"))  # always 8 deep
    for kind in ("ngram-simple", "ngram-map-k", "ngram-map-k4v"):
        for match, draft in ((12, 48),) if quick else ((12, 48), (6, 16), (3, 8)):
            settings.append(
                ("--spec-type", kind, f"--spec-{kind}-size-n", str(match), f"--spec-{kind}-size-m", str(draft))
            )
    for match, least, most in ((24, 48, 64),) if quick else ((24, 48, 64), (16, 4, 32), (8, 2, 16)):
        settings.append(("--spec-type", "ngram-mod", "--spec-ngram-mod-n-match", str(match),
                         "--spec-ngram-mod-n-min", str(least), "--spec-ngram-mod-n-max", str(most)))  # fmt: skip
    return [Row(SERVER, options) for options in settings]


def needs_draft(row: Row) -> bool:
    """Whether the row is given the draft model or the head."""
    return row.tool in (SPECULATIVE_SIMPLE, SPECULATIVE) or not _SPEC_TYPES.isdisjoint(row.settings)


def options(row: Row, job: Job) -> list[str]:
    """Options of the tool for this row, prompt and number of tokens left out."""
    threads = str(job.threads)
    result = ["--model", str(job.target), "--ctx-size", str(job.ctx_size)]
    result += ["--threads", threads, "--threads-batch", threads, "--repack" if job.repack else "--no-repack"]
    if needs_draft(row):
        result += ["--model-draft", str(job.draft), "--threads-draft", threads, "--threads-batch-draft", threads]
    # Sampling is specrun's; without these options, a model file may bring its own.
    result += ["--temp", str(job.temperature), "--seed", str(job.seed), "--ignore-eos"]
    result += ["--top-k", "40", "--top-p", "0.95", "--min-p", "0.05"]
    return [*result, *row.settings, *job.extra]


def one_shot_command(program: Path, row: Row, job: Job, prompt_file: Path) -> list[str]:
    """A command that writes one answer and ends."""
    # --file would drop a newline at the end of the prompt, and escapes are read as such unless told otherwise.
    text = ["--binary-file", str(prompt_file), "--no-escape", "--predict", str(job.max_tokens + EXTRA_TOKENS[row.tool])]
    plain = (
        ["-no-cnv", "--no-display-prompt", "--simple-io", "--log-prefix", "--log-timestamps"]
        if row.tool == COMPLETION
        else []
    )
    return [str(program), *options(row, job), *text, *plain]
