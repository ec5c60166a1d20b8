"""Time passes of a target alone, and what they read from storage, as one line of JSON.

    python scripts/time_passes.py TARGET.gguf [--residency auto|off] [--sizes 1,64] [-t THREADS] [-c CTX] [--repeat 5]

With scripts/capped.py in front this is what a pass costs under a memory cap. Passes of all sizes take turns; the
medians are given. Each pass has other tokens, because in a mixture the same ones would choose the same experts. Bytes
are those that this process had read from storage, by page faults or by specrun.
"""

from __future__ import annotations

import argparse
import json
import mmap
import re
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from specrun.decoding import calibration_texts as texts
from specrun.hardware.cpu import usable_cores
from specrun.llama import TargetContext
from specrun.llama.streaming.weight_file import WeightFile
from specrun.llama_settings import LlamaSettings
from specrun.loading.model import Model
from specrun.loading.run_options import RunOptions
from specrun.speculation.drafters.specexec import SPECEXEC
from specrun.speculation.method import OFF
from specrun.speculation.tree import TokenTree

CONTEXT = 64  # tokens after which passes are timed
N_READERS, REQUEST, MEASURED = 4, 4 * 2**20, 2**30  # threads, bytes of a request, bytes read to measure a disk


def bytes_read() -> int:
    """Bytes that this process had read from storage so far; 0 where the system does not say."""
    try:
        found = re.search(r"^read_bytes: (\d+)$", Path("/proc/self/io").read_text(), re.MULTILINE)
    except OSError:
        return 0
    return int(found[1]) if found else 0


def disk_rate(path: Path) -> float | None:
    """Bytes a second that several readers get from storage together; None where reads go through the page cache."""
    file = WeightFile(path)
    try:
        if not file.is_direct:
            return None
        n_bytes = min(file.n_bytes, MEASURED) // REQUEST * REQUEST
        with mmap.mmap(-1, N_READERS * REQUEST) as memory, ThreadPoolExecutor(N_READERS) as pool:

            def read(reader: int) -> None:
                into = memoryview(memory)[reader * REQUEST : (reader + 1) * REQUEST]
                for offset in range(reader * REQUEST, n_bytes, N_READERS * REQUEST):
                    file.read(into, offset)
                into.release()

            started = time.perf_counter()
            list(pool.map(read, range(N_READERS)))
            return n_bytes / (time.perf_counter() - started)
    finally:
        file.close()


def timed(target: TargetContext, tokens: Sequence[int], n: int) -> float:
    """Milliseconds of a pass over the last committed token and `n` - 1 others. One token is committed."""
    start = 7 * len(target.tokens) * n % (len(tokens) - n)
    tree = TokenTree.chain([target.tokens[-1], *tokens[start : start + n - 1]])
    started = time.perf_counter()
    target.score(tree)
    seconds = time.perf_counter() - started
    target.commit(tree, [0], tokens[start + n - 1])
    return seconds * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path)
    parser.add_argument("--residency", choices=("auto", "off"), default="auto")
    parser.add_argument("--sizes", default="1,64", metavar="LIST", help="tokens of the passes")
    parser.add_argument("--threads", "-t", type=int, default=usable_cores(), metavar="N")
    parser.add_argument("--ctx-size", "-c", type=int, default=1024, metavar="N")
    parser.add_argument("--repeat", type=int, default=5, metavar="N", help="passes of each size")
    given = parser.parse_args()
    sizes = [int(size) for size in given.sizes.split(",")]
    settings = LlamaSettings(threads=given.threads)
    options = RunOptions(
        given.target, None, (OFF.plan(),), SPECEXEC.plan(max(sizes), 8), given.ctx_size, settings,
        residency=given.residency,
    )  # fmt: skip
    rate = disk_rate(given.target)
    with Model(options) as model:
        tokens = model.llama_model.tokenize(texts.together(), add_special=False)
        target = model.engine.target
        target.set_prompt(tokens[: CONTEXT + 1])
        timed(target, tokens, 1)
        ms: dict[int, list[float]] = {n: [] for n in sizes}
        read: dict[int, list[int]] = {n: [] for n in sizes}
        for _ in range(given.repeat):
            for n in sizes:
                before = bytes_read()
                ms[n].append(timed(target, tokens, n))
                read[n].append(bytes_read() - before)
        held = model.residency
        weights = model.llama_model.n_bytes
    result = {
        "disk_bytes_per_second": rate,
        "weight_bytes": weights,
        "mode": held.mode,
        "resident_bytes": held.resident_bytes,
        "streamed_bytes": held.streamed_bytes,
        "ms": {n: statistics.median(ms[n]) for n in sizes},
        "bytes": {n: statistics.median(read[n]) for n in sizes},
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
