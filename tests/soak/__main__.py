"""Long runs in random order. Ends with code 1 if something differs from what it should be, or grows.

    scripts/soak [--only PART ...] [--minutes M] [--tokens N] [--trees N] [--requests N] [--prompt N]
                 [--pair TARGET.gguf DRAFT.gguf] [--seed N]

Parts: target, padded, streamed, draft, engine (state machines: --minutes for each), chat (--tokens), trees (--trees for
each rule), kills (--minutes), serving (--requests), load (--minutes), long (--prompt, --pair).
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import gguf
from hypothesis.stateful import RuleBasedStateMachine

import specrun
from specrun.catalog import embedded
from specrun.display_text import size_text
from specrun.llama import LlamaModel, TargetContext
from specrun.llama.context import ContextConfig, LlamaContext
from specrun.llama.invariance import Comparison
from specrun.llama_settings import LlamaSettings
from tests.models import random_llama, wide_target
from tests.soak import kills, long_chat, long_prompt, random_trees, serving
from tests.soak.draft_states import ROUNDING, DraftStates, DraftSubject
from tests.soak.engine_states import EngineStates, Pair
from tests.soak.load import under_load
from tests.soak.running import run_for
from tests.soak.target_states import StreamedStates, Subject, TargetStates

_MOST_GROWTH = 8 << 20  # bytes of memory that the largest pass or text may add after the warm-up
_MOST_SERVER_GROWTH = 0.05  # share of a server's memory that requests may add after the warm-up
_BEHIND = 96  # tokens that are written after the long prompt
_LEAST_P = 1e-6  # probability below which a distribution is not the target's


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", action="append", choices=list(PARTS), help="a part to run; all without it")
    parser.add_argument("--minutes", type=float, default=10, help="of each part that goes by time (10)")
    parser.add_argument("--tokens", type=int, default=72_000, help="of the chat: an hour's at 20 a second (72,000)")
    parser.add_argument("--trees", type=int, default=10_000, help="through each acceptance rule (10,000)")
    parser.add_argument("--requests", type=int, default=1000, help="of the clients of a server (1,000)")
    parser.add_argument("--prompt", type=int, default=7000, help="tokens of the long prompt (7,000)")
    pair = "of the text behind the long prompt; a random pair without it"
    parser.add_argument("--pair", type=Path, nargs=2, metavar=("TARGET", "DRAFT"), help=pair)
    parser.add_argument("--seed", type=int, default=0, help="other steps, messages and trees")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for name in ("DATA", "CONFIG", "CACHE"):
            os.environ[f"SPECRUN_{name}_DIR"] = f"{folder}/{name.lower()}"
        return max([PARTS[name](options, Path(folder)) for name in options.only or PARTS])


# --- state machines --------------------------------------------------------------------------------------------------


def _target(options: argparse.Namespace, folder: Path) -> int:
    with LlamaModel(random_llama(folder / "random.gguf")) as model, LlamaModel(embedded.TARGET) as target:
        machines = {
            "random Q8_0": _of(TargetStates, subject=Subject(model, longest=600)),
            "embedded target": _of(TargetStates, subject=Subject(target, longest=120)),
        }
        return _run(options, "target", machines)


def _padded(options: argparse.Namespace, folder: Path) -> int:
    """A type whose kernels differ by the size of a pass, with passes of each class that holds on this machine."""
    with LlamaModel(wide_target(folder, "q4_k_m")) as model:
        config = ContextConfig(1000, 2, 256, 64, LlamaSettings(threads=1, type_v="bf16"))
        with LlamaContext(model, config) as context:
            comparison = Comparison(TargetContext(context), list(range(2, 1000)), 64)
            classes = tuple(sizes for sizes in comparison.survey().classes if comparison.holds(sizes))
        machine = _of(TargetStates, subject=Subject(model, 100, classes))
        return _run(options, "padded", {f"Q4_K_M, passes of {' and of '.join(map(str, classes))}": machine})


def _streamed(options: argparse.Namespace, folder: Path) -> int:
    path = random_llama(folder / "streamed.gguf", n_layer=6)
    with LlamaModel(Path(shutil.copy(path, folder / "mapped.gguf"))) as model:
        return _run(options, "streamed", {"random Q8_0": _of(StreamedStates, subject=Subject(model), path=path)})


def _draft(options: argparse.Namespace, folder: Path) -> int:
    with LlamaModel(random_llama(folder / "random.gguf")) as model, LlamaModel(embedded.DRAFT) as draft:
        machines = {
            "random Q8_0": _of(DraftStates, subject=DraftSubject(model, ROUNDING)),
            "embedded draft": _of(DraftStates, subject=DraftSubject(draft, ROUNDING)),
        }
        return _run(options, "draft", machines)


def _engine(options: argparse.Namespace, folder: Path) -> int:
    made = Pair(
        random_llama(folder / "random.gguf"),
        random_llama(folder / "draft.gguf", weight_type=gguf.GGMLQuantizationType.Q4_0),
    )
    machines = {
        "random pair": _of(EngineStates, pair=made),
        "embedded pair": _of(EngineStates, pair=Pair(embedded.TARGET, embedded.DRAFT)),
    }
    return _run(options, "engine", machines)


def _of(machine: type[RuleBasedStateMachine], **values: object) -> type[RuleBasedStateMachine]:
    """The machine with these values and counts of its own."""
    return type(machine.__name__, (machine,), {**values, "counts": Counter()})


def _run(options: argparse.Namespace, part: str, machines: dict[str, type[RuleBasedStateMachine]]) -> int:
    for name, machine in machines.items():
        with _line(part, name) as line:
            run_for(machine, options.minutes * 60 / len(machines), options.seed * 1_000_000, lambda: None)
            counts: Counter[str] = machine.counts  # type: ignore[attr-defined]
            line.update({what: f"{n:,}" for what, n in sorted(counts.items())})
            if issubclass(machine, DraftStates):
                line["largest difference of a logit"] = f"{machine.largest_difference:.3g}"
    return 0


# --- the others ------------------------------------------------------------------------------------------------------


def _chat(options: argparse.Namespace, _: Path) -> int:
    with _line("chat", "embedded pair") as line, specrun.load(None, None, ctx_size=256, threads=1) as model:
        started = time.monotonic()

        def tell(done: long_chat.LongChat) -> None:
            if sys.stderr.isatty():
                print(f"\r{done.tokens:,} tokens", end="", file=sys.stderr, flush=True)

        done = long_chat.chat(model, options.tokens, options.seed, tell)
        first, last = done.looks[0], done.looks[-1]
        growth = {
            "memory": (done.growth(lambda look: look.rss), _MOST_GROWTH),
            "objects": (done.growth(lambda look: look.objects), 1000),
            "files": (done.growth(lambda look: look.files), 0),
            "threads": (done.growth(lambda look: look.threads), 0),
        }
        cells = max(look.target_cells for look in done.looks), max(look.draft_cells for look in done.looks)
        line.update(
            {
                "tokens": f"{done.tokens:,}",
                "turns": f"{done.turns:,}",
                "turns dropped": f"{done.dropped:,}",
                "written again": str(done.again),
                "undone": str(done.undone),
                "interrupted": str(done.stopped),
                "cleared": str(done.cleared),
                "minutes": f"{(time.monotonic() - started) / 60:.1f}",
                "memory": f"{size_text(first.rss)} to {size_text(last.rss)}",
                "objects": f"{first.objects:,} to {last.objects:,}",
                "cells at most": f"{cells[0]} of target, {cells[1]} of draft",
            }
            | {f"growth of {name}": str(grown) for name, (grown, _) in growth.items()}
        )
        grown = [name for name, (n, most) in growth.items() if n > most]
        line["verdict"] = f"grew: {', '.join(grown)}" if grown else "flat"
        return 1 if grown else 0


def _trees(options: argparse.Namespace, _: Path) -> int:
    code = 0
    for rule in random_trees.RULES:
        with _line("trees", rule) as line:
            outcome = random_trees.through(rule, options.trees, options.seed)
            line.update(trees=f"{outcome.trees:,}", nodes=f"{outcome.nodes:,}", accepted=f"{outcome.accepted:,}")
            if rule in random_trees.SAMPLED:
                line["p"] = f"{outcome.p_value:.3g}"
                is_lossy = rule in random_trees.LOSSY
                line["verdict"] = "lossy" if is_lossy else "kept" if outcome.p_value > _LEAST_P else "not the target's"
                code |= not is_lossy and outcome.p_value <= _LEAST_P
    return code


def _kills(options: argparse.Namespace, folder: Path) -> int:
    with _line("kills", "saving while killed") as line:
        counts = kills.kill_for(folder, options.minutes * 60, options.seed)
        line.update({what: f"{n:,}" for what, n in sorted(counts.items())})
    return 0


def _judged(line: dict[str, str], outcome: serving.Outcome) -> int:
    """Say what is wrong with what a server did. Returns the exit code."""
    faults = [*outcome.wrong[:5]]
    if outcome.growth > _MOST_SERVER_GROWTH:
        faults.append(f"the memory grew by {outcome.growth:.1%}")
    line["verdict"] = "; ".join(faults) or "all texts right, memory flat"
    return 1 if faults else 0


def _serving(options: argparse.Namespace, _: Path) -> int:
    with _line("serving", "embedded pair") as line:
        outcome = serving.soak(options.requests, options.seed)
        line.update({what: f"{n:,}" for what, n in sorted(outcome.counts.items())})
        first, last = outcome.looks[0], outcome.looks[-1]
        line["memory"] = f"{size_text(first.rss)} to {size_text(last.rss)}"
        line["files"], line["threads"] = f"{first.files} to {last.files}", f"{first.threads} to {last.threads}"
        return _judged(line, outcome)


def _load(options: argparse.Namespace, _: Path) -> int:
    with _line("load", "embedded pair") as line:
        load = under_load(60 * options.minutes)
        outcome = load.outcome
        first, last = outcome.looks
        line.update({what: f"{n:,}" for what, n in sorted(outcome.counts.items())})
        line["memory"] = f"{size_text(first.rss)} to {size_text(last.rss)}"
        line["alone"], line["after"] = f"{load.alone_s:.2f} s", f"{load.after_s:.2f} s"
        return _judged(line, outcome)


def _long(options: argparse.Namespace, folder: Path) -> int:
    pair, n_ctx = options.pair, options.prompt + _BEHIND + 1024
    if pair is None:
        draft_type = gguf.GGMLQuantizationType.Q4_0
        draft = random_llama(folder / "long-draft.gguf", n_ctx=n_ctx, weight_type=draft_type)
        pair = random_llama(folder / "long.gguf", n_ctx=n_ctx), draft
    with _line("long", "random Q8_0" if options.pair is None else pair[0].name) as line:
        outcome = long_prompt.compare(*pair, options.prompt, _BEHIND, options.seed)
        line.update(behind=f"{outcome.n_prompt:,}", tokens=f"{outcome.tokens:,}", passes=f"{outcome.passes:,}")
        line["verdict"] = outcome.wrong or "the same"
        return 1 if outcome.wrong else 0


@contextmanager
def _line(part: str, name: str) -> Iterator[dict[str, str]]:
    """Prints one line of the table when the block is left, also by an error."""
    line: dict[str, str] = {}
    started = time.monotonic()
    try:
        yield line
    except BaseException as error:
        line["verdict"] = f"FAILED: {type(error).__name__}"
        raise
    finally:
        line.setdefault("minutes", f"{(time.monotonic() - started) / 60:.1f}")
        line.setdefault("verdict", "the same")
        print(f"{part}: {name}: {', '.join(f'{what} {n}' for what, n in line.items())}", flush=True)


PARTS: dict[str, Callable[[argparse.Namespace, Path], int]] = {
    "target": _target,
    "padded": _padded,
    "streamed": _streamed,
    "draft": _draft,
    "engine": _engine,
    "chat": _chat,
    "trees": _trees,
    "kills": _kills,
    "serving": _serving,
    "load": _load,
    "long": _long,
}

if __name__ == "__main__":
    print(f"specrun {specrun.__version__}, {platform.processor() or platform.machine()}", flush=True)
    sys.exit(main())
