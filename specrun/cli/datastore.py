"""`specrun datastore`: indexes text files for drafting from them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from specrun.display_text import size_text
from specrun.long_run import left_text
from specrun.options.speculation_options import Target
from specrun.views import output


def datastore(
    files: Annotated[list[Path], typer.Argument(metavar="FILES", help="UTF-8 text files.", show_default=False)],
    save: Annotated[Path, typer.Option("--save", metavar="FILE", help="The datastore to write.", show_default=False)],
    target: Target = None,
) -> None:
    """Index text files, to draft answers with similar passages from them.

    --datastore drafts from it beside the draft model, and --method rest from it alone.

    A datastore works with the tokenizer of one target only. It takes 8 bytes per token on disk, and is mapped into
    memory, not loaded.
    """
    from specrun.catalog.gguf_file import GgufFile
    from specrun.catalog.pairs import check_tokenizer
    from specrun.catalog.resolve import local_pair
    from specrun.cli.pulling import AskingFetcher
    from specrun.engine import run_sources as sources
    from specrun.engine.source_files import datastore_file as store
    from specrun.llama import LlamaModel
    from specrun.llama_settings import UNDECIDED

    path, _ = local_pair(target, "none", drafting=False, fetcher=AskingFetcher(pull=False), note=output.note)
    check_tokenizer(GgufFile.read(path))
    with LlamaModel(path, UNDECIDED) as model, output.progress() as show:

        def tokenize(text: str) -> list[int]:
            return model.tokenize(text, add_special=False, parse_special=False)

        started = time.perf_counter()

        def progress(n_read: int, n_bytes: int) -> None:
            left = (time.perf_counter() - started) * (n_bytes - n_read) / max(n_read, 1)
            text = f"reading, {size_text(n_read)} of {size_text(n_bytes)}{left_text(left)}"
            show(text if n_read < n_bytes else "sorting; a million tokens take about half a second")

        n_tokens = store.build(save, files, tokenize, sources.fingerprint(model), progress)
    output.note(f"wrote {save}: {n_tokens} tokens of {len(files)} file{'s' if len(files) > 1 else ''}")
