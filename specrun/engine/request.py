"""A request for text: the one value that goes from the command line or the Python API down to the decode loop."""

from __future__ import annotations

from dataclasses import dataclass, field

from specrun.constraints import read_grammar
from specrun.constraints.trigger import Trigger
from specrun.llama.grammar import check_grammar
from specrun.options.sampling_options import SamplingOptions, settled_biases, settled_max_tokens, settled_seed
from specrun.sampling import SamplingParameters


@dataclass(frozen=True)
class Request:
    """What to write.

    prompt: token ids to continue.
    sampling: how tokens are chosen.
    max_tokens: most tokens to write; None is no limit.
    stops: the answer ends before the first of these texts.
    gbnf: the grammar that the answer must match, in GBNF; None allows every text.
    trigger: where in the answer the grammar begins to count; None: at once.
    shown: control tokens whose names are part of the text, for models that mark parts of an answer with them.
    ignore_eos: whether end-of-generation tokens count as text and do not end it.
    logprobs: how many of the likeliest tokens to tell the log-probability of, at each token that is written, besides
        its own; None tells none.
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
    sampling = SamplingParameters(
        temperature=options.temp,
        top_k=options.top_k,
        top_p=options.top_p,
        min_p=options.min_p,
        repeat_penalty=options.repeat_penalty,
        presence_penalty=options.presence_penalty,
        frequency_penalty=options.frequency_penalty,
        repeat_last_n=options.repeat_last_n,
        seed=settled_seed(options.seed),
        logit_bias=settled_biases(options.logit_bias),
    )
    stops = (options.stop,) if isinstance(options.stop, str) else tuple(options.stop or ())
    gbnf = check_grammar(read_grammar(options.grammar, options.json_schema))
    return Request([], sampling, settled_max_tokens(options.max_tokens, "--max-tokens"), stops, gbnf)
