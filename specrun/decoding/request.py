"""A request for text: the single value that goes from the command line or the Python API down to the decode loop."""

from __future__ import annotations

from dataclasses import dataclass, field

from specrun.constraints import read_grammar, source_of
from specrun.constraints.rules import Trigger
from specrun.errors import UsageError
from specrun.llama.grammar import check_grammar
from specrun.options.sampling_options import SamplingOptions, sampling_parameters, settled_max_tokens
from specrun.sampling import SamplingParameters


@dataclass(frozen=True)
class Request:
    """What to write."""

    prompt: list[int] = field(default_factory=list)  # token ids to continue
    sampling: SamplingParameters = field(default_factory=SamplingParameters)
    max_tokens: int | None = None  # most tokens to write; None is no limit
    stops: tuple[str, ...] = ()  # the answer ends before the first of these texts
    gbnf: str | None = None  # the grammar that the answer must match; None allows every text
    trigger: Trigger | None = None  # where in the answer the grammar begins to apply; None is its beginning
    shown: frozenset[int] = frozenset()  # control tokens that mark parts of an answer, and whose names are in the text
    ignore_eos: bool = False  # whether end-of-generation tokens count as text and do not end it
    # How many of the likeliest tokens are reported with each written token, with log-probabilities; None is no report.
    logprobs: int | None = None


def make_request(options: SamplingOptions) -> Request:
    """The request that the options describe, without a prompt. Raises UsageError for bad values and grammar files."""
    sampling = sampling_parameters(options, options.temp)
    stops = (options.stop,) if isinstance(options.stop, str) else tuple(options.stop or ())
    if "" in stops:
        raise UsageError("--stop is an empty text, before which every answer ends; leave it out")
    gbnf = read_grammar(options.grammar, options.json_schema)
    try:
        gbnf = check_grammar(gbnf)
    except UsageError as error:
        raise UsageError(f"{source_of(options.grammar, options.json_schema)}: {error}") from error
    return Request([], sampling, settled_max_tokens(options.max_tokens, "--max-tokens"), stops, gbnf)
