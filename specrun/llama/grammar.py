"""Grammars in llama.cpp's GBNF, by its own grammar sampler: which tokens may follow the text so far.

llama.cpp's sampler holds one place in a text and moves on with it. A token tree is at many places at once, so here
every place is a sampler of its own, a clone of the one before that was moved by a token.
"""

from __future__ import annotations

import codecs
import ctypes
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate

import llama_cpp
import numpy as np
from numpy.typing import NDArray

from specrun.errors import UsageError
from specrun.llama import library
from specrun.llama.loaded_model import LlamaModel

_ROOT = b"root"
_KEPT_PLACES = 256
_MOST_NESTED, _MOST_RULES = 1000, 10_000  # llama.cpp's parser is recursive, and far more would end the process
_LONGEST_QUOTE = 40
_TOKEN_DATA = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])  # llama_token_data

# What a token is to a text: nothing to see, its end, whole characters, or bytes that need others beside them.
_UNKNOWN, _HIDDEN, _END, _WHOLE, _PART = range(5)

TokenIds = NDArray[np.int64]


class Grammar:
    """A grammar over a model's tokens, a `specrun.sampling.Constraint`. Close it before the model.

    Control tokens, which a text does not show, are never allowed; end-of-generation tokens are where the text may end.
    Bytes that are no UTF-8, which llama.cpp takes for characters that `[^...]` matches, are not allowed either.
    Raises UsageError, with llama.cpp's own reason, for a text that is not a grammar.
    """

    def __init__(self, gbnf: str, model: LlamaModel) -> None:
        self._model = model
        self._start = _Place(_parsed(gbnf, model.vocab))
        self._places: OrderedDict[tuple[int, ...], _Place] = OrderedDict()
        self._ends = np.array([t for t in range(model.n_vocab) if model.is_end_of_generation(t)], np.int64)
        self._kinds = np.full(model.n_vocab, _UNKNOWN, np.int8)
        self._kinds[self._ends] = _END

    def allowed(self, written: Sequence[int], tokens: TokenIds) -> NDArray[np.bool_]:
        """bool[len(tokens)]: which of `tokens` may come after `written` (all tokens since the prompt)."""
        return self._allowed(self._place(written), tokens)

    def is_complete(self, written: Sequence[int]) -> bool:
        """Whether the text may end after `written`: that is where nothing else may follow if the model has no token for
        the end.
        """
        if not len(self._ends):
            return not self.allowed(written, np.arange(self._model.n_vocab)).any()
        return bool(self.allowed(written, self._ends).any())

    def forget(self) -> None:
        """Free what is kept of the texts so far; the grammar can be used on."""
        for place in self._places.values():
            place.close()
        self._places.clear()

    def close(self) -> None:
        """Free the samplers. Safe to call twice."""
        self.forget()
        self._start.close()

    def __enter__(self) -> Grammar:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _place(self, written: Sequence[int]) -> _Place:
        """The place after `written`, reached from the last one on the way that is still known."""
        key = tuple(written)
        n_known = len(key)
        while n_known and key[:n_known] not in self._places:
            n_known -= 1
        place = self._start
        if n_known:
            place = self._places[key[:n_known]]
            self._places.move_to_end(key[:n_known])
        for n in range(n_known, len(key)):
            place = self._after(place, key[n])
            self._places[key[: n + 1]] = place
            if len(self._places) > _KEPT_PLACES:
                self._places.popitem(last=False)[1].close()
        return place

    def _after(self, place: _Place, token: int) -> _Place:
        # llama.cpp ends the process if it is made to accept what it does not allow.
        if not self._allowed(place, np.array([token], np.int64))[0] or self._kinds[token] == _END:
            return _Place(None)
        return place.after(token, _unfinished(place.tail + self._model.token_bytes(token)) or b"")

    def _allowed(self, place: _Place, tokens: TokenIds) -> NDArray[np.bool_]:
        result = place.allowed(tokens)
        kinds = self._kinds_of(tokens)
        result &= kinds != _HIDDEN
        if place.tail:
            result &= kinds != _END
        for i in np.flatnonzero(result & (kinds == _PART)):
            result[i] = _unfinished(place.tail + self._model.token_bytes(int(tokens[i]))) is not None
        return result

    def _kinds_of(self, tokens: TokenIds) -> NDArray[np.int8]:
        for token in tokens[self._kinds[tokens] == _UNKNOWN].tolist():
            data = self._model.token_bytes(token)
            self._kinds[token] = (_PART if _unfinished(data) != b"" else _WHOLE) if data else _HIDDEN
        return self._kinds[tokens]


class _Place:
    """A place in a text. sampler: llama.cpp's, whose owner this is; None where nothing may follow. tail: the bytes of a
    character that is not written to its end.
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
        llama_cpp.llama_sampler_apply(self._sampler, ctypes.byref(array))
        return np.asarray(data["logit"] == 0)

    def after(self, token: int, tail: bytes) -> _Place:
        """The place after `token`, which must be allowed."""
        sampler = llama_cpp.llama_sampler_clone(self._sampler)
        llama_cpp.llama_sampler_accept(sampler, token)
        return _Place(sampler, tail)

    def close(self) -> None:
        """Free the sampler. Safe to call twice."""
        if self._sampler is not None:
            llama_cpp.llama_sampler_free(self._sampler)
            self._sampler = None


def _unfinished(data: bytes) -> bytes | None:
    """The bytes at the end of `data` that begin a character, None if it is no UTF-8."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        decoder.decode(data)
    except UnicodeDecodeError:
        return None
    tail = decoder.getstate()[0]
    # Python waits for the third byte before it refuses half of a surrogate pair.
    return None if len(tail) == 2 and b"\xed\xa0" <= tail < b"\xee" else tail


def check_grammar(gbnf: str | None) -> str | None:
    """The same text (or None) if nothing is wrong with it whatever the model is; raises UsageError if there is."""
    if gbnf is not None:
        try:
            _Place(_parsed(gbnf, None)).close()
        except UsageError as error:
            if "no vocab" not in str(error):  # it names tokens of the model
                raise
    return gbnf


@contextmanager
def loaded_grammar(gbnf: str | None, model: LlamaModel) -> Iterator[Grammar | None]:
    """The grammar for `model`, None where there is none; closed at the end."""
    if gbnf is None:
        yield None
        return
    with Grammar(gbnf, model) as grammar:
        yield grammar


def _parsed(gbnf: str, vocab: llama_cpp.llama_vocab_p | None) -> llama_cpp.llama_sampler_p:
    try:
        data = gbnf.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UsageError("the grammar has half of a surrogate pair; write the whole character") from error
    if not data.strip():
        raise UsageError("the grammar is empty; it needs a rule `root ::= ...`")
    if b"\0" in data:
        raise UsageError("the grammar has a NUL byte; write it as \\x00")
    deepest = max(accumulate((char == "(") - (char == ")") for char in gbnf))
    if deepest > _MOST_NESTED or data.count(b"::=") > _MOST_RULES:
        raise UsageError(f"the grammar has more than {_MOST_NESTED} groups in each other, or {_MOST_RULES} rules")
    with library.captured_errors() as errors, library.captured_stderr() as printed:
        sampler = llama_cpp.llama_sampler_init_grammar(vocab, data, _ROOT)
    if not sampler:
        raise UsageError(f"llama.cpp refuses the grammar: {_reason(data, b''.join(printed), errors)}")
    return sampler


def _reason(gbnf: bytes, printed: bytes, errors: Sequence[str]) -> str:
    """llama.cpp's reason in one line. The parser prints `parse: error parsing grammar: REASON` and the whole grammar;
    some reasons end in all that was still to be read.
    """
    _, found, rest = printed.partition(b"error parsing grammar: ")
    if not found:
        return " ".join((errors or ["unknown reason"])[0].split())
    reason = rest.removesuffix(b"\n\n" + gbnf + b"\n")
    what, at, unread = reason.partition(b" at ")
    if not at or not gbnf.endswith(unread):
        return " ".join(reason.decode("utf-8", errors="replace").split())
    line = gbnf[: len(gbnf) - len(unread)].count(b"\n") + 1
    quote = unread.decode("utf-8", errors="replace").strip().split("\n")[0][:_LONGEST_QUOTE] or "the end"
    return f"{what.decode('utf-8', errors='replace')} at {quote} (line {line})"
