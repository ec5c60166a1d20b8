"""Speed of llama.cpp's own speculative decoding on the pair, prompts and token counts that specrun is measured on.

    python scripts/peers.py --target T.gguf --draft D.gguf [--prompts FILE.jsonl] [--tools LIST] [-- TOOL OPTIONS...]

Builds llama-completion, llama-speculative-simple, llama-speculative, llama-lookup and llama-server from the source of
the llama-cpp-python that is installed (once, some minutes; needs cmake and a C++ compiler), tries each with a range of
settings and prints tokens/s after the prompt. Prompts are continued as they are, as by `specrun generate --raw`.
Options after -- go to every tool, for example: -- --gpu-layers 20. docs/benchmarks/peers.md says how to read it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from peer_tools import build, tools
from peer_tools.errors import PeerError, ToolError
from peer_tools.parsing import Measured
from peer_tools.running import Runner
from peer_tools.tools import Job, Row

from specrun.bench import KINDS, load, shipped
from specrun.catalog.gguf_file import GgufFile
from specrun.errors import SpecrunError
from specrun.hardware.cpu import usable_cores

USAGE_EXIT_CODE = 2
INTERRUPTED_EXIT_CODE = 130
TOOLS = (tools.SPECULATIVE_SIMPLE, tools.SPECULATIVE, tools.LOOKUP, tools.SERVER)
QUICK_PROMPTS = 2


def measure(runner: Runner, rows: Sequence[Row], prompts: Sequence[str], repetitions: int) -> dict[Row, list[Measured]]:
    """Every row once, then every row again, and so on, so that whatever drifts hits all alike.

    A row that fails is left out, with a note. Raises PeerError if it is plain decoding.
    """
    results: dict[Row, list[Measured]] = {row: [] for row in rows}
    for repetition in range(repetitions):
        left = list(results)
        for number, row in enumerate(left, start=1):
            place = f"{repetition + 1}/{repetitions}, {number}/{len(left)}"
            try:
                measured = runner.run(row, prompts)
            except ToolError as error:
                if row == tools.PLAIN:
                    raise PeerError(f"{row} {error}") from error
                print(f"peers.py: {place}: {row} {error}; left out", file=sys.stderr)
                del results[row]
                continue
            results[row].append(measured)
            print(f"peers.py: {place}: {row}: {measured.rate:.2f} tokens/s", file=sys.stderr)
    return results


def as_objects(results: dict[Row, list[Measured]], job: Job, n_prompts: int) -> list[dict[str, Any]]:
    """The rows of the result, with the fastest of each tool flagged."""
    plain = [measured.rate for measured in results[tools.PLAIN]]
    objects = []
    for row, measured in results.items():
        rates = [one.rate for one in measured]
        objects.append(
            {
                "tool": row.tool,
                "settings": " ".join(row.settings),
                "kind": "peer",
                "tokens_per_second": round(statistics.median(rates), 3),
                "tokens_per_second_spread": [round(min(rates), 3), round(max(rates), 3)],
                "ratio": round(statistics.median(rate / base for rate, base in zip(rates, plain, strict=True)), 4),
                "tokens_per_pass": round(sum(one.tokens for one in measured) / sum(one.passes for one in measured), 3),
                "tokens": measured[0].tokens,
                "prompts": n_prompts,
                "max_tokens": job.max_tokens,
                "temperature": job.temperature,
                "threads": job.threads,
                "repack": job.repack,
                "extra": " ".join(job.extra),
                "repetitions": len(measured),
                "best": False,
            }
        )
    for tool in {row.tool for row in results}:
        best = max((o for o in objects if o["tool"] == tool), key=lambda o: float(str(o["tokens_per_second"])))
        best["best"] = True
    return objects


def as_table(objects: Sequence[dict[str, Any]]) -> str:
    """For people; the fastest setting of each tool has a star."""
    head = ("", "tool", "tokens/s", "(range)", "ratio", "tok/pass", "settings")
    lines = [head]
    for o in objects:
        low, high = o["tokens_per_second_spread"]
        lines.append(
            (
                "*" if o["best"] else "",
                o["tool"],
                f"{o['tokens_per_second']:.2f}",
                f"({low:.2f}-{high:.2f})",
                f"{o['ratio']:.2f}",
                f"{o['tokens_per_pass']:.2f}",
                o["settings"],
            )
        )
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    numbers = range(2, 6)
    cells = [[c.rjust(w) if i in numbers else c.ljust(w) for i, (c, w) in enumerate(zip(line, widths, strict=True))]
             for line in lines]  # fmt: skip
    return "\n".join("  ".join(line).rstrip() for line in cells)


def chosen_tools(text: str) -> list[str]:
    """The tools of a comma-separated list, with or without their "llama-"."""
    names = [f"llama-{name.strip().removeprefix('llama-')}" for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in TOOLS]
    if unknown or not names:
        raise PeerError(f"--tools is a list of {', '.join(TOOLS)}; got {text!r}")
    return names


def listed(kind: Callable[[str], Any]) -> Callable[[str], tuple[Any, ...]]:
    """Reads a comma-separated list of numbers."""

    def read(text: str) -> tuple[Any, ...]:
        return tuple(kind(part) for part in text.split(","))

    return read


def prompts_of(kinds: str) -> list[str]:
    """What `specrun bench` measures on: the shipped prompts of these kinds, but the first of each."""
    wanted = kinds.split(",")
    if unknown := [kind for kind in wanted if kind not in KINDS]:
        raise PeerError(f"--kinds is a list of {', '.join(KINDS)}; got {unknown[0]!r}")
    return [prompt.text for kind in wanted for prompt in shipped((kind,))[1:]]


def arguments() -> argparse.Namespace:
    """The options, checked as far as each can be on its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--target", type=Path, metavar="GGUF", help="the model that writes")
    add("--draft", type=Path, metavar="GGUF", help="the model or the head that drafts")
    add("--prompts", type=Path, metavar="FILE", help='JSONL of {"prompt": ...}; default: those of specrun bench')
    add(
        "--kinds",
        default=",".join(KINDS),
        metavar="LIST",
        help="kinds of the prompts of specrun bench: all but the first of each, which specrun bench chooses on",
    )
    add("--tools", default=",".join(TOOLS), metavar="LIST", help="which to measure beside plain decoding")
    add("--depths", type=listed(int), metavar="LIST", help="drafting depths that are tried")
    add("--p-min", type=listed(float), metavar="LIST", help="least draft probabilities that are tried")
    add("--max-tokens", "-n", type=int, default=64, metavar="N", help="tokens written and timed per prompt")
    add("--temp", type=float, default=0.0, metavar="T", help="0 is greedy")
    add("--seed", type=int, default=0, metavar="S")
    add("--threads", type=int, default=usable_cores(), metavar="N")
    add("--ctx-size", type=int, default=4096, metavar="N")
    add("--repeat", type=int, default=3, metavar="N", help="repetitions of every row")
    add("--no-repack", action="store_true", help="llama.cpp's option: do not re-order weights for this CPU")
    add("--quick", action="store_true", help=f"few settings, {QUICK_PROMPTS} prompts, one repetition")
    add("--output", "-o", choices=("table", "json"), default="table")
    add("--build-dir", type=Path, metavar="DIR", help="where the tools are, or are built")
    add("--jobs", type=int, default=usable_cores(), metavar="N", help="of the compiler, in parallel")
    add("--build-only", action="store_true", help="only build the tools")
    given, extra = sys.argv[1:], []
    if "--" in given:
        extra = given[given.index("--") + 1 :]
        given = given[: given.index("--")]
    options = parser.parse_args(given)
    options.extra = tuple(extra)
    return options


def compare(options: argparse.Namespace) -> None:
    """All of it, from the options to stdout."""
    names = chosen_tools(options.tools)
    if options.max_tokens < 2 or options.repeat < 1 or options.threads < 1 or options.jobs < 1:
        raise PeerError("--max-tokens must be 2 or more, --repeat, --threads and --jobs 1 or more")
    if not options.build_only:
        for option, path in (("--target", options.target), ("--draft", options.draft)):
            if path is None or not path.is_file():
                raise PeerError(f"{option} must name a GGUF file; got {path or 'nothing'}")
    prompts = [p.text for p in load(options.prompts)] if options.prompts else prompts_of(options.kinds)
    prompts = prompts[: QUICK_PROMPTS if options.quick else None]
    folder = options.build_dir or build.default_folder()
    programs = build.programs(folder.absolute(), [tools.COMPLETION, *names], options.jobs)
    if options.build_only:
        print(*programs.values(), sep="\n")
        return
    job = Job(options.target.absolute(), options.draft.absolute(), options.max_tokens, options.temp, options.seed,
              options.threads, options.ctx_size, not options.no_repack, options.extra)  # fmt: skip
    depths = options.depths or (tools.QUICK_N_MAX if options.quick else tools.N_MAX)
    p_min = options.p_min or (tools.QUICK_P_MIN if options.quick else tools.P_MIN)
    spec_type = tools.spec_type_of(GgufFile.read(options.draft))
    tried = (tools.rows(name, options.quick, options.temp == 0, depths, p_min, spec_type) for name in names)
    rows = [tools.PLAIN, *(row for of_tool in tried for row in of_tool)]
    with tempfile.TemporaryDirectory() as scratch:
        runner = Runner(programs, job, Path(scratch))
        measure(runner, [tools.PLAIN], prompts[:1], 1)  # reads the file and wakes the machine
        results = measure(runner, rows, prompts, 1 if options.quick else options.repeat)
    objects = as_objects(results, job, len(prompts))
    print(json.dumps(objects, indent=1) if options.output == "json" else as_table(objects))


def main() -> int:
    try:
        compare(arguments())
    except (PeerError, SpecrunError, OSError) as error:
        print(f"peers.py: {error}", file=sys.stderr)
        return USAGE_EXIT_CODE
    except KeyboardInterrupt:
        return INTERRUPTED_EXIT_CODE
    return 0


if __name__ == "__main__":
    sys.exit(main())
