"""A long conversation: nothing grows, however many turns are dropped because the context is full.

The messages, their lengths and what is done with the answers follow from a seed: most are kept, some are stopped in
the middle, cut off at a text, written again or forgotten, and now and then the whole conversation is. The same model
answers all the time, with the plans and draft sources that `specrun chat` uses. What it learns is saved each second
instead of each minute: the first save imports modules, some 3,500 objects, and must not look like growth. Looked at
between turns: memory of the process, Python's objects, open files, threads, and the cells of both KV caches by
llama.cpp's own count.
"""

from __future__ import annotations

import gc
import keyword
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from unittest.mock import patch

import numpy as np
import psutil

from specrun.decoding.completion import Completion
from specrun.decoding.generation import Request
from specrun.decoding.session import Session
from specrun.llama.batch import committed_tokens
from specrun.llama.context import ALL_SEQUENCES, LlamaContext
from specrun.loading import learning
from specrun.loading.model import Model
from specrun.sampling import SamplingParameters
from tests.soak.fresh import check_lengths, state_bytes

_WORDS = keyword.kwlist
_WARM = 0.2  # share of the tokens after which all buffers have their size
_MARK = 4  # bytes
_LOOKS = 5  # turns between two looks at everything
_SECONDS_BETWEEN = 1.0  # time after which what was learned is saved again


@dataclass(frozen=True)
class Look:
    """What the process holds between two turns.

    rss: bytes of memory. objects: of Python. files: open ones. threads: of Python. target_cells, draft_cells: cells in
    use.
    """

    rss: int
    objects: int
    files: int
    threads: int
    target_cells: int
    draft_cells: int


@dataclass
class LongChat:
    """What happened.

    tokens: written ones. turns: answered messages. dropped: turns that made room for others. again, undone, stopped,
    cleared: answers that were written again, forgotten, or ended from outside, and conversations that were forgotten.
    looks: after the warm-up, in order.
    """

    tokens: int = 0
    turns: int = 0
    dropped: int = 0
    again: int = 0
    undone: int = 0
    stopped: int = 0
    cleared: int = 0
    looks: list[Look] = field(default_factory=list)

    def growth(self, of: Callable[[Look], int]) -> int:
        """How much the largest value of the last third exceeds that of the first third."""
        n = max(len(self.looks) // 3, 1)
        return max(map(of, self.looks[-n:])) - max(map(of, self.looks[:n]))


def chat(model: Model, n_tokens: int, seed: int = 0, tell: Callable[[LongChat], None] = lambda _: None) -> LongChat:
    """Write `n_tokens` tokens of answers with `model`. Raises AssertionError if a cache holds more than its text."""
    with patch.object(learning, "_SECONDS_BETWEEN", _SECONDS_BETWEEN):
        return _chat(model, n_tokens, seed, tell)


def _chat(model: Model, n_tokens: int, seed: int, tell: Callable[[LongChat], None]) -> LongChat:
    rng = np.random.default_rng(seed)
    done = LongChat()
    session = model.session(Request([], SamplingParameters(seed=seed)))
    session.system = "You complete code."
    target, draft = model.engine.target, model.engine.draft
    assert draft
    cells = Cells(target.context), Cells(draft.context)
    # Whatever is kept of the last answer, as the chat keeps it for /stats and /tree.
    last: Completion | None = None
    while done.tokens < n_tokens:
        last = _turn(session, rng, done) or last
        check_lengths(target.context)
        check_lengths(draft.context)
        lengths = target.context.sequence_lengths().tolist()
        assert cells[0].in_use() == lengths[0] == target.n_cached <= model.engine.ctx_size
        assert set(lengths) <= {target.n_cached, 0}
        # The draft holds the text and the tree for which it was asked last, which may be long ago: `auto` decides.
        assert cells[1].in_use() <= model.engine.ctx_size + draft.context.config.n_outputs
        if done.turns % _LOOKS == 0 and done.tokens > _WARM * n_tokens:
            done.looks.append(_look(*cells))
            tell(done)
    return done


def _turn(session: Session, rng: np.random.Generator, done: LongChat) -> Completion | None:
    what = rng.random()
    if what < 0.01:
        session.clear()
        done.cleared += 1
        return None
    if what < 0.06 and session.undo():
        done.undone += 1
        return None
    sampling = SamplingParameters(temperature=float(rng.choice([0.0, 0.8])), seed=int(rng.integers(2**62)))
    stops = ("return",) if rng.random() < 0.1 else ()
    session.request = replace(session.request, sampling=sampling, max_tokens=int(rng.integers(20, 200)), stops=stops)
    prepared = None
    if what < 0.12:
        prepared = session.regenerate()
        done.again += prepared is not None
    if prepared is None:
        prepared = session.prepare(" ".join(rng.choice(_WORDS, int(rng.integers(1, 60)))))
    completion, n_dropped = prepared
    left = iter(range(int(rng.integers(1, 20)))) if rng.random() < 0.1 else None
    for _ in completion.stream(lambda: left is not None and next(left, None) is None):
        pass
    session.keep(completion)
    done.turns += 1
    done.dropped += n_dropped
    done.stopped += completion.finish_reason == "interrupted"
    done.tokens += len(completion.token_ids)
    return completion


class Cells:
    """Counts the cells of a context that are in use, by what llama.cpp would save of them. It must be empty now."""

    def __init__(self, context: LlamaContext) -> None:
        self._context = context
        self._empty = state_bytes(context)
        context.decode(committed_tokens([1], 0, 1, n_outputs=0))
        one = state_bytes(context)
        context.decode(committed_tokens([1], 1, 1, n_outputs=0))
        self._each = state_bytes(context) - one - _MARK
        self._none = one - _MARK - self._each  # what says how many there are, if there are any
        context.remove(ALL_SEQUENCES, 0)

    def in_use(self) -> int:
        n_bytes = state_bytes(self._context)
        if n_bytes == self._empty:
            return 0
        # A cell has a mark for each sequence that it is on.
        marks = _MARK * int(self._context.sequence_lengths().sum())
        n, rest = divmod(n_bytes - self._none - marks, self._each)
        assert rest == 0
        return n


def _look(target: Cells, draft: Cells) -> Look:
    gc.collect()
    process = psutil.Process()
    return Look(
        rss=process.memory_info().rss,
        objects=len(gc.get_objects()),
        files=process.num_fds(),
        threads=threading.active_count(),
        target_cells=target.in_use(),
        draft_cells=draft.in_use(),
    )
