"""What a grammar costs a token: milliseconds to sample one, for a small and a large vocabulary.

    python scripts/bench_grammar.py

The small vocabulary is the embedded pair's; the large one has words of Python's standard library beside it, up to
152,064 tokens. Logits are random, with the text's next token the likeliest by 3 nats, and the text is one that a JSON
schema allows.
"""

from __future__ import annotations

import re
import sysconfig
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path

import gguf
import numpy as np
from other_vocabularies import TOKENS, with_more_tokens

from specrun.catalog import embedded
from specrun.constraints.json_schema import schema_to_gbnf
from specrun.llama import LlamaModel
from specrun.llama.grammar import Grammar
from specrun.sampling import Sampler, SamplingParameters

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "sizes": {"type": "array", "items": {"type": "integer", "maximum": 64}},
        "doc": {"type": "string"},
        "weight": {"type": "number"},
    },
}
TEXT = '{"name": "hello", "sizes": [12, 7, 64], "doc": "reads a file and closes it", "weight": 0.5}'
LARGE = 152_064
SAMPLINGS = {
    "greedy": SamplingParameters(temperature=0),
    "default filters": SamplingParameters(),
    "no filters": SamplingParameters(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0),
}
ROUNDS = 5


def main() -> None:
    print("| vocabulary | | no grammar | JSON schema |")
    print("| --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        for path in (embedded.TARGET, large_vocabulary(Path(folder) / "large.gguf")):
            with LlamaModel(path) as model, Grammar(schema_to_gbnf(SCHEMA), model) as grammar:
                tokens = model.tokenize(TEXT, add_special=False)
                for name, parameters in SAMPLINGS.items():
                    plain = milliseconds(tokens, parameters, model.n_vocab, None)
                    by_schema = milliseconds(tokens, parameters, model.n_vocab, grammar)
                    ours = f"{by_schema.mean():.2f} ({by_schema.max():.2f})"
                    print(f"| {model.n_vocab:,} | {name} | {plain.mean():.2f} | {ours} |")


def milliseconds(
    tokens: list[int], parameters: SamplingParameters, n_vocab: int, grammar: Grammar | None
) -> np.ndarray:
    """float64[len(tokens)]: the least of ROUNDS, each with a text of which every place is new to the grammar."""
    sampler = Sampler(parameters, n_vocab, grammar)
    best = np.full(len(tokens), np.inf)
    for _ in range(ROUNDS):
        if grammar:
            grammar.forget()
        rng = np.random.default_rng(0)
        for i, token in enumerate(tokens):
            logits = (2.5 * rng.standard_normal(n_vocab)).astype(np.float32)
            logits[token] = logits.max() + 3
            recent = sampler.recent(tokens[:i])
            started = time.perf_counter()
            sampler.sample(logits, i, recent)
            best[i] = min(best[i], 1e3 * (time.perf_counter() - started))
    return best


def large_vocabulary(path: Path) -> Path:
    """The embedded draft with more tokens: words."""
    known = gguf.GGUFReader(embedded.DRAFT).fields[TOKENS].contents()
    seen = set(known)
    added = list(islice((word for word in words() if word not in seen), LARGE - len(known)))
    return with_more_tokens(embedded.DRAFT, path, added, gguf.TokenType.NORMAL)


def words() -> Iterator[str]:
    """The library's words, commonest first, a blank written as the tokenizer writes it; then made-up ones."""
    counts: Counter[str] = Counter()
    for file in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        counts.update(re.findall(r" ?[A-Za-z]+| ?[!-/:-@]+", file.read_text(encoding="utf-8")))
    yield from (word.replace(" ", "Ġ") for word, _ in counts.most_common())
    yield from (f"Ġw{number}" for number in count())


if __name__ == "__main__":
    main()
