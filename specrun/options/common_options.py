"""Options that several commands share. Where llama.cpp has an option for the same thing, ours has its name."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from specrun.errors import UsageError

if TYPE_CHECKING:
    from specrun.sampling import SamplingParameters

MODELS = "Models"
SPECULATION = "Speculation"
SAMPLING = "Sampling"

Speculate = Literal["auto", "off", "chain", "tree"]

Target = Annotated[
    str | None,
    typer.Option(
        "--target",
        "-m",
        envvar="SPECRUN_TARGET",
        metavar="MODEL",
        help="Whose text you want: a name of `specrun models list`, org/repo:QUANT, or a GGUF file. "
        "Without it: the embedded demo pair.",
        show_default=False,
        rich_help_panel=MODELS,
    ),
]
Draft = Annotated[
    str | None,
    typer.Option(
        "--draft",
        "-md",
        envvar="SPECRUN_DRAFT",
        metavar="MODEL",
        help="A small model with the same tokenizer; none does without. By default the one the catalog recommends.",
        show_default=False,
        rich_help_panel=MODELS,
    ),
]
Pull = Annotated[
    bool,
    typer.Option("--pull", "--yes", "-y", help="Fetch missing models without asking.", rich_help_panel=MODELS),
]
Method = Annotated[
    str | None,
    typer.Option(
        "--method",
        metavar="NAME",
        help="How to draft and accept, by a name of `specrun methods`.",
        show_default=False,
        rich_help_panel=SPECULATION,
    ),
]
GrowthMap = Annotated[
    Path | None,
    typer.Option(
        "--growth-map",
        metavar="FILE",
        help="The tree's shape for Sequoia's methods, of `specrun methods growth-map`; by default measured.",
        show_default=False,
        rich_help_panel=SPECULATION,
    ),
]
Datastore = Annotated[
    Path | None,
    typer.Option(
        "--datastore",
        metavar="FILE",
        help="Draft from these files, too: a file of `specrun datastore`.",
        show_default=False,
        rich_help_panel=SPECULATION,
    ),
]
History = Annotated[
    bool,
    typer.Option(
        "--history",
        help="Draft from earlier sessions with --history, too, and keep this one (texts stay on this machine).",
        rich_help_panel=SPECULATION,
    ),
]
Overlap = Annotated[
    bool | None,
    typer.Option(
        "--overlap/--no-overlap",
        help="Draft on while the target's pass runs, or never; by default where `specrun tune` found that it pays.",
        show_default=False,
        rich_help_panel=SPECULATION,
    ),
]
SpeculateOption = Annotated[
    Speculate,
    typer.Option(help="How to draft. The text is the same with all of them.", rich_help_panel=SPECULATION),
]
Budget = Annotated[
    int | None,
    typer.Option(metavar="N", help="Nodes of a tree, root included; 16 by default.", rich_help_panel=SPECULATION),
]
Depth = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Most drafted tokens in a row; by default 8 in a tree, 4 in a chain.",
        rich_help_panel=SPECULATION,
    ),
]
MaxTokens = Annotated[
    int | None,
    typer.Option(
        "--max-tokens",
        "-n",
        "--predict",
        metavar="N",
        help="Most tokens to write; by default until the model ends its text, or the context is full.",
        rich_help_panel=SAMPLING,
    ),
]
Temperature = Annotated[
    float, typer.Option("--temp", metavar="T", help="Temperature; 0 is greedy.", rich_help_panel=SAMPLING)
]
TopK = Annotated[int, typer.Option("--top-k", metavar="K", help="0 is off.", rich_help_panel=SAMPLING)]
TopP = Annotated[float, typer.Option("--top-p", metavar="P", help="1 is off.", rich_help_panel=SAMPLING)]
MinP = Annotated[float, typer.Option("--min-p", metavar="P", help="0 is off.", rich_help_panel=SAMPLING)]
RepeatPenalty = Annotated[
    float, typer.Option("--repeat-penalty", metavar="R", help="1 is off.", rich_help_panel=SAMPLING)
]
PresencePenalty = Annotated[
    float, typer.Option("--presence-penalty", metavar="R", help="0 is off.", rich_help_panel=SAMPLING)
]
FrequencyPenalty = Annotated[
    float, typer.Option("--frequency-penalty", metavar="R", help="0 is off.", rich_help_panel=SAMPLING)
]
RepeatLastN = Annotated[
    int, typer.Option("--repeat-last-n", metavar="N", help="Tokens that penalties look at.", rich_help_panel=SAMPLING)
]
Seed = Annotated[
    int,
    typer.Option("--seed", "-s", metavar="N", help="Same seed, same text; -1 is random.", rich_help_panel=SAMPLING),
]
Stop = Annotated[
    list[str] | None,
    typer.Option(
        "--stop",
        "-r",
        metavar="TEXT",
        help="End before this text; may be given several times.",
        show_default=False,
        rich_help_panel=SAMPLING,
    ),
]
GrammarFile = Annotated[
    Path | None,
    typer.Option(
        "--grammar",
        metavar="FILE",
        help="Write only what this GBNF grammar allows.",
        show_default=False,
        rich_help_panel=SAMPLING,
    ),
]
JsonSchemaFile = Annotated[
    Path | None,
    typer.Option(
        "--json-schema",
        metavar="FILE",
        help="Write only JSON that this schema accepts.",
        show_default=False,
        rich_help_panel=SAMPLING,
    ),
]


def sampling_parameters(
    temp: float,
    top_k: int,
    top_p: float,
    min_p: float,
    repeat_penalty: float,
    presence_penalty: float,
    frequency_penalty: float,
    repeat_last_n: int,
    seed: int,
) -> SamplingParameters:
    """The sampling options as one value; raises UsageError for one outside its range."""
    from specrun.sampling import SamplingParameters

    return SamplingParameters(
        temperature=temp,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repeat_penalty=repeat_penalty,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        repeat_last_n=repeat_last_n,
        seed=secrets.randbits(63) if seed == -1 else seed,
    )


def check_max_tokens(max_tokens: int | None) -> int | None:
    """`--max-tokens`, with llama.cpp's -1 read as no limit. Raises UsageError for 0 and other negatives."""
    if max_tokens is None or max_tokens == -1:
        return None
    if max_tokens < 1:
        raise UsageError(f"--max-tokens must be 1 or more (-1 is no limit); got {max_tokens}")
    return max_tokens
