"""What attention costs with and without llama.cpp's flash attention on this CPU, by the shape of the heads.

    python scripts/bench_attention.py [-t THREADS] [--repeat N]

Prints a Markdown table: milliseconds that one layer's attention takes of a prompt of 500 tokens and an answer of 256
(specrun/loading/kernel_trials.py), the median of N trials, and what an untuned target with such heads does.
"""

from __future__ import annotations

import argparse
import statistics

from specrun.catalog import embedded
from specrun.catalog.gguf_file import GgufFile
from specrun.loading.kernel_trials import Heads, attention_ms, prefers_without

MODELS = {
    "Llama 3.1 8B": Heads(32, 8, 128),
    "Qwen2.5 7B": Heads(28, 4, 128),
    "Qwen2.5 0.5B": Heads(14, 2, 64),
    "the 1.1 B target of bench_headline.py": Heads(64, 8, 32),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", "-t", type=int, default=None, metavar="N")
    parser.add_argument("--repeat", type=int, default=3, metavar="N", help="trials of each shape")
    options = parser.parse_args()
    models = dict(MODELS)
    if embedded_draft := Heads.of(GgufFile.read(embedded.DRAFT)):
        models["the embedded draft"] = embedded_draft
    print("| heads of | heads, of K and V, size | with, ms | without, ms | without / with | flash attention |")
    print("| --- | --- | ---: | ---: | ---: | --- |")
    for name, heads in models.items():
        trials = [attention_ms(heads, options.threads) for _ in range(options.repeat)]
        ms = {kind: statistics.median(trial[kind] for trial in trials) for kind in trials[0]}
        shape = f"{heads.n_heads}, {heads.n_kv_heads}, {heads.size}"
        chosen = "off" if prefers_without(ms) else "on"
        print(
            f"| {name} | {shape} | {ms['with']:.0f} | {ms['without']:.0f} "
            f"| {ms['without'] / ms['with']:.2f} | {chosen} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
