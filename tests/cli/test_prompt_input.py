"""Reading prompts: what is joined, what is cut off, and how bad input is told."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest

from specrun.cli.prompt_input import STDIN, PromptLine, read_lines, read_text
from specrun.errors import PromptError


class Stdin(io.TextIOWrapper):
    """stdin with the given bytes, on a terminal or not."""

    def __init__(self, data: bytes, terminal: bool = False) -> None:
        super().__init__(io.BytesIO(data), encoding="utf-8")
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "prompt.txt"
    path.write_text("from a file\n")
    return path


def pipe(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr("sys.stdin", Stdin(data))


def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", Stdin(b"never read", terminal=True))


def test_argument_files_and_stdin_are_joined_in_this_order(monkeypatch: pytest.MonkeyPatch, file: Path) -> None:
    pipe(monkeypatch, b"from stdin\r\n")
    assert read_text("argument", [file, file]) == "argument\nfrom a file\nfrom a file\nfrom stdin"


def test_a_terminal_is_not_read(monkeypatch: pytest.MonkeyPatch, file: Path) -> None:
    terminal(monkeypatch)
    assert read_text("argument", []) == "argument"
    assert read_text(None, [file]) == "from a file"
    with pytest.raises(PromptError, match="no prompt"):
        read_text(None, [])


def test_a_dash_is_stdin_even_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal(monkeypatch)
    assert read_text(STDIN, []) == "never read"


def test_only_the_last_newline_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe(monkeypatch, b"\n def f():\n\n")
    assert read_text(None, []) == "\n def f():\n"


def test_a_byte_order_mark_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe(monkeypatch, b"\xef\xbb\xbftext")
    assert read_text(None, []) == "text"
    pipe(monkeypatch, b'\xef\xbb\xbf{"prompt": "a"}\n')
    assert list(read_lines(None, [])) == [PromptLine(1, "a", number=1)]


@pytest.mark.parametrize("data", [b"", b"\n", b" \t\n \n"])
def test_a_prompt_without_text_is_refused(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    pipe(monkeypatch, data)
    with pytest.raises(PromptError, match="empty"):
        read_text("", [])


def test_bytes_that_are_not_utf8_are_located(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe(monkeypatch, "é".encode() + b"\xe9")
    with pytest.raises(PromptError, match=r"stdin is not UTF-8 \(byte 0xe9 at offset 2\)"):
        read_text(None, [])


def test_json_lines_are_numbered_where_they_have_no_id(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe(monkeypatch, b'{"prompt": "a"}\n\n{"prompt": "b", "id": "x"}\r\n{"prompt": "c"}')
    assert list(read_lines(None, [])) == [
        PromptLine(1, "a", number=1),
        PromptLine("x", "b", number=3),
        PromptLine(4, "c", number=4),
    ]


def test_the_argument_goes_before_each_json_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe(monkeypatch, b'{"prompt": "a"}\n{"prompt": "b"}\n')
    assert [line.prompt for line in read_lines("do:", [])] == ["do:\na", "do:\nb"]
    pipe(monkeypatch, b'{"prompt": "a"}\n')
    assert [line.prompt for line in read_lines(STDIN, [])] == ["a"]


def test_json_lines_of_files_come_before_those_of_stdin(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_bytes(b'{"prompt": "a"}\n\xff\n{"prompt": "b"}\n')
    pipe(monkeypatch, b'{"prompt": "c"}\n')
    assert [line.prompt for line in read_lines(None, [file])] == ["a", "", "b"]
    lines = list(read_lines(None, [Path(STDIN), file]))
    assert [(line.id, line.prompt) for line in lines] == [(1, "a"), (None, ""), (3, "b"), (4, "c")]


def test_a_line_separator_inside_a_json_string_does_not_end_the_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    terminal(monkeypatch)
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "a\u2028b\x85c"}\n', encoding="utf-8")
    assert [line.prompt for line in read_lines(None, [file])] == ["a\u2028b\x85c"]


@pytest.mark.parametrize(
    ("line", "identity", "part"),
    [
        (b"{", None, "line 1 is not JSON: .* at column 2"),
        (b'"text"', None, "is no object"),
        (b'{"prompt": 3, "id": "x"}', "x", 'no "prompt"'),
        (b'{"prompt": "", "id": "x"}', "x", "empty prompt"),
        (b'{"prompt": ""}', None, "empty prompt"),
        (b'{"prompt": "\xff"}', None, "line 1 is not UTF-8"),
        (b"[" * 100_000, None, "nested too deeply"),
        (b'{"prompt": ' + b"1" * 5000 + b"}", None, "a number that is too long"),
        (b'{"prompt": "a", "id": NaN}', None, "NaN, which is not a number"),
        (b'{"prompt": "a", "id": [{"b": -Infinity}]}', None, "-Infinity, which is not a number"),
        (b'{"prompt": "a", "id": 1e999}', None, "1e999, which is not a number"),
    ],
)
def test_a_bad_json_line_is_an_error_of_its_own(
    monkeypatch: pytest.MonkeyPatch, line: bytes, identity: object, part: str
) -> None:
    pipe(monkeypatch, line + b'\n{"prompt": "good"}')
    bad, good = read_lines(None, [])
    assert (bad.id, bad.number) == (identity, 1)
    assert re.search(part, bad.error or "")
    assert good == PromptLine(2, "good", number=2)


def test_a_missing_file_is_told_before_any_line_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(PromptError, match="cannot be read"):
        read_lines(None, [tmp_path / "missing"])
    with pytest.raises(PromptError, match="cannot be read"):
        read_text(None, [tmp_path])


def test_json_lines_need_a_source(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal(monkeypatch)
    with pytest.raises(PromptError, match="no prompts"):
        read_lines("argument", [])
