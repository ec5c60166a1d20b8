"""`--grammar` and `--json-schema`: what is written parses, and what cannot be used is one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import SpecrunHere

USAGE_ERROR = 2
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "sizes": {"type": "array", "maxItems": 3, "items": {"type": "integer"}},
    },
    "required": ["name", "sizes"],
}
LOW = 'root ::= [a-z]{1,20} "!"'


@pytest.fixture
def schema(tmp_path: Path) -> Path:
    file = tmp_path / "schema.json"
    file.write_text(json.dumps(SCHEMA))
    return file


@pytest.fixture
def grammar(tmp_path: Path) -> Path:
    file = tmp_path / "low.gbnf"
    file.write_text(LOW)
    return file


@pytest.mark.slow
@pytest.mark.parametrize("temperature", ["0", "0.8", "1.5"])
def test_json_by_a_schema_with_the_embedded_pair(here: SpecrunHere, schema: Path, temperature: str) -> None:
    texts = set()
    for plan in ("off", "chain", "tree", "auto"):
        result = here(
            *("generate", "def read(path):", "--json-schema", schema, "--speculate", plan, "--temp", temperature),
            *("--seed", "4"),
        )
        assert result.code == 0
        assert set(json.loads(result.stdout)) == {"name", "sizes"}
        texts.add(result.stdout)
    assert len(texts) == 1


@pytest.mark.slow
def test_json_and_jsonl_take_a_grammar(here: SpecrunHere, grammar: Path) -> None:
    one = json.loads(here("generate", "x", "--grammar", grammar, "--json").stdout)
    assert (one["text"][-1], one["finish_reason"]) == ("!", "stop")
    lines = here("generate", "--jsonl", "--grammar", grammar, stdin='{"prompt": "a"}\n{"prompt": "b"}').stdout
    texts = [json.loads(line)["text"] for line in lines.splitlines()]
    assert len(texts) == 2
    assert all(text[:-1].islower() and text.endswith("!") for text in texts)


@pytest.mark.slow
def test_a_text_that_is_cut_off_is_noted(here: SpecrunHere, schema: Path) -> None:
    result = here("generate", "x", "--json-schema", schema, "-n", "3", "--speculate", "off")
    assert result.code == 0
    why = "the text is cut off ({}): it is only the beginning of what the grammar asks for; give a larger {}\n"
    assert result.stderr == why.format("length", "--max-tokens")
    full = here("generate", "x", "--raw", "--json-schema", schema, "-c", "8", "--speculate", "off")
    assert full.stderr == why.format("context", "--ctx-size")
    whole = here("generate", "x", "--json-schema", schema, "--speculate", "off")
    assert whole.stderr == ""


@pytest.mark.slow
def test_every_answer_of_a_chat_follows_it(here: SpecrunHere, grammar: Path) -> None:
    lines = "one\ntwo\n/regen\n/set max-tokens 1\nthree"
    result = here("chat", "-m", "embedded", "--grammar", grammar, "--seed", "1", stdin=lines)
    answers = result.stdout.split()
    assert len(answers) == 4
    assert all(answer.endswith("!") and answer[:-1].islower() for answer in answers[:3])
    assert result.stderr.count("cut off (length)") == (not answers[3].endswith("!"))


def test_a_model_that_wants_to_write_something_else(here: SpecrunHere, script: Path, grammar: Path) -> None:
    # It would write "one two é end".
    result = here("generate", "x", "-m", script, "-md", script, "--grammar", grammar)
    assert result.stdout.startswith("one")
    assert " " not in result.stdout
    assert result.stdout.endswith("!\n")


def test_a_value_can_be_the_text_itself(here: SpecrunHere) -> None:
    schema = '{"type": "string", "pattern": "^a//b$"}'  # whose slashes no path would keep
    assert here("generate", "x", "--json-schema", schema).stdout == '"a//b"\n'
    assert here("generate", "x", "--grammar", 'root ::= "yes"').stdout == "yes\n"
    here("generate", "x", "--json-schema", "{").assert_fails(USAGE_ERROR, "--json-schema: the schema is not JSON")
    here("generate", "x", "--grammar", "root ::= [z-a]").assert_fails(USAGE_ERROR, "--grammar: ", "range z-a")


def test_a_text_of_another_form_is_not_looked_for_as_a_file_alone(here: SpecrunHere) -> None:
    long = "root = " + 300 * "x"  # as no name of a file is
    for text, quote in (("root = x", "root = x"), (long, f"{long[:200]}...")):
        result = here("generate", "x", "--grammar", text)
        result.assert_fails(USAGE_ERROR, f"{quote} is neither a file nor GBNF, such as: root ::= ")
    result = here("generate", "x", "--json-schema", '"type": "string"')
    result.assert_fails(USAGE_ERROR, "neither a file nor a JSON schema, such as {")


@pytest.mark.parametrize("option", ["--grammar", "--json-schema"])
def test_files_that_cannot_be_read(here: SpecrunHere, tmp_path: Path, option: str) -> None:
    here("generate", "x", option, tmp_path / "none").assert_fails(USAGE_ERROR, f"{option}: ", "none is neither a file")
    here("generate", "x", option, tmp_path).assert_fails(USAGE_ERROR, "cannot be read")
    file = tmp_path / "latin"
    file.write_bytes(b"root \xe9")
    here("chat", option, file).assert_fails(USAGE_ERROR, "latin is not UTF-8", "0xe9", "offset 5")


def test_grammar_and_schema_exclude_each_other(here: SpecrunHere, grammar: Path, schema: Path) -> None:
    for command in (("generate", "x"), ("chat",)):
        result = here(*command, "--grammar", grammar, "--json-schema", schema)
        result.assert_fails(USAGE_ERROR, "--grammar and --json-schema exclude each other")


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("{", ["is not JSON", "at column 2"]),
        ('{"const": NaN}', ["NaN, which is not a number"]),
        ('{"const": 1e999}', ["1e999, which is not a number"]),
        (f'{{"const": {"9" * 5000}}}', ["a number that is too long"]),
        ("[" * 100_000, ["nested too deeply"]),
        ('{"items": ' * 3000 + "{}" + "}" * 3000, ["nested too deeply"]),
        ('{"type": "string", "pattern": "(?<=a)b"}', ["schema.json: the schema at #"]),
        ('{"$ref": "#"}', ["must contain itself"]),
        ('{"enum": ["\\ud800"]}', ["surrogate"]),
        ("false", ["false allows no value"]),
    ],
    ids=lambda value: str(value)[:30],
)
def test_schemas_that_cannot_be_used(here: SpecrunHere, tmp_path: Path, text: str, parts: list[str]) -> None:
    file = tmp_path / "schema.json"
    file.write_text(text)
    # Before the model is looked for: that there is none is not what is said.
    here("generate", "x", "-m", tmp_path / "no.gguf", "--json-schema", file).assert_fails(USAGE_ERROR, *parts)


def test_grammars_that_cannot_be_used(here: SpecrunHere, tmp_path: Path) -> None:
    file = tmp_path / "bad.gbnf"
    for text, part in (
        ("", "empty"),
        ('root ::= "a" |\nx = 1\n', "(line 2)"),
        ("root ::= [z-a]", "range z-a (line 1)"),
    ):
        file.write_text(text)
        here("generate", "x", "-m", tmp_path / "no.gguf", "--grammar", file).assert_fails(
            USAGE_ERROR, f"{file}: ", part
        )
    file.write_text("root ::= <|no such token|>")
    here("generate", "x", "--grammar", file).assert_fails(USAGE_ERROR, "invalid token")
