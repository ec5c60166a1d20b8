"""Many prompts: `specrun generate --jsonl` one by one and several at a time, in turn, on the same prompts.

    python scripts/bench_batch.py --target FILE --draft FILE [--prompts 32] [-n 64] [--cap SIZE] [--ways LIST] [--json]

The prompts are cut from specrun's own, 60 to 600 tokens each. Every run is a process of its own with an empty data
folder, so loading and the checks of a first run (some 10 s) are in its time; `off` is plain decoding one by one. --cap
runs it under scripts/capped.py, so that weights are streamed, and tells what was read. A line on stderr says which
texts differ from those of the first way, as passes of another size may have other last bits (docs/exactness.md).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from itertools import cycle
from pathlib import Path
from typing import Any

from capped import bytes_read

from specrun.bench import bench_prompts
from specrun.engine import calibration_texts

WAYS = {
    "off": ["--parallel", "1", "--speculate", "off"],
    "one by one": ["--parallel", "1"],
    "2 at a time": ["--parallel", "2"],
    "8 at a time": ["--parallel", "8"],
    "auto": [],
}
LEAST, MOST = 240, 2400  # characters of a prompt: about 60 and 600 tokens


def prompts(n: int, longest: int) -> list[str]:
    """Prompts of lengths that rise evenly up to `longest` characters, from texts of all kinds."""
    shipped = [text.prompt for use in ("calibrate", "validate") for text in calibration_texts.shipped(use)]  # type: ignore[arg-type]
    texts = cycle([*shipped, *(prompt.text for prompt in bench_prompts.shipped())])
    found = []
    for i in range(n):
        length, prompt = LEAST + (longest - LEAST) * i // max(n - 1, 1), ""
        while len(prompt) < length:
            prompt += f"{next(texts)}\n\n"
        found.append(prompt[:length].strip())
    return found


def run(way: str, lines: str, given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """What a run took, and its texts."""
    out = folder / f"{way}.jsonl"
    command = [
        sys.executable,
        "-m",
        "specrun",
        "generate",
        "--jsonl",
        "--raw",
        "--temp",
        "0",
        "-n",
        str(given.n),
        "-c",
        str(given.c),
    ]
    command += ["-m", str(given.target), "--draft", str(given.draft), "-o", str(out), *WAYS[way]]
    if given.cap:
        capped = [sys.executable, str(Path(__file__).with_name("capped.py")), given.cap, "--evict", str(given.target)]
        command = [*capped, "--", *command]
    environment = {"SPECRUN_DATA_DIR": str(folder / f"data {way}")}
    started = time.monotonic()

    done = subprocess.run(
        command, input=lines, capture_output=True, encoding="utf-8", env=os.environ | environment, check=False
    )
    seconds = time.monotonic() - started
    if done.returncode:
        raise SystemExit(f"{way}: {done.stderr}")
    answers = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    n_tokens = sum(answer["completion_tokens"] for answer in answers)
    read = bytes_read(done.stderr)
    return {
        "way": way,
        "seconds": round(seconds, 1),
        "tokens": n_tokens,
        "prompt_tokens": sum(answer["prompt_tokens"] for answer in answers),
        "tokens_per_second": round(n_tokens / seconds, 2),
        "ram_bytes": max(answer["memory"]["ram_bytes"] for answer in answers),
        "bytes_read_per_token": round(read / n_tokens) if read else 0,
        "texts": [answer["token_ids"] for answer in answers],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--draft", type=Path, required=True)
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--longest", type=int, default=MOST, help="characters of the longest prompt")
    parser.add_argument("-c", type=int, default=4096, help="tokens of prompt and answer")
    parser.add_argument("-n", type=int, default=64, help="tokens of each answer")
    parser.add_argument("--cap", default="", help="memory, as 900M, so that weights are streamed")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    lines = "".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts(given.prompts, given.longest))
    with tempfile.TemporaryDirectory() as name:
        rows = [run(way, lines, given, Path(name)) for way in given.ways.split(",")]
    first = rows[0].pop("texts")
    for row in rows[1:]:
        others = [i for i, (text, other) in enumerate(zip(first, row.pop("texts"), strict=True)) if text != other]
        if others:
            print(f"bench_batch.py: {row['way']}: other texts than {rows[0]['way']}: {others}", file=sys.stderr)
    if given.json:
        print(json.dumps(rows, indent=1))
        return
    print("| | seconds | tokens/s of all | memory, GB | read a token, MB |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for row in rows:
        memory, read = row["ram_bytes"] / 1e9, row["bytes_read_per_token"] / 1e6
        print(f"| {row['way']} | {row['seconds']} | {row['tokens_per_second']} | {memory:.2f} | {read:.0f} |")


if __name__ == "__main__":
    main()
