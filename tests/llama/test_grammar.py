"""Grammars are checked at any place of a text, and never in a way that makes llama.cpp end the process.

Those that llama.cpp would follow for hours end in one line.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np
import pytest

from specrun.catalog import embedded
from specrun.errors import UsageError
from specrun.llama import LlamaModel
from specrun.llama import grammar as grammar_module
from specrun.llama.grammar import Grammar, check_grammar, watched
from tests.conftest import Specrun, SpecrunHere
from tests.models import TOKEN_TYPES, TOKENS, edited, random_llama

LIST = """
# a list of words, in lines
root ::= item ("," item)* "."
item ::= [a-z]+ | "<" [0-9]{1,3} ">"
"""
USAGE = 2  # exit code

# Every rule is read as one of the next, or as two.
EXPONENTIAL = (
    "root ::= r0\n" + "\n".join(f"r{i} ::= r{i + 1} | r{i + 1} r{i + 1}" for i in range(40)) + '\nr40 ::= "x"\n'
)
# A left recursion behind a rule that is empty through another one, which llama.cpp does not see.
RECURSIVE = 'root ::= b root "z" | "x"\nb ::= c\nc ::= | "y"\n'
HUGE = 'root ::= "' + "a" * 1_000_000 + '"{2000}\n'


@pytest.fixture(scope="module")
def model() -> Iterator[LlamaModel]:
    with LlamaModel(embedded.TARGET) as model:
        yield model


def tokens_of(model: LlamaModel, text: str) -> list[int]:
    return model.tokenize(text, add_special=False)


def allowed_texts(grammar: Grammar, model: LlamaModel, written: list[int]) -> set[bytes]:
    everything = np.arange(model.n_vocab)
    return {model.token_bytes(token, special=True) for token in everything[grammar.allowed(written, everything)]}


def test_what_may_follow(model: LlamaModel) -> None:
    with Grammar(LIST, model) as grammar:
        start = allowed_texts(grammar, model, [])
        assert {b"a", b"<"} <= start
        assert not {b"A", b",", b".", b"0", b" ", b"<|endoftext|>"} & start
        assert all(text.decode().islower() for text in start - {b"<"})
        assert allowed_texts(grammar, model, tokens_of(model, "ab,<123")) == {b">"}
        assert allowed_texts(grammar, model, tokens_of(model, "ab.")) == {b"<|endoftext|>"}


def test_it_is_complete_where_it_may_end(model: LlamaModel) -> None:
    with Grammar(LIST, model) as grammar:
        assert [grammar.is_complete(tokens_of(model, text)) for text in ("", "ab", "ab,<1>.", "A.")] == [
            False,
            False,
            True,
            False,
        ]


def test_nothing_follows_an_end_or_what_is_forbidden(model: LlamaModel) -> None:
    end = next(token for token in range(model.n_vocab) if model.is_end_of_generation(token))
    with Grammar(LIST, model) as grammar:
        for text in ([*tokens_of(model, "ab."), end], [end], tokens_of(model, "AB"), [*tokens_of(model, "AB"), 5, 6]):
            assert allowed_texts(grammar, model, text) == set()


@pytest.mark.slow
def test_places_are_found_again_in_any_order(model: LlamaModel) -> None:
    rng = np.random.default_rng(0)
    everything = np.arange(model.n_vocab)
    with Grammar(LIST, model) as grammar, Grammar(LIST, model) as other:
        texts: list[list[int]] = [[]]
        for _ in range(600):  # more than are kept
            text = texts[int(rng.integers(len(texts)))]
            following = everything[grammar.allowed(text, everything)]
            texts.append([*text, int(rng.choice(following))] if len(following) else text)
        for text in reversed(texts):
            ids = rng.choice(everything, 50)
            np.testing.assert_array_equal(grammar.allowed(text, ids), other.allowed(text, ids))


def test_a_long_text_is_walked_from_its_beginning(model: LlamaModel) -> None:
    long = tokens_of(model, ",".join(["word"] * 700))
    with Grammar(LIST, model) as grammar:
        assert grammar.is_complete([*long, *tokens_of(model, ".")])
        assert not grammar.is_complete(long)


def test_characters_are_written_whole(model: LlamaModel) -> None:
    byte = {model.token_bytes(token): token for token in range(model.n_vocab) if len(model.token_bytes(token)) == 1}
    with Grammar("root ::= [^x]*", model) as grammar:
        assert grammar.is_complete([])
        for spelled in ("é", "€", "😀"):
            data = [byte[bytes([value])] for value in spelled.encode()]
            for n in range(1, len(data)):
                assert not grammar.is_complete(data[:n])
                assert all(0x80 <= text[0] < 0xC0 for text in allowed_texts(grammar, model, data[:n]))
            assert grammar.is_complete(data)
        for broken in (b"\xff", b"\xf7", b"\xc0\x80", b"\xed\xa0", b"\xe0\x82", b"\x80", b"\xc3\xc3"):
            data = [byte[bytes([value])] for value in broken]
            assert not grammar.allowed(data[:-1], np.array(data[-1:]))[0], broken


@pytest.mark.slow
def test_a_character_that_was_begun_can_be_ended(model: LlamaModel) -> None:
    byte = {model.token_bytes(token): token for token in range(model.n_vocab) if len(model.token_bytes(token)) == 1}
    following = np.array([byte[bytes([value])] for value in range(1, 256) if bytes([value]) in byte])
    n_checked = 0
    with Grammar("root ::= [^x]*", model) as grammar:
        begun = [[first] for first in following[grammar.allowed([], following)].tolist()]
        while begun:
            text = begun.pop()
            if grammar.is_complete(text):
                continue
            n_checked += 1
            further = following[grammar.allowed(text, following)].tolist()
            assert further, b"".join(map(model.token_bytes, text))
            begun += [[*text, token] for token in (further if len(text) < 2 else further[:1])]
    assert n_checked > 1500, "all the ways to begin a character with one byte or two, and some with three"


def test_control_tokens_are_never_allowed(tmp_path: Path) -> None:
    source = random_llama(tmp_path / "source.gguf", vocab_extra=1)
    fields = gguf.GGUFReader(source).fields
    tokens, types = fields[TOKENS].contents(), fields[TOKEN_TYPES].contents()
    tokens[-1], types[-1] = "<|turn|>", int(gguf.TokenType.CONTROL)
    file = edited(tmp_path / "control.gguf", source, {TOKENS: tokens, TOKEN_TYPES: types})
    with LlamaModel(file) as model, Grammar("root ::= .*", model) as grammar:
        control = model.n_vocab - 1
        assert model.token_bytes(control, special=True) == b"<|turn|>"
        assert not grammar.allowed([], np.array([control]))[0]
        assert b"<|turn|>" not in allowed_texts(grammar, model, [])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("gbnf", "parts"),
    [
        ("", ["empty"]),
        (" \n", ["empty"]),
        ("# nothing but a comment", ["failed to parse"]),
        ('answer ::= "a"', ["does not contain a 'root' symbol"]),
        ('root ::= "a" (\n\n', ["expecting ')' at the end", "(line 3)"]),
        ('# one\nroot ::= "a"\n\nitem = "b"\n', ['expecting ::= at = "b"', "(line 4)"]),
        ("root ::= item", ["Undefined rule identifier 'item'"]),
        ('root ::= root "a" | "b"', ["left recursion"]),
        ('root ::= "a"{99999999999999999999}', ["more repetitions than llama.cpp can count (line 1)"]),
        ('root ::= "a"{3,2}', ["at least 3 and at most 2 repetitions (line 1)"]),
        ('# {1,0} is no part\nroot ::= ("{5,4}" [{5,4}\\]\n"]) { 20 , # twenty\n 3 }', ["at least 20", "(line 3)"]),
        ("root ::= " + '")" (' * 100_000 + '"a"' + ")" * 100_000, ["more than 1000 groups in each other"]),
        ('root ::= "a"{5000}', ["number of repetitions exceeds sane defaults"]),
        ('root ::= "a\0"', ["NUL"]),
        ('root ::= "\ud800"', ["surrogate"]),
        ("root ::= " + "(" * 100_000 + '"a"' + ")" * 100_000, ["more than 1000 groups in each other"]),
        ("root ::= r\n" + 'r ::= "a"\n' * 10_000, ["or 10000 rules"]),
        ("root ::= * at a loss at * at all", ["expecting preceding item"]),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_bad_grammar_is_one_line_and_nothing_is_printed(
    model: LlamaModel, capfd: pytest.CaptureFixture[str], gbnf: str, parts: list[str]
) -> None:
    for check in (check_grammar, lambda text: Grammar(text, model)):
        with pytest.raises(UsageError) as refused:
            check(gbnf)
        assert "\n" not in str(refused.value)
        assert all(part in str(refused.value) for part in parts), str(refused.value)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    "gbnf",
    [
        "root ::= " + "(" * 1000 + '"a"' + ")" * 1000,
        'root ::= ("' + "(" * 2000 + '" # ' + "::=" * 10_001 + '\n)? "a"',
        'root ::= "a"{1} | "b"{1,1} | "c"{0,} | "{3,2}" | [{3,2}]',
        "root ::= r1\n" + "".join(f"r{i} ::= r{i + 1}\n" for i in range(1, 9999)) + 'r9999 ::= "a"',
    ],
    ids=["groups", "signs in texts", "repetitions", "rules"],
)
def test_the_largest_grammars_work(model: LlamaModel, gbnf: str) -> None:
    with Grammar(gbnf, model) as grammar:
        assert grammar.is_complete(tokens_of(model, "a"))


def test_tokens_named_in_a_grammar_are_looked_up_in_the_model(model: LlamaModel) -> None:
    known, unknown = "root ::= <|endoftext|>", "root ::= <|of another model|>"
    assert [check_grammar(text) for text in (known, unknown)] == [known, unknown]
    with Grammar(known, model):
        pass
    with pytest.raises(UsageError, match="invalid token"):
        Grammar(unknown, model)


def test_no_grammar_is_none() -> None:
    assert check_grammar(None) is None


@pytest.mark.parametrize("grammar", [RECURSIVE, HUGE, EXPONENTIAL], ids=["recursive", "huge", "exponential"])
def test_a_grammar_without_end_ends_the_command(specrun: Specrun, tmp_path: Path, script: Path, grammar: str) -> None:
    (tmp_path / "grammar").write_text(grammar)
    result = specrun("generate", "x", "-m", script, "--grammar", tmp_path / "grammar")
    result.assert_fails(USAGE, "the grammar takes too much time or memory")


def test_a_long_call_is_an_error_and_a_short_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    with watched():
        pass
    monkeypatch.setattr(grammar_module, "_LONG_SECONDS", -1.0)
    with pytest.raises(UsageError, match="too much time or memory"), watched():
        pass


def test_calls_of_other_threads_are_told_apart() -> None:
    entered, may_leave = threading.Event(), threading.Event()

    def other_call() -> None:
        with watched():
            entered.set()
            may_leave.wait()

    other = threading.Thread(target=other_call)
    with watched():
        other.start()
        entered.wait()
        assert len(grammar_module._started_at) == 2
    assert list(grammar_module._started_at) == [other.ident]
    may_leave.set()
    other.join()
    assert not grammar_module._started_at


@pytest.mark.slow
def test_a_device_is_not_read_without_end(here: SpecrunHere, script: Path) -> None:
    for option in ("--grammar", "--json-schema"):
        here("generate", "x", "-m", script, option, "/dev/zero").assert_fails(USAGE, "more than 16 MiB")
