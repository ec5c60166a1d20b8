"""A conversation: what the model reads in each turn, what the cache keeps, and what is dropped when it is full."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from specrun.decoding.completion import Completion
from specrun.decoding.generation import Request
from specrun.decoding.session import Session
from specrun.errors import ModelFileError, PromptError
from specrun.llama_settings import LlamaSettings
from specrun.loading.model import Model
from specrun.loading.run_options import RunOptions
from specrun.sampling import SamplingParameters
from specrun.speculation.drafters.chain import CHAIN
from specrun.speculation.drafters.specexec import SPECEXEC
from specrun.speculation.method import OFF, Plan
from tests.conftest import SCRIPT_TEXT
from tests.models import CHAT_TEMPLATE, edited


@contextmanager
def conversation(
    model: Path,
    *,
    plan: Plan | None = None,
    ctx_size: int = 512,
    max_tokens: int | None = None,
    stops: list[str] | None = None,
) -> Iterator[Session]:
    """A session whose draft, if `plan` wants one, is the target itself."""
    one_thread = LlamaSettings(threads=1)
    options = RunOptions(
        model, model, (plan or OFF.plan(),), ctx_size=ctx_size, settings=one_thread, draft_settings=one_thread
    )
    with Model(options) as loaded:
        yield loaded.session(Request([], SamplingParameters(seed=3), max_tokens, tuple(stops or ())))


def answer(session: Session, prepared: tuple[Completion, int] | None) -> Completion:
    assert prepared
    completion, _ = prepared
    for _ in completion.stream():
        pass
    session.keep(completion)
    return completion


def read_text(session: Session, completion: Completion) -> str:
    """What the model read as its prompt."""
    model = session._written._model
    return b"".join(model.token_bytes(token, special=True) for token in completion.request.prompt).decode(
        errors="replace"
    )


def rendered(session: Session) -> str:
    """The conversation before the last answer, as the model's template writes it."""
    return session._format.prompt(session.messages[:-1])


@pytest.mark.parametrize("plan", [OFF.plan(), CHAIN.plan(depth=4), SPECEXEC.plan(8, 4)], ids=str)
def test_a_second_turn_decodes_only_what_is_new(random_model: Path, plan: Plan) -> None:
    with conversation(random_model, plan=plan, max_tokens=20) as session:
        first = answer(session, session.prepare("a rather long first question"))
        second = answer(session, session.prepare("more"))
        new = len(second.request.prompt) - len(first.request.prompt) - len(first.token_ids)
        assert second.request.prompt[: len(first.request.prompt) + 20] == first.request.prompt + first.token_ids
        # The last of the prompt waits for the first pass. Of the first answer the last token can wait too, and after a
        # tree all tokens that its last pass accepted out of the order of the cache.
        waiting = plan.depth if plan.method.kind == "tree" else 1
        assert new - 1 <= second.statistics.prompt_tokens_decoded <= new - 1 + waiting
        assert second.statistics.prompt_tokens == len(second.request.prompt)


@pytest.mark.slow
@pytest.mark.parametrize("plan", [OFF.plan(), SPECEXEC.plan(8, 4)], ids=str)
@pytest.mark.parametrize("stops", [[], ["two"], ["é"], [" end"]])
def test_every_turn_reads_the_conversation_as_the_template_writes_it(
    script: Path, plan: Plan, stops: list[str]
) -> None:
    with conversation(script, plan=plan, stops=stops) as session:
        for question in ("first", "second", "third"):
            completion = answer(session, session.prepare(question))
            assert completion.finish_reason == "stop"
            assert SCRIPT_TEXT.startswith(completion.text)
            assert read_text(session, completion) == rendered(session)


@pytest.mark.slow
def test_every_turn_is_read_right_after_interrupts_undo_and_changes(random_model: Path) -> None:
    with conversation(random_model, plan=SPECEXEC.plan(8, 4), max_tokens=12) as session:
        answer(session, session.prepare("one"))
        completion, _ = session.prepare("two")
        for _ in completion.stream(lambda: True):
            pass
        session.keep(completion)
        assert completion.finish_reason == "interrupted"
        assert session.messages[-1]["content"] == completion.text
        assert read_text(session, answer(session, session.prepare("three"))) == rendered(session)
        assert session.undo()
        assert read_text(session, answer(session, session.prepare("other"))) == rendered(session)
        session.system = "be brief"
        assert read_text(session, answer(session, session.prepare("four"))) == rendered(session)
        assert "be brief" in rendered(session)
        session.clear()
        assert session.messages == [{"role": "system", "content": "be brief"}]
        assert read_text(session, answer(session, session.prepare("five"))) == rendered(session)


def test_a_stop_string_ends_the_answer_but_not_the_conversation(random_model: Path) -> None:
    with conversation(random_model, max_tokens=12) as session:
        text = answer(session, session.prepare("one")).text
    with conversation(random_model, max_tokens=12, stops=[text[5:8]]) as session:
        assert answer(session, session.prepare("one")).text == text[: text.index(text[5:8])]
        assert read_text(session, answer(session, session.prepare("two"))) == rendered(session)


def test_another_answer_uses_the_next_seed(random_model: Path) -> None:
    with conversation(random_model, max_tokens=12) as session:
        assert session.regenerate() is None
        first = answer(session, session.prepare("one")).text
        second = answer(session, session.regenerate()).text
        assert first != second
        assert session.request.sampling.seed == 4
        assert [message["role"] for message in session.messages] == ["user", "assistant"]


def test_undo_forgets_a_question_and_its_answer(script: Path) -> None:
    with conversation(script) as session:
        session.system = "s"
        assert not session.undo()
        answer(session, session.prepare("one"))
        answer(session, session.prepare("two"))
        assert session.n_turns == 2
        assert session.undo()
        assert [message["content"] for message in session.messages] == ["s", "one", SCRIPT_TEXT]


def test_the_oldest_turns_make_room_but_the_system_message_stays(script: Path) -> None:
    with conversation(script, ctx_size=64) as session:
        session.system = "keep"
        dropped = []
        for i in range(8):
            completion, n_dropped = session.prepare(f"question number {i}")
            dropped.append(n_dropped)
            answer(session, (completion, n_dropped))
            assert len(completion.request.prompt) <= 48  # a quarter is left for the answer
            assert completion.text == SCRIPT_TEXT
        assert dropped[0] == 0
        assert sum(dropped) == 8 - session.n_turns > 0
        assert session.messages[0] == {"role": "system", "content": "keep"}
        assert session.messages[1]["role"] == "user"


def test_a_message_that_cannot_fit_changes_nothing(script: Path) -> None:
    with conversation(script, ctx_size=32) as session:
        answer(session, session.prepare("one"))
        before = list(session.messages)
        with pytest.raises(PromptError, match="--ctx-size"):
            session.prepare("word " * 40)
        assert session.messages == before
        assert answer(session, session.prepare("two")).text == SCRIPT_TEXT


def test_a_template_that_refuses_changes_nothing(script: Path, tmp_path: Path) -> None:
    refusal = "{% if 'b' in m.content %}{{ raise_exception('no b') }}{% endif %}"
    template = "{% for m in messages %}" + refusal + "{{ m.content }}{% endfor %}:"
    with conversation(edited(tmp_path / "model.gguf", script, {CHAT_TEMPLATE: template})) as session:
        session.system = "s"
        with pytest.raises(ModelFileError, match="no b"):
            session.prepare("bone")
        assert session.n_turns == 0
        assert answer(session, session.prepare("one")).text == SCRIPT_TEXT
