"""A request for text: the one value that goes from the command line or the Python API down to the decode loop."""

from __future__ import annotations

from dataclasses import dataclass, field

from specrun.constraints import read_grammar
from specrun.constraints.trigger import Trigger
from specrun.llama.grammar import check_grammar
from specrun.options.sampling_options import SamplingOptions, sampling_parameters, settled_max_tokens
from specrun.sampling import SamplingParameters


@dataclass(frozen=True)
class Request:
    """What to write.

    prompt: token ids to continue.
    sampling: how tokens are chosen.
    max_tokens: most tokens to write; None is no limit.
    stops: the answer ends before the first of these texts.
    gbnf: the grammar that the answer must match, in GBNF; None allows every text.
    trigger: where in the answer the grammar begins to apply; None is its beginning.
    shown: control tokens whose names are part of the text, for models that mark parts of an answer with them.
    ignore_eos: whether end-of-generation tokens count as text and do not end it.
    logprobs: number of likeliest tokens whose log-probability is reported with each written token's own; None reports
        none at all.
    """

    prompt: list[int] = field(default_factory=list)
    sampling: SamplingParameters = field(default_factory=SamplingParameters)
    max_tokens: int | None = None
    stops: tuple[str, ...] = ()
    gbnf: str | None = None
    trigger: Trigger | None = None
    shown: frozenset[int] = frozenset()
    ignore_eos: bool = False
    logprobs: int | None = None


def make_request(options: SamplingOptions) -> Request:
    """The request that the options describe, without a prompt. Grammar files are read and checked.

    Raises UsageError for values outside their range, and for files that are not a grammar or a schema.
    """
    sampling = sampling_parameters(options, options.temp)
    stops = (options.stop,) if isinstance(options.stop, str) else tuple(options.stop or ())
    gbnf = check_grammar(read_grammar(options.grammar, options.json_schema))
    return Request([], sampling, settled_max_tokens(options.max_tokens, "--max-tokens"), stops, gbnf)
