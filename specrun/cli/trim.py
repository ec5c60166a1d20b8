"""`specrun models trim`: writes a draft with fewer tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from specrun.display_text import size_text
from specrun.options import completion
from specrun.views import output

_DRAFT_HELP = "Alias, org/repo:QUANT or GGUF file of a draft model."


def trim(
    draft: Annotated[str, typer.Argument(metavar="DRAFT", help=_DRAFT_HELP, autocompletion=completion.here)],
    vocab: Annotated[int, typer.Option("--vocab", metavar="N", help="Tokens to keep.")],
    file: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="File of the trimmed draft.")],
) -> None:
    """Write a draft with fewer tokens in its vocabulary, whose passes are shorter. Give it as --draft.

    The text stays the target's own: what the trimmed draft never proposes, the target writes by itself.
    """
    from specrun.catalog import resolve
    from specrun.catalog.gguf_file import GgufFile
    from specrun.making.make import check_output
    from specrun.making.trimming import trim

    path = resolve.local_path(draft)
    check_output(file.absolute())
    tokens = trim(path, vocab, file)
    whole, trimmed = GgufFile.read(path), GgufFile.read(file)
    output.note(
        f"{file} has {len(tokens):,} of {whole.n_vocab:,} tokens, and an output matrix of "
        f"{size_text(trimmed.output_bytes)} instead of {size_text(whole.output_bytes)}; give it as --draft"
    )
