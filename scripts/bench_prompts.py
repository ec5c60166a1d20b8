"""How long a prompt takes to be read, from memory, and from disk, and what is on disk.

    python scripts/bench_prompts.py TARGET.gguf DRAFT.gguf [--lengths 1000,4000,8000] [--no-peer] [--build-dir DIR]
    python scripts/capped.py 1G --evict TARGET.gguf -- python scripts/bench_prompts.py ...     # weights are streamed

For each length: the time until the first token where the prompt is read, where the same process has just read it and
written it to disk, and where a new load of the models finds it on disk, out of the page cache; with how long the file
took to be written. The texts of a prompt from memory and from disk must be the same. llama-server (scripts/peers.py
says where it comes from) reads the prompt, saves its slot (`--slot-save-path`) and takes it back. Neither re-orders
weights. The prompts are those of scripts/bench_long_prompts.py. Each is read twice, once by each program, which takes
nearly all of the time.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench_long_prompts import MORE, prompt
from peer_tools import build, tools
from peer_tools.errors import ToolError
from peer_tools.running import Runner, request

import specrun
from specrun.decoding import prompt_folder
from specrun.decoding.completion import Completion
from specrun.decoding.generation import Request
from specrun.hardware.cpu import usable_cores
from specrun.sampling import SamplingParameters

TOKENS = 16  # of a text


def written(model: Any, tokens: list[int]) -> Completion:
    """A greedy text after a prompt."""
    completion: Completion = model.complete(Request(tokens, SamplingParameters(temperature=0.0), TOKENS))
    return completion.run()


def evict(path: Path) -> None:
    """Take a file out of the page cache."""
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def own(target: Path, draft: Path, ctx_size: int, length: int) -> tuple[list[int], str]:
    """The prompt, and cells of the table."""
    # A chain's passes do not depend on measured times, so both texts after a known prompt have the same passes.
    options: dict[str, Any] = {
        "learn": False,
        "ctx_size": ctx_size,
        "prompt_cache": True,
        "repack": False,
        "speculate": "chain",
        "depth": 4,
    }
    prompt_folder.forget()
    with specrun.load(target, draft, **options) as model:
        tokens = prompt(model, "docs", length)
        cold, started = written(model, tokens), time.perf_counter()
        model.prompt_states.close(model.engine)
        writing = time.perf_counter() - started
        warm = written(model, tokens)
    kept = prompt_folder.files()
    if not kept:
        return tokens, f"{cold.statistics.first_token_seconds:.2f} s | not kept, as it does not pay | | |"
    evict(kept[0])
    with specrun.load(target, draft, **options) as model:
        disk = written(model, tokens)
    if warm.token_ids != disk.token_ids:
        raise SystemExit("the texts after a prompt from memory and from disk differ")
    if cold.token_ids != warm.token_ids:
        print(f"{length} tokens: read and kept prompts have other last bits, as their passes differ", file=sys.stderr)
    assert disk.statistics.from_disk
    times = [one.statistics.first_token_seconds for one in (cold, warm, disk)]
    size = kept[0].stat().st_size
    shown = " | ".join(f"{seconds:.2f} s" for seconds in times)
    restored = disk.statistics.from_disk.n_tokens
    return tokens, f"{shown} ({restored} tokens) | {size / 1e6:.0f} MB, written in {writing:.2f} s"


def peer(program: dict[str, Path], target: Path, draft: Path, ctx_size: int, tokens: list[int]) -> str:
    """The same of llama-server."""
    job = tools.Job(target, draft, TOKENS, 0.0, 0, usable_cores(), ctx_size, repack=False)
    body = {"prompt": tokens, "n_predict": 1, "cache_prompt": True, "id_slot": 0}
    with tempfile.TemporaryDirectory() as folder:
        row = tools.Row(tools.SERVER, ("--slot-save-path", folder))
        cells = []
        with Runner(program, job, Path(folder)).server(row) as port:

            def timed(path: str, body: dict[str, Any]) -> float:
                started = time.perf_counter()
                request(port, path, body)
                return time.perf_counter() - started

            cells += [timed("/completion", body), timed("/completion", body)]
            saving = timed("/slots/0?action=save", {"filename": "slot"})
        evict(Path(folder) / "slot")
        size = (Path(folder) / "slot").stat().st_size
        with Runner(program, job, Path(folder)).server(row) as port:
            restoring = timed("/slots/0?action=restore", {"filename": "slot"})
            cells.append(restoring + timed("/completion", body))
    shown = " | ".join(f"{seconds:.2f} s" for seconds in cells)
    return f"{shown} | {size / 1e6:.0f} MB, saved in {saving:.2f} s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path)
    parser.add_argument("draft", type=Path)
    parser.add_argument("--lengths", default="1000,4000,8000", metavar="LIST", help="tokens (%(default)s)")
    parser.add_argument("--no-peer", action="store_true", help="leave out llama-server")
    parser.add_argument("--build-dir", type=Path, default=build.default_folder(), help="where it is, or is built")
    asked = parser.parse_args()
    lengths = [int(length) for length in asked.lengths.split(",")]
    program = {} if asked.no_peer else build.programs(asked.build_dir, [tools.SERVER], usable_cores())
    print("| tokens | | read | in memory | from disk | on disk |")
    print("| ---: | --- | ---: | ---: | ---: | --- |")
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:  # /tmp may be in memory
        os.environ["SPECRUN_CACHE_DIR"] = folder
        for length in lengths:
            tokens, cells = own(asked.target, asked.draft, length + MORE, length)
            print(f"| {len(tokens)} | specrun | {cells} |", flush=True)
            if not asked.no_peer:
                try:
                    cells = peer(program, asked.target, asked.draft, length + MORE, tokens)
                except ToolError as error:  # it has no context that is longer than the target was trained with
                    cells = f"{error} | | |"
                print(f"| {len(tokens)} | llama-server | {cells} |", flush=True)


if __name__ == "__main__":
    main()
