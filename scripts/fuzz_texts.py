"""Give thousands of texts of any characters to specrun, in every way in which texts come in, with every template.

    python scripts/fuzz_texts.py --texts 10000 --templates llama.cpp/models/templates

A text has characters of all Unicode, lone surrogates and NUL among them, and marks of templates. With one template
after the other (none, llama.cpp's named ones, and the Jinja files of --templates) a small real model gets it as prompt,
in Python with a system message, as line of --jsonl, as message and system message of a chat, and in a request to the
server. It prints how these ended: answered, or refused in one line. What must not happen is a traceback, a line that
is no JSON or has another id, an answer of the server that is neither 200 nor 400, and a chat that ends early. The exit
code is 1 if that happened.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import specrun
from specrun.chat.loop import ChatLoop, Surroundings
from specrun.cli.answers import Printed
from specrun.cli.generate import read_lines
from specrun.cli.writing import AnswerWriter, Lines, write_lines
from specrun.decoding.generation import make_request
from specrun.errors import SpecrunError
from specrun.llama.chat_template import template_names
from specrun.loading.model import Model
from specrun.options.sampling_options import ChatSamplingOptions
from specrun.speculation.method import OFF
from specrun.views.answer_stream import show_plain
from tests import models
from tests.serving.running import CHAT, running

# First and last characters of ranges; those of a text come from three of them.
_RANGES = (
    *(
        (0, 0),
        (1, 0x1F),
        (0x20, 0x7E),
        (0x20, 0x7E),
        (0x7F, 0x24F),
        (0x250, 0xD7FF),
        (0xD800, 0xDFFF),
        (0xE000, 0xFFFF),
    ),
    *((0x202A, 0x202E), (0x10000, 0x10FFFF), (0x1F300, 0x1FAFF)),
)
_PIECES = ("<|im_end|>", "<think>", "</s>", "{{ 1 / 0 }}", "{% raw %}", "\r\n", '"""', "/exit", "\\ud83d", "[INST]")
_LONGEST = 24  # characters
_NUMBERS = ("NaN", "-Infinity", "1e999", "0.1", "12345678901234567890", "-0.0", "null")  # as ids of lines
_NO_JSON = _NUMBERS[:3]
_OPTIONS = ChatSamplingOptions(temp=0, max_tokens=2)

Seen = Counter[tuple[str, str]]  # (way, how it ended) -> number


def drawn(rng: random.Random) -> str:
    """A text."""
    ranges = rng.sample(_RANGES, 3)
    parts = [chr(rng.randint(*rng.choice(ranges))) for _ in range(rng.randint(1, _LONGEST))]
    parts += rng.sample(_PIECES, rng.randint(0, 2))
    rng.shuffle(parts)
    return "".join(parts)


def tried(texts: Sequence[str], file: Path, rng: random.Random, seen: Seen) -> None:
    """Give the texts to a model in every way. Raises what should not happen."""
    with specrun.load(file, speculate="off", draft="none", threads=1, ctx_size=512, learn=False) as model:
        writer = AnswerWriter(model, make_request(_OPTIONS), False, None, "show", False)
        has_template = model.llama_model.chat_template is not None
        for text in texts:
            seen["prompt", _ending(partial(writer.write, text, False))] += 1
            system = rng.choice(texts) if has_template else None
            answer = partial(model.generate, text, system=system, max_tokens=2, temp=0)
            seen["prompt from Python", _ending(answer)] += 1
        _write(texts, writer, rng, seen)
        _talk(texts, model, seen)
    with running(file, plan=OFF.plan(), ctx_size=512) as server:
        for text in texts:
            body = {"messages": [{"role": role, "content": text} for role in ("system", "user")], "max_tokens": 2}
            response = server.client.post(CHAT, content=json.dumps(body))
            assert response.status_code in (200, 400), response.text
            seen["request", "answered" if response.status_code == 200 else "refused"] += 1


def _ending(write: Callable[[], object]) -> str:
    try:
        write()
    except SpecrunError as error:
        if not str(error) or "\n" in str(error):
            raise
        return "refused"
    return "answered"


def _write(texts: Sequence[str], writer: AnswerWriter, rng: random.Random, seen: Seen) -> None:
    """The texts as lines of --jsonl, with other texts and numbers as ids."""
    ids = [json.dumps([rng.choice(texts)]) if rng.random() < 0.5 else rng.choice(_NUMBERS) for _ in texts]
    lines = [f'{{"prompt": {json.dumps(text)}, "id": {own}}}' for text, own in zip(texts, ids, strict=True)]
    written = io.TextIOWrapper(io.BytesIO(), encoding=rng.choice(("utf-8", "ascii")), errors="replace")
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file, redirect_stdout(written):
        file.write("\n".join(lines))
        file.flush()
        with Printed(as_ready=False) as printed:
            write_lines(writer, Lines(read_lines(None, [Path(file.name)])), printed)
    written.seek(0)
    for number, own, line in zip(range(1, len(ids) + 1), ids, written.read().split("\n"), strict=False):
        answer = json.loads(line, parse_constant=_refuse)
        if own in _NO_JSON:
            assert (answer["id"], answer["line"]) == (number, number), (own, line)
        else:
            assert answer["id"] == json.loads(own), (own, line)
        seen["line", "refused" if "error" in answer else "answered"] += 1


def _refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is no JSON")


def _talk(texts: Sequence[str], model: Model, seen: Seen) -> None:
    """The texts as messages of a chat, each behind itself as the system message, and then without one."""
    lines = [line for text in texts for line in (f"/system {text}", f"x{text}", "/system", f"x{text}", "/clear")]
    typed, n_answers = iter(lines), 0

    def show(*shown: Any) -> None:
        nonlocal n_answers
        show_plain(*shown)
        n_answers += 1

    ChatLoop(
        None,
        make_request(_OPTIONS),
        Surroundings(partial(_next, typed), lambda _: show, lambda _: model),
    ).run()
    assert next(typed, None) is None, "the chat ended early"
    seen["message", "answered"] += n_answers
    seen["message", "refused"] += 2 * len(texts) - n_answers


def _next(typed: Iterator[str]) -> str:
    """What is typed next."""
    for line in typed:
        return line
    raise EOFError


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--templates", type=Path, help="a folder with Jinja files, such as llama.cpp's models/templates"
    )
    arguments = parser.parse_args()
    files = sorted(arguments.templates.glob("*.jinja")) if arguments.templates else []
    templates = {"no template": None} | {name: name for name in template_names()}
    templates |= {file.name: file.read_text(encoding="utf-8") for file in files}
    rng, seen, started, n_bad = random.Random(arguments.seed), Seen(), time.perf_counter(), 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        os.environ |= {f"SPECRUN_{kind}_DIR": str(folder / kind.lower()) for kind in ("DATA", "CONFIG", "CACHE")}
        model = models.scripted_llama(folder / "model.gguf", [b"one", b" two"])
        for i, (name, template) in enumerate(templates.items()):
            n = arguments.texts * (i + 1) // len(templates) - arguments.texts * i // len(templates)
            texts = [drawn(rng) for _ in range(n)]
            file = models.edited(folder / "with-template.gguf", model, {models.CHAT_TEMPLATE: template})
            try:
                with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
                    tried(texts, file, rng, seen) if texts else None
            except Exception:
                n_bad += 1
                print(f"with {name}:\n{traceback.format_exc()[-2000:]}")
    print(f"{arguments.texts} texts with {len(templates)} templates in {time.perf_counter() - started:.0f} s")
    for (way, ending), count in sorted(seen.items()):
        print(f"{count:8} {way}: {ending}")
    sys.exit(bool(n_bad))


if __name__ == "__main__":
    main()
