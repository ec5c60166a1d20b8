"""What many prompts take on a simulated machine, written one by one and several at a time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from machines.measure import data_folder, options
from machines.simulated import simulated
from machines.tables import Machine
from specrun.bench import shipped
from specrun.decoding.completion import Completion
from specrun.decoding.generation import make_request
from specrun.loading.many import Listed, write_many
from specrun.loading.model import Model
from specrun.options.sampling_options import SamplingOptions
from specrun.speculation.method import OFF

_CTX_SIZE = 1024


@dataclass(frozen=True)
class Took:
    """seconds: of the simulated machine. texts: what was written, in the order of the prompts. sizes: tokens of each
    pass of the target.
    """

    seconds: float
    texts: list[list[int]]
    sizes: list[int]

    @property
    def n_tokens(self) -> int:
        return sum(map(len, self.texts))

    @property
    def n_passes(self) -> int:
        return len(self.sizes)

    @property
    def rate(self) -> float:
        """Tokens a second, prompts included in the time."""
        return self.n_tokens / self.seconds


def prompts(model: Model, n: int, least: int, most: int) -> list[list[int]]:
    """Token ids of prompts whose lengths rise evenly, cut from texts of all kinds."""
    text = "\n\n".join(prompt.text for prompt in shipped())
    tokens = model.prompt_tokens(text * (1 + 8 * n * most // len(text)), raw=True)
    found, begin = [], 0
    for i in range(n):
        size = least + (most - least) * i // max(n - 1, 1)
        found.append(tokens[begin : begin + size])
        begin += size
    return found


def took(
    folder: Path,
    machine: Machine,
    agreement: int,
    parallel: int,
    n: int = 32,
    lengths: tuple[int, int] = (60, 600),
    n_tokens: int = 64,
    temperature: float = 0.0,
    speculates: bool = True,
) -> Took:
    """What `generate --jsonl --parallel N` takes after it was loaded."""
    given = options(folder, agreement)
    given = replace(given, ctx_size=_CTX_SIZE, parallel=parallel)
    if parallel > 1:
        given = replace(given, shared_tokens=max(parallel * (sum(lengths) // 2 + n_tokens), _CTX_SIZE))
    if not speculates:
        given = replace(given, plans=(OFF.plan(),))
    with data_folder(), simulated(machine) as simulation, Model(given) as model:
        request = make_request(SamplingOptions(temp=temperature, max_tokens=n_tokens, seed=1))
        asked = [replace(request, prompt=prompt, ignore_eos=True) for prompt in prompts(model, n, *lengths)]
        simulation.passes.clear()
        started = simulation.seconds
        written = dict(write_many(model, Listed(enumerate(asked))))
        texts = [one.token_ids for _, one in sorted(written.items()) if isinstance(one, Completion)]
        sizes = [n for n, _, is_draft in simulation.passes if not is_draft]
        return Took(simulation.seconds - started, texts, sizes)
