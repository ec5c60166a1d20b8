"""Many prompts: `specrun generate --jsonl` one by one and several at a time, in turn, on the same prompts.

    python scripts/bench_batch.py --target FILE --draft FILE [--prompts 32] [-n 64] [--cap SIZE] [--ways LIST]
                                  [--peer OPTIONS]... [--limit SECONDS] [--json]

The prompts are cut from specrun's own, 60 to 600 tokens each. Every run is a process of its own with an empty data
folder, so loading and the checks of a first run (some 10 s) are in its time; `off` is plain decoding one by one, and
`llama-server` llama.cpp's own server with 8 slots (`peers.py` says where it is from). Each --peer is a further row of
it with these options, as in --peer="-nr -b 64 -ub 64 --no-warmup -c 4096"; all slots share -c. --cap runs a way under
scripts/capped.py, so that weights are streamed, and tells what was read. A way that fails or takes longer than --limit
has a row that says so. A line on stderr says which texts differ from those of the first way, as passes of another size
may have other last bits (docs/exactness.md).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from itertools import cycle
from pathlib import Path
from typing import Any

from capped import bytes_read
from peer_tools import build, tools

from specrun import bench
from specrun.decoding import calibration_texts
from specrun.hardware.cpu import usable_cores

WAYS = {
    "off": ["--parallel", "1", "--speculate", "off"],
    "one by one": ["--parallel", "1"],
    "2 at a time": ["--parallel", "2"],
    "8 at a time": ["--parallel", "8"],
    "auto": [],
}
PEER = "llama-server"  # with as many slots as `peer_tools.many` says, without drafting
_TIMED_OUT, _PATIENCE_S = 124, 10  # as `timeout` says it; seconds for a way to end when it is asked to
LEAST, MOST = 240, 2400  # characters of a prompt: about 60 and 600 tokens


def prompts(n: int, longest: int) -> list[str]:
    """Prompts of lengths that rise evenly up to `longest` characters, from texts of all kinds."""
    shipped = [text.prompt for use in ("calibrate", "validate") for text in calibration_texts.shipped(use)]  # type: ignore[arg-type]
    texts = cycle([*shipped, *(prompt.text for prompt in bench.shipped())])
    found = []
    for i in range(n):
        length, prompt = LEAST + (longest - LEAST) * i // max(n - 1, 1), ""
        while len(prompt) < length:
            prompt += f"{next(texts)}\n\n"
        found.append(prompt[:length].strip())
    return found


def run(way: str, asked: list[str], given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """What a run took, and its texts; only why there are none, if it failed."""
    out = folder / "answers.jsonl"
    out.unlink(missing_ok=True)
    if way.startswith(PEER):
        job = {"target": str(given.target.absolute()), "draft": str(given.draft.absolute()), "n": given.n, "c": given.c}
        job["options"] = shlex.split(way.removeprefix(PEER))
        sent = json.dumps({**job, "build_dir": str(given.build_dir.absolute()), "prompts": asked})
        command = [sys.executable, "-c", "import sys; from peer_tools import many; many.main(sys.stdin.read())"]
    else:
        sent = "".join(json.dumps({"prompt": prompt}) + "\n" for prompt in asked)
        command = [sys.executable, "-m", "specrun", "generate", "--jsonl", "--raw", "--temp", "0", "-n", str(given.n)]
        command += [
            "-c",
            str(given.c),
            "-m",
            str(given.target),
            "--draft",
            str(given.draft),
            "-o",
            str(out),
            *WAYS[way],
        ]
    if given.cap:
        capped = [sys.executable, str(Path(__file__).with_name("capped.py")), given.cap, "--evict", str(given.target)]
        command = [*capped, "--", *command]
    paths = [str(Path(__file__).parent), str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    data = folder / f"data {shlex.quote(way)}"
    environment = os.environ | {"SPECRUN_DATA_DIR": str(data), "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    started = time.monotonic()
    code, stdout, stderr = _ended(command, sent, environment, given.limit)
    seconds = time.monotonic() - started
    if code:
        why = f"over {given.limit:.0f} s" if code == _TIMED_OUT else "failed"
        print(f"bench_batch.py: {way}: {why}: {stderr[-1000:]}", file=sys.stderr)
        return {"way": way, "failed": why}
    if way.startswith(PEER):  # without the time in which the program was compiled
        seconds, answers = json.loads(stdout)
        texts, prompt_tokens = [one["tokens"] for one in answers], sum(one["tokens_evaluated"] for one in answers)
        ram_bytes = 0
    else:
        answers = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
        texts, prompt_tokens = [one["token_ids"] for one in answers], sum(one["prompt_tokens"] for one in answers)
        ram_bytes = max(one["memory"]["ram_bytes"] for one in answers)
    n_tokens, read = sum(map(len, texts)), bytes_read(stderr)
    return {
        "way": way,
        "seconds": round(seconds, 1),
        "tokens": n_tokens,
        "prompt_tokens": prompt_tokens,
        "tokens_per_second": round(n_tokens / seconds, 2),
        "ram_bytes": ram_bytes,
        "bytes_read_per_token": round(read / n_tokens) if read else 0,
        "texts": texts,
    }


def _ended(command: list[str], sent: str, environment: dict[str, str], limit: float) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command. All its processes are ended after `limit` seconds."""
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8",
        env=environment, start_new_session=True,
    )  # fmt: skip
    try:
        stdout, stderr = process.communicate(sent, timeout=limit)
        return process.returncode, stdout, stderr
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGTERM)  # first, so that capped.py removes its group
        time.sleep(_PATIENCE_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        return _TIMED_OUT, *process.communicate()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--draft", type=Path, required=True)
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--longest", type=int, default=MOST, help="characters of the longest prompt")
    parser.add_argument("-c", type=int, default=4096, help="tokens of prompt and answer")
    parser.add_argument("-n", type=int, default=64, help="tokens of each answer")
    parser.add_argument("--cap", default="", help="memory, as 900M, so that weights are streamed")
    parser.add_argument("--ways", default=",".join(WAYS), help=f"some of these, and {PEER}")
    parser.add_argument("--peer", action="append", default=[], metavar="OPTIONS", help=f"a row of {PEER} with these")
    parser.add_argument("--limit", type=float, default=3600, help="seconds for each way")
    parser.add_argument("--build-dir", type=Path, default=build.default_folder(), help=f"where {PEER} is, or is built")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    asked = prompts(given.prompts, given.longest)
    ways = [*filter(None, given.ways.split(",")), *(f"{PEER} {options}" for options in given.peer)]
    if any(way.startswith(PEER) for way in ways):
        build.programs(given.build_dir, [tools.SERVER], usable_cores())
    with tempfile.TemporaryDirectory() as name:
        rows = [run(way, asked, given, Path(name)) for way in ways]
    written = [(row["way"], row.pop("texts")) for row in rows if "texts" in row]
    for way, texts in written[1:]:
        others = [i for i, (text, other) in enumerate(zip(written[0][1], texts, strict=True)) if text != other]
        if others:
            print(f"bench_batch.py: {way}: other texts than {written[0][0]}: {others}", file=sys.stderr)
    if given.json:
        print(json.dumps(rows, indent=1))
        return
    print("| | seconds | tokens/s of all | memory, GB | read a token, MB |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for row in rows:
        if "failed" in row:
            print(f"| {row['way']} | {row['failed']} | | | |")
            continue
        memory, read = row["ram_bytes"] / 1e9, row["bytes_read_per_token"] / 1e6
        print(f"| {row['way']} | {row['seconds']} | {row['tokens_per_second']} | {memory:.2f} | {read:.0f} |")


if __name__ == "__main__":
    main()
