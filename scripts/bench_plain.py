"""specrun's plain decoding beside llama.cpp's, for models so small that our own work between passes shows.

    python scripts/bench_plain.py TARGET.gguf [--temps 0,0.8] [-n 256] [--rounds 12] [-t THREADS]

llama-completion, which is built once (scripts/peers.py), and specrun with speculation off continue the same prompt in
turn, each in a process of its own. Prints the medians of what a token takes with each, of specrun's own work in it, and
of the ratio of two runs in turn, with its quartiles. The pass over the prompt is left out.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from peer_tools import build, tools
from peer_tools.running import Runner
from peer_tools.tools import Job

from specrun.bench import bench_prompts
from specrun.hardware.cpu import usable_cores

CTX_SIZE = 2048


def ours(job: Job, prompt: str) -> tuple[float, float]:
    """Milliseconds of a token, and of specrun's own work in it."""
    command = [sys.executable, "-m", "specrun", "generate", "--target", str(job.target), "--draft", "none", "--raw"]
    command += ["--speculate", "off", "--temp", str(job.temperature), "--seed", str(job.seed), "--json"]
    command += ["-n", str(job.max_tokens), "--ctx-size", str(job.ctx_size), "--threads", str(job.threads), prompt]
    done = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout)
    return 1e3 * done["seconds"] / done["passes"], done["ms_per_pass"]["other"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path)
    parser.add_argument("--temps", default="0,0.8", metavar="LIST")
    parser.add_argument("-n", type=int, default=256, metavar="N", help="tokens of a text")
    parser.add_argument("--rounds", type=int, default=12, metavar="N")
    parser.add_argument("-t", "--threads", type=int, default=usable_cores(), metavar="N")
    asked = parser.parse_args()
    programs = build.programs(build.default_folder(), [tools.COMPLETION], usable_cores())
    prompt = bench_prompts.shipped(("prose",))[0].text
    print("| T | llama.cpp, ms a token | specrun, ms a token | its own work | specrun's rate, times llama.cpp's |")
    print("| ---: | ---: | ---: | ---: | ---: |")
    for temperature in map(float, asked.temps.split(",")):
        job = Job(asked.target, asked.target, asked.n, temperature, 3, asked.threads, CTX_SIZE, repack=True)
        theirs, mine, work = [], [], []
        with tempfile.TemporaryDirectory() as folder:
            runner = Runner(programs, job, Path(folder))
            for _ in range(asked.rounds):
                theirs.append(1e3 / runner.run(tools.PLAIN, [prompt]).rate)
                whole, own = ours(job, prompt)
                mine.append(whole)
                work.append(own)
        low, middle, high = statistics.quantiles([b / a for a, b in zip(mine, theirs, strict=True)], n=4)
        medians = " | ".join(f"{statistics.median(values):.2f}" for values in (theirs, mine, work))
        print(f"| {temperature:g} | {medians} | {middle:.2f} ({low:.2f} to {high:.2f}) |", flush=True)


if __name__ == "__main__":
    main()
