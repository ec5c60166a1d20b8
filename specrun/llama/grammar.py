"""Grammars in GBNF, checked by llama.cpp's own grammar sampler: which tokens may follow a text.

llama.cpp's sampler has the state after one text. The nodes of a token tree stand for many texts, so every text gets a
sampler of its own: a clone of the sampler of the text without its last token, which then accepts that token.
"""

from __future__ import annotations

import codecs
import ctypes
import threading
import time
from collections import OrderedDict
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, cached_property

import llama_cpp
import numpy as np
import psutil
from numpy.typing import NDArray

from specrun.constraints.rules import Progress, Trigger, check_bounds
from specrun.errors import UsageError
from specrun.llama import library
from specrun.llama.loaded_model import LlamaModel
from specrun.locations import encode

_ROOT = b"root"
_KEPT_STATES = 256  # samplers that are kept; the least recently used is freed first
_KEPT_PROGRESS = 1024  # texts whose progress to a trigger is kept; the least recently used is forgotten first
_MOST_GRAMMARS = 16  # kept for further texts; a server gets ever new grammars
_LONGEST_QUOTE = 40  # characters of a grammar that an error message quotes
_TOKEN_DATA = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])  # llama_token_data

# Kinds of tokens: not looked at yet; control tokens, which show no text; end of generation; whole characters; bytes
# that are part of a character.
_UNSEEN, _HIDDEN, _END, _WHOLE, _PART = range(5)

TokenIds = NDArray[np.int64]


class Grammar(library.Closing):
    """A grammar over a model's tokens, a `specrun.sampling.Constraint`. Close it before the model.

    Control tokens are never allowed; end-of-generation tokens are allowed where the text may end. Invalid UTF-8 is not
    allowed either, though llama.cpp would let `[^...]` match it.
    Raises UsageError with llama.cpp's reason for a text that is not a grammar, and, while it is followed, for a grammar
    that can be read in too many ways.
    """

    def __init__(self, gbnf: str, model: LlamaModel) -> None:
        self._model = model
        self._start = _State(_parsed(gbnf, model.vocab))
        self._states: OrderedDict[tuple[int, ...], _State] = OrderedDict()
        self._ends = np.array(model.ends_of_generation, np.int64)
        self._kinds = np.full(model.n_vocab, _UNSEEN, np.int8)
        self._kinds[self._ends] = _END

    def allowed(self, written: Sequence[int], tokens: TokenIds) -> NDArray[np.bool_]:
        """bool[len(tokens)]: which of `tokens` may come after `written` (all tokens since the prompt)."""
        return self._allowed(self._state(written), tokens)

    def is_complete(self, written: Sequence[int]) -> bool:
        """Whether the text may end after `written`: for models without end tokens, where no token may follow."""
        if not len(self._ends):
            return not self.allowed(written, np.arange(self._model.n_vocab)).any()
        return bool(self.allowed(written, self._ends).any())

    def forget(self) -> None:
        """Free the samplers of all texts so far; the grammar stays usable."""
        for state in self._states.values():
            state.close()
        self._states.clear()

    def close(self) -> None:
        """Free the samplers. Safe to call twice."""
        self.forget()
        self._start.close()

    def _state(self, written: Sequence[int]) -> _State:
        """The state after `written`, reached from its longest prefix whose state is kept."""
        key = tuple(written)
        n_kept = len(key)
        while n_kept and key[:n_kept] not in self._states:
            n_kept -= 1
        state = self._start
        if n_kept:
            state = self._states[key[:n_kept]]
            self._states.move_to_end(key[:n_kept])
        for n in range(n_kept, len(key)):
            # llama.cpp aborts the process when a sampler accepts a token that it does not allow.
            if not self._allowed(state, np.array([key[n]], np.int64))[0] or self._kinds[key[n]] == _END:
                state = _State(None)
            else:
                state = state.after(key[n], _unfinished(state.tail + self._model.token_bytes(key[n])) or b"")
            self._states[key[: n + 1]] = state
            if len(self._states) > _KEPT_STATES:
                self._states.popitem(last=False)[1].close()
        return state

    def _allowed(self, state: _State, tokens: TokenIds) -> NDArray[np.bool_]:
        for token in tokens[self._kinds[tokens] == _UNSEEN].tolist():
            data = self._model.token_bytes(token)
            self._kinds[token] = (_PART if _unfinished(data) != b"" else _WHOLE) if data else _HIDDEN
        kinds = self._kinds[tokens]
        result = state.allowed(tokens) & (kinds != _HIDDEN)
        if state.tail:
            result &= kinds != _END
        for i in np.flatnonzero(result & (kinds == _PART)):
            result[i] = _unfinished(state.tail + self._model.token_bytes(int(tokens[i]))) is not None
        return result


class TriggeredGrammar:
    """Allows every text until the trigger, and after it what the grammar allows; a `specrun.sampling.Constraint`.

    A token that would reach beyond the trigger is not allowed, so that the grammar begins with a token. shown: control
    tokens whose name is text.
    """

    def __init__(self, grammar: Grammar, trigger: Trigger, model: LlamaModel, shown: Collection[int]) -> None:
        self._grammar = grammar
        self._model = model
        self._shown = frozenset(shown)
        self._trigger = trigger
        self._progress: OrderedDict[tuple[int, ...], tuple[Progress, int]] = OrderedDict()

    def allowed(self, written: Sequence[int], tokens: TokenIds) -> NDArray[np.bool_]:
        """bool[len(tokens)]: which of `tokens` may come after `written` (all tokens since the prompt)."""
        progress, n_free = self._at(tuple(written))
        if progress.is_reached:
            return self._grammar.allowed(written[n_free:], tokens)
        result = np.ones(len(tokens), np.bool_)
        for i in np.flatnonzero(self._may_reach_beyond[tokens]):
            result[i] = not self._trigger.after(progress, self._bytes(int(tokens[i])))[1]
        return result

    def is_complete(self, written: Sequence[int]) -> bool:
        """Whether the text may end after `written`."""
        progress, n_free = self._at(tuple(written))
        return not progress.is_reached or self._grammar.is_complete(written[n_free:])

    def _at(self, written: tuple[int, ...]) -> tuple[Progress, int]:
        """The progress after `written`, and how many of its tokens are free: those up to the trigger."""
        n_known = len(written)
        while n_known and written[:n_known] not in self._progress:
            n_known -= 1
        progress, n_free = self._progress.get(written[:n_known], (self._trigger.start, 0))
        for n in range(n_known, len(written)):
            if not progress.is_reached:
                progress, n_free = self._trigger.after(progress, self._bytes(written[n]))[0], n + 1
        if written:
            self._progress[written] = progress, n_free
            self._progress.move_to_end(written)
            if len(self._progress) > _KEPT_PROGRESS:
                self._progress.popitem(last=False)
        return progress, n_free

    def _bytes(self, token: int) -> bytes:
        return self._model.token_bytes(token, token in self._shown)

    @cached_property
    def _may_reach_beyond(self) -> NDArray[np.bool_]:
        """bool[n_vocab]: tokens that have the trigger's last byte before their own last byte."""
        last = self._trigger.last_byte
        return np.array([last in data[:-1] for data in self._model.all_token_bytes])


class Grammars(library.Closing):
    """The grammars of a model's texts: those in use, and the last ones for further texts."""

    def __init__(self, model: LlamaModel) -> None:
        self._model = model
        self._kept: OrderedDict[str, Grammar] = OrderedDict()  # by GBNF, the last used at the end

    def constraint(
        self, gbnf: str | None, trigger: Trigger | None, shown: Collection[int], in_use: Collection[str | None]
    ) -> Grammar | TriggeredGrammar | None:
        """What a text has to follow; None for nothing. trigger, shown: see `TriggeredGrammar`; None from the beginning
        on. in_use: the GBNF of texts that are being written, whose grammars stay.
        """
        if gbnf is None:
            return None
        grammar = self._kept.get(gbnf) or Grammar(gbnf, self._model)
        self._kept[gbnf] = grammar
        self._kept.move_to_end(gbnf)
        for old in [text for text in self._kept if text not in in_use and text != gbnf]:
            if len(self._kept) > _MOST_GRAMMARS:
                self._kept.pop(old).close()
        return TriggeredGrammar(grammar, trigger, self._model, shown) if trigger else grammar

    def close(self) -> None:
        """Free them all. Safe to call twice."""
        for grammar in self._kept.values():
            grammar.close()
        self._kept.clear()


class _State:
    """The state of a grammar after one text.

    sampler: llama.cpp's, which `close` frees; None where nothing may follow. tail: the first bytes of a character.
    """

    def __init__(self, sampler: llama_cpp.llama_sampler_p | None, tail: bytes = b"") -> None:
        self._sampler = sampler
        self.tail = tail

    def allowed(self, tokens: TokenIds) -> NDArray[np.bool_]:
        """bool[len(tokens)]: which of `tokens` llama.cpp allows next."""
        if self._sampler is None:
            return np.zeros(len(tokens), np.bool_)
        data = np.zeros(len(tokens), _TOKEN_DATA)
        data["id"] = tokens
        pointer = ctypes.cast(data.ctypes.data, llama_cpp.llama_token_data_p)
        array = llama_cpp.llama_token_data_array(data=pointer, size=len(tokens), selected=-1, sorted=False)
        with watched():
            llama_cpp.llama_sampler_apply(self._sampler, ctypes.byref(array))
        return np.asarray(data["logit"] == 0)

    def after(self, token: int, tail: bytes) -> _State:
        """The state after `token`, which must be allowed. tail: as in the constructor."""
        sampler = llama_cpp.llama_sampler_clone(self._sampler)
        with watched():
            llama_cpp.llama_sampler_accept(sampler, token)
        return _State(sampler, tail)

    def close(self) -> None:
        """Free the sampler. Safe to call twice."""
        if self._sampler is not None:
            llama_cpp.llama_sampler_free(self._sampler)
            self._sampler = None


def _unfinished(data: bytes) -> bytes | None:
    """The bytes of an incomplete character at the end of `data`, or None if `data` is not UTF-8."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        decoder.decode(data)
    except UnicodeDecodeError:
        return None
    tail = decoder.getstate()[0]
    # Python refuses half of a surrogate pair only at its third byte; the second byte decides already.
    return None if len(tail) == 2 and b"\xed\xa0" <= tail < b"\xee" else tail


def check_grammar(gbnf: str | None) -> str | None:
    """Return `gbnf` unchanged. Raises UsageError if it is a grammar for no model at all."""
    if gbnf is not None:
        try:
            _State(_parsed(gbnf, None)).close()
        except UsageError as error:
            if "no vocab" not in str(error):  # a grammar that names tokens can be checked with a model only
                raise
    return gbnf


def _parsed(gbnf: str, vocab: llama_cpp.llama_vocab_p | None) -> llama_cpp.llama_sampler_p:
    data = encode(gbnf, "the grammar", UsageError)
    if not data.strip():
        raise UsageError("the grammar is empty; it needs a rule `root ::= ...`")
    if b"\0" in data:
        raise UsageError("the grammar has a NUL byte; write it as \\x00")
    check_bounds(gbnf)
    with watched(), library.CapturedErrors() as errors, library.captured_stderr() as printed:
        sampler = llama_cpp.llama_sampler_init_grammar(vocab, data, _ROOT)
    if not sampler:
        raise UsageError(f"llama.cpp refuses the grammar: {_reason(data, b''.join(printed), errors)}")
    return sampler


def _reason(gbnf: bytes, printed: bytes, errors: Sequence[str]) -> str:
    """llama.cpp's reason in one line.

    The parser prints `parse: error parsing grammar: REASON` and the whole grammar; some reasons end with all of the
    grammar that the parser had not read yet.
    """
    _, separator, rest = printed.partition(b"error parsing grammar: ")
    if not separator:
        return " ".join((errors or ["unknown reason"])[0].split())
    reason = rest.removesuffix(b"\n\n" + gbnf + b"\n")
    what, at, unread = reason.partition(b" at ")
    if not at or not gbnf.endswith(unread):
        return " ".join(reason.decode("utf-8", errors="replace").split())
    line = gbnf[: len(gbnf) - len(unread)].count(b"\n") + 1
    quote = unread.decode("utf-8", errors="replace").strip().split("\n")[0][:_LONGEST_QUOTE] or "the end"
    return f"{what.decode('utf-8', errors='replace')} at {quote} (line {line})"


# llama.cpp follows every way in which a text can be read by a grammar. A few short rules can have so many that one call
# takes hours, and all memory: `r0 ::= r1 | r1 r1`, `r1 ::= r2 | r2 r2`, and so on. Whether a grammar is of this kind is
# seen only while it is followed, and a call into C cannot be stopped from outside; so the process ends, in one line.
_MOST_SECONDS = 5.0  # of a call; usual calls take microseconds, the largest schemas of the tests 0.1 s
_MOST_BYTES = 2**30  # that the process may grow by during one call
_LONG_SECONDS = 2.0  # after a call of this length the next one would take minutes, so the text ends with an error
_POLL_SECONDS = 0.2
_TOO_MUCH = (
    "the grammar takes too much time or memory: it is too large, or a text can be read by it in too many ways; "
    "give its alternatives different beginnings"
)
_started_at: dict[int, float] = {}  # by thread: when the call that it is in began


@contextmanager
def watched() -> Iterator[None]:
    """Around a call. Raises UsageError after a long call; ends the process during a call that is too long."""
    _start_watch()
    thread, began = threading.get_ident(), time.monotonic()
    _started_at[thread] = began
    try:
        yield
    finally:
        del _started_at[thread]
    if time.monotonic() - began > _LONG_SECONDS:
        raise UsageError(_TOO_MUCH)


@cache
def _start_watch() -> None:
    threading.Thread(target=_keep_watch, name="grammar watch", daemon=True).start()


def _keep_watch() -> None:
    process = psutil.Process()
    n_bytes_before, watching = 0, 0.0
    while True:
        time.sleep(_POLL_SECONDS)
        began = min(_started_at.copy().values(), default=0.0)
        if began and began == watching:  # a call that was there at the last look, too
            grown = process.memory_info().rss - n_bytes_before
            if time.monotonic() - began > _MOST_SECONDS or grown > _MOST_BYTES:
                library.end_process(UsageError(_TOO_MUCH))
        elif began:
            n_bytes_before = process.memory_info().rss
        watching = began
