"""Whether weights of another type would be faster on this machine, all of them in RAM.

Miniatures of the target in its own types and in the usual ones (`specrun.tuning.miniature`) are timed in turn, in
passes of the sizes that its best plans use. A pass of the target in another type would take its measured time, times
the quotient of the miniatures' times. The predicted tokens a pass of every plan are taken to stay the same.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np

from specrun.catalog.gguf_file import GgufFile
from specrun.engine.layer_trial import pass_ms
from specrun.llama import LlamaModel
from specrun.llama.batch import committed_tokens
from specrun.llama.context import ContextConfig, LlamaContext
from specrun.llama_settings import LlamaSettings
from specrun.long_run import Run
from specrun.profiles.profile import Profile
from specrun.profiles.tuning_rows import OtherType
from specrun.speculation.planning.pass_sizes import ANY_SIZE
from specrun.speculation.registry import METHODS
from specrun.tuning.miniature import Layers

_FILE_TYPES = {"Q4_0": 2, "Q4_K_M": 15, "IQ4_NL": 25, "IQ4_XS": 30, "Q8_0": 7}  # llama_ftype
_OWN = "own"
_SECONDS = 20.0  # that this may take
_SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)  # tokens of the passes that may be timed
_CTX = 64  # context length in tokens at which costs are compared
_LEAST_BYTES = 100_000_000  # of a miniature's weights, so that they come from RAM and not from the CPU's cache
_ROUNDS = (5, 15)  # of passes over each size; with fewer nothing is said
_WORTH = 1.1  # gain beyond which a type is named, when twice its standard error is taken off
_NEAR_BEST = 0.75  # share of the best plan's rate from which a plan's size is timed

Ratios = Mapping[int, float]
"""Time of a pass in another type, as a share of its time in the target's types, by tokens of the pass."""


def compared(profile: Profile, target: Path, ram_bytes: int, run: Run) -> Profile:
    """The profile with `other_types` and, if one of them is clearly faster, a notice.

    profile: what was measured of the pair. target: its GGUF file. ram_bytes: what other types must fit into.
    """
    file = GgufFile.read(target)
    layers = Layers(file)
    if profile.regime != "in RAM":
        return _left_out(profile, "the weights are not all in RAM")
    if profile.padding != ANY_SIZE:
        return _left_out(profile, "every pass is padded to the sizes of the target's own types")
    if not layers.is_usual:
        return _left_out(profile, "the target's layers are not those of a usual dense model")
    run.show("would another type of the weights be faster?")
    sizes = sizes_of_plans(profile)
    ratios = measured_ratios(layers, sizes, profile.settings, ram_bytes, run.stage(_SECONDS))
    if not ratios:
        return _left_out(profile, f"passes of small models did not end in {_SECONDS:.0f} s")
    found = [_other(profile, name, by_round) for name, by_round in ratios.items()]
    found = sorted((one for one in found if one.name != file.quantization), key=lambda one: -one.gain)
    notices = [sentence(one, file) for one in found[:1] if one.gain - 2 * one.error > _WORTH]
    return replace(profile, other_types=found, notices=profile.notices + notices)


def _left_out(profile: Profile, why: str) -> Profile:
    return replace(profile, other_types_left_out=why)


def sentence(other: OtherType, file: GgufFile) -> str:
    """What the user is told."""
    return (
        f"weights in {other.name} would probably be {other.gain:.2f} times as fast here as these in "
        f"{file.quantization}: about {other.tokens_per_second:.1f} tokens/s; the text would be another one"
    )


def sizes_of_plans(profile: Profile) -> list[int]:
    """Tokens of the passes to time: one, and those on either side of the sizes of all plans that may be the best."""
    wanted = {1}
    for rows in profile.predictions.values():
        best = max(row.tokens_per_second for row in rows)
        for budget in (row.budget for row in rows if row.tokens_per_second > _NEAR_BEST * best):
            wanted |= {max((n for n in _SIZES if n <= budget), default=1)}
            wanted |= {min((n for n in _SIZES if n >= budget), default=_SIZES[-1])}
    return sorted(wanted)


def _other(profile: Profile, name: str, by_round: Sequence[Ratios]) -> OtherType:
    """A type's gain with the median of the rounds' ratios, and its standard error."""
    sizes = by_round[0]
    median = {n: statistics.median(ratios[n] for ratios in by_round) for n in sizes}
    gains = [gain(profile, ratios) for ratios in by_round]
    error = 1.25 * statistics.stdev(gains) / len(gains) ** 0.5  # of a median
    tuned = profile.plans[0]
    before = max(tuned.predicted_tokens_per_second, tuned.plain_tokens_per_second)
    by_median = gain(profile, median)
    return OtherType(name, by_median, error, by_median * before, median)


def gain(profile: Profile, ratios: Ratios) -> float:
    """Rate of the best plan in another type over that of the best in this one, at the temperature where it is least."""
    target = profile.costs.target

    def saved(n: int) -> float:
        return target.ms(n, _CTX) * (1 - float(np.interp(n, list(ratios), list(ratios.values()))))

    gains = []
    for rows in profile.predictions.values():
        fixed = [row for row in rows if not METHODS[row.method].is_adaptive and row.tokens_per_second > 0]
        passes = [(row.tokens_per_pass, 1e3 * row.tokens_per_pass / row.tokens_per_second, row.budget) for row in fixed]
        passes.append((1.0, target.ms(1, _CTX), 1))
        before = max(tokens / ms for tokens, ms, _ in passes)
        # A pass takes at least a tenth of its time: the target's share of a predicted pass is not known exactly.
        behind = max(tokens / max(ms - saved(n), ms / 10) for tokens, ms, n in passes)
        gains.append(behind / before)
    return min(gains)


def measured_ratios(
    layers: Layers, sizes: Sequence[int], settings: LlamaSettings, ram_bytes: int, run: Run
) -> dict[str, list[Ratios]]:
    """The ratios of the usual types that fit into the RAM, of each round; empty if the time does not suffice.

    settings: the target's. Other types have their weights re-ordered where llama.cpp can, as without a profile.
    """
    file = layers.file
    n_layers = min(max(-(-_LEAST_BYTES * file.n_layers // max(file.n_bytes, 1)), 2), file.n_layers)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        types = {_OWN: layers.types}
        types |= {name: layers.quantized(number, Path(folder)) for name, number in _FILE_TYPES.items()}
        paths = {name: layers.write(Path(folder) / f"{name}.gguf", of, n_layers) for name, of in types.items()}
        n_bytes = {name: path.stat().st_size for name, path in paths.items()}
        fitting = [name for name in paths if file.n_bytes * n_bytes[name] / n_bytes[_OWN] < ram_bytes]
        config = ContextConfig(
            n_ctx=_CTX + max(sizes), n_seq_max=1, n_batch=max(_CTX, *sizes), n_outputs=max(sizes), settings=settings
        )
        contexts: dict[str, LlamaContext] = {}
        for name in dict.fromkeys([_OWN, *fitting]):
            own = replace(settings, repack=settings.repack if name == _OWN else True)
            model = stack.enter_context(LlamaModel(paths[name], own))
            contexts[name] = stack.enter_context(LlamaContext(model, config))
            contexts[name].decode(committed_tokens([1] * _CTX, 0, 1, n_outputs=0))
        for context in contexts.values():
            pass_ms(context, sizes[-1], _CTX, n_outputs=sizes[-1])
        rounds: list[dict[str, dict[int, float]]] = []
        while len(rounds) < _ROUNDS[1]:
            # Types take turns within a size, so that none finds its weights in the CPU's cache.
            ms: dict[str, dict[int, float]] = {name: {} for name in contexts}
            for n in sizes:
                for name, context in contexts.items():
                    ms[name][n] = pass_ms(context, n, _CTX, n_outputs=n)
                if run.is_over():
                    break
            if run.is_over():
                break
            rounds.append(ms)
    if len(rounds) < _ROUNDS[0]:
        return {}
    others = [name for name in contexts if name != _OWN]
    return {name: [{n: ms[name][n] / ms[_OWN][n] for n in sizes} for ms in rounds] for name in others}
