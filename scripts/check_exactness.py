"""Whether text with speculation is the text without it, bit for bit: the long form of tests/decoding/test_exactness.py.

    python scripts/check_exactness.py [--prompts 100] [--max-tokens 128] [--prompt-tokens 40]
    python scripts/check_exactness.py --exact [--type q4_k_m] [--gpu-layers N] [...]

The embedded pair continues code of this Python's standard library, greedily and at temperature 0.8, with plain decoding
and then with each plan. Compared are the tokens and every bit of the logits from which they were sampled. Prints a line
for each plan, with its tokens/s, and ends with code 1 if anything differs. --prompt-tokens 420 --max-tokens 200 checks
long contexts.

--exact pads passes as the option of the commands does. --type takes the embedded target, widened, in another type. With
--gpu-layers (-1 for all) so many layers of the target, and the whole draft, lie on a GPU.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from specrun.catalog import embedded
from specrun.sampling import SamplingParameters
from specrun.speculation.drafters.chain import CHAIN
from specrun.speculation.drafters.cost_aware import ADAPTIVE
from specrun.speculation.drafters.specexec import SPECEXEC
from specrun.speculation.method import OFF, Plan
from tests.engines import Written, engine, first_difference, written_by
from tests.models import light_draft, wide_target

PLANS = (CHAIN.plan(depth=4), SPECEXEC.plan(24, 8), SPECEXEC.plan(100, 10), ADAPTIVE.plan(64, 12, 8))
TEMPERATURES = (0.0, 0.8)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=100, help="number of prompts")
    parser.add_argument("--max-tokens", type=int, default=128, help="tokens to write after each")
    parser.add_argument("--prompt-tokens", type=int, default=40, help="tokens of each prompt")
    parser.add_argument("--exact", action="store_true", help="pad every pass to sizes of one class")
    parser.add_argument("--type", help="type of the target's weights, such as q4_k_m (default: the embedded target's)")
    parser.add_argument("--gpu-layers", type=int, default=0, metavar="N", help="layers on a GPU (default: 0)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        return compare(arguments, Path(folder))


def compare(arguments: argparse.Namespace, folder: Path) -> int:
    target = wide_target(folder, arguments.type) if arguments.type else embedded.TARGET
    draft = light_draft(folder) if arguments.type else embedded.DRAFT

    def written_with(plan: Plan, temperature: float) -> list[Written]:
        return written_by(
            plan,
            SamplingParameters(temperature=temperature),
            arguments.prompts,
            arguments.prompt_tokens,
            arguments.max_tokens,
            target,
            draft,
            arguments.gpu_layers,
            arguments.exact,
        )

    if arguments.exact:
        with engine(target, None, OFF.plan(), gpu_layers=arguments.gpu_layers, exact=True) as e:
            print(f"every pass has {e.target.padding}", flush=True)
    n_different = 0
    for temperature in TEMPERATURES:
        plain = written_with(OFF.plan(), temperature)
        print(f"temperature {temperature}, plain decoding: {rate(plain):.2f} tokens/s", flush=True)
        for plan in PLANS:
            written = written_with(plan, temperature)
            differences = [
                f"prompt {i}: {difference}"
                for i, (one, reference) in enumerate(zip(written, plain, strict=True))
                if (difference := first_difference(one, reference))
            ]
            n_different += len(differences)
            n_tokens, n_passes = sum(len(one.tokens) for one in written), sum(one.n_passes for one in written)
            verdict = f"{len(differences)} prompts differ, {differences[0]}" if differences else "the same bits"
            print(
                f"temperature {temperature}, {plan}: {n_tokens} tokens in {n_passes} passes, "
                f"{rate(written):.2f} tokens/s: {verdict}",
                flush=True,
            )
    return 1 if n_different else 0


def rate(written: list[Written]) -> float:
    """Tokens per second of all these texts, after their prompts."""
    return sum(len(one.tokens) for one in written) / sum(one.statistics.seconds for one in written)


if __name__ == "__main__":
    sys.exit(main())
