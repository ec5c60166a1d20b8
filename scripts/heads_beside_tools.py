"""What heads of each kind draft with specrun and with llama.cpp's own tool, on the same small files.

    python scripts/heads_beside_tools.py

Makes the small targets and heads of the tests, which have the tensors, metadata and shapes that llama.cpp's converter
writes. Each writes 60 tokens after a prompt, greedily, on one thread: llama-speculative-simple with chains of 4, and
specrun plainly, with chains of 4 and with trees of 16 nodes that are 4 deep. Prints the passes that each took, and ends
with exit code 1 where a text is another one. The tool is built as by scripts/peers.py.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from peer_tools import build, tools

from specrun.catalog.gguf_file import GgufFile
from specrun.sampling import SamplingParameters
from specrun.speculation.drafters.chain import CHAIN
from specrun.speculation.drafters.specexec import SPECEXEC
from specrun.speculation.method import OFF
from tests.dflash_heads import dflash2_pair, random_dspark
from tests.eagle_heads import agreeing_pair
from tests.engines import engine, write
from tests.gemma4 import random_assistant, random_gemma4
from tests.hybrids import random_qwen35, random_qwen35_moe
from tests.mtp_targets import quiet

PROMPT = "def f(x):\n    return x + 1\n\n\ndef g(x, y):\n    if x > y:\n        return f(x)\n"
DEPTH, N_TOKENS = 4, 60
PLANS = {"plain": OFF.plan(), "chain": CHAIN.plan(depth=DEPTH), "tree": SPECEXEC.plan(16, DEPTH)}


def pairs(folder: Path) -> Iterator[tuple[str, Path, Path]]:
    """Name, target and head of each kind."""
    target = random_gemma4(folder / "gemma4.gguf")
    yield "Gemma 4 assistant", target, random_assistant(folder / "assistant.gguf", target)
    yield "DFlash 2 for a llama", *dflash2_pair(folder)
    for name, make in (("qwen35", random_qwen35), ("qwen35moe", random_qwen35_moe)):
        target = quiet(folder / f"{name}.gguf", make(folder / "plain.gguf"))
        yield f"DSpark for {name}", target, random_dspark(folder / f"{name}-head.gguf", target, has_sections=True)
    yield "EAGLE-3 for a llama", *agreeing_pair(folder)


def of_tool(program: Path, target: Path, head: Path, prompt: Path) -> tuple[bytes, int]:
    """The text and the passes of llama.cpp's tool. It ends with the pass that reaches the number of tokens."""
    kind = tools.spec_type_of(GgufFile.read(head))
    row = tools.Row(tools.SPECULATIVE_SIMPLE, ("--spec-type", kind, "--spec-draft-n-max", str(DEPTH)))
    # The K and V types are specrun's on the CPU.
    extra = ("--spec-draft-p-min", "0", "--flash-attn", "on", "--cache-type-v", "bf16")
    job = tools.Job(target, head, N_TOKENS, 0.0, 0, threads=1, ctx_size=512, repack=False, extra=extra)
    done = subprocess.run(tools.one_shot_command(program, row, job, prompt), capture_output=True, check=True)
    numbers = dict(re.findall(rb"(n_predict|n_accept) += +(\d+)", done.stdout + done.stderr))
    n_passes = int(numbers[b"n_predict"]) - int(numbers[b"n_accept"])
    text = done.stdout.lstrip(b"\n").removeprefix(PROMPT.encode()).rstrip(b"\n")
    return text, n_passes


def main() -> int:
    program = build.programs(build.default_folder(), [tools.SPECULATIVE_SIMPLE], 2)[tools.SPECULATIVE_SIMPLE]
    is_same = True
    print("| head | passes of the tool's chain | of specrun's | of specrun's tree | texts |")
    print("| --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "prompt").write_text(PROMPT)
        for kind, target, head in pairs(folder):
            text, n_passes = of_tool(program, target, head, folder / "prompt")
            with engine(target, head, PLANS["tree"], ctx_size=512) as e:
                model, written = e.target.context.model, {}
                for plan_name, plan in PLANS.items():
                    e.reset()
                    tokens = model.tokenize(PROMPT, add_special=True)
                    written[plan_name] = write(e, tokens, SamplingParameters(temperature=0.0), plan, N_TOKENS)
                plain = written["plain"].tokens
                ours = b"".join(model.token_bytes(token) for token in plain)
            n_bytes = min(len(text), len(ours))  # either may have ended a token earlier
            alike = text[:n_bytes] == ours[:n_bytes] and all(one.tokens == plain for one in written.values())
            is_same &= alike
            numbers = " | ".join(str(written[one].n_passes) for one in ("chain", "tree"))
            print(f"| {kind} | {n_passes} | {numbers} | {'the same' if alike else 'OTHERS'} |", flush=True)
    return 0 if is_same else 1


if __name__ == "__main__":
    sys.exit(main())
