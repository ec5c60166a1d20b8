"""Texts whose prompts come from disk go on bit for bit as if they had been read, and nothing wrong is ever used."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from specrun import kept_facts
from specrun.catalog import embedded
from specrun.decoding import prompt_file, prompt_folder, prompt_states
from specrun.decoding.engine import Engine, SavedCaches
from specrun.decoding.generation import Request
from specrun.decoding.prompt_states import Lookup, PromptStates
from specrun.errors import ContextFullError
from specrun.llama.rollback import CachedText
from specrun.llama_settings import LlamaSettings
from specrun.loading.model import Model
from specrun.loading.run_options import RunOptions
from specrun.sampling import SamplingParameters
from specrun.speculation.drafters.chain import CHAIN
from specrun.speculation.drafters.specexec import SPECEXEC
from specrun.speculation.method import OFF, Plan
from tests.dflash_heads import dflash2_pair
from tests.eagle_heads import agreeing_pair
from tests.engines import Written, code_prompts, engine, first_difference, write
from tests.gemma4 import random_assistant, random_gemma4
from tests.hybrids import noisy, random_recurrent
from tests.models import random_gemma3
from tests.mtp_targets import random_mtp_step35
from tests.other_caches import random_deepseek2

SAMPLED, GREEDY = SamplingParameters(temperature=0.8, seed=1), SamplingParameters(temperature=0)
PLANS = [OFF.plan(), CHAIN.plan(depth=3), SPECEXEC.plan(16, 5)]
FEWEST = 16  # tokens, so that short texts do


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder, in which short texts are kept, too, with many checksums."""
    monkeypatch.setenv("SPECRUN_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(prompt_states, "FEWEST", FEWEST)
    monkeypatch.setattr(prompt_file, "_PIECE", 1 << 14)
    return tmp_path / "prompts"


def states(subject: str = "subject", draft: str = "draft") -> PromptStates:
    """Those of a machine on which reading a token takes a second."""
    made = PromptStates(subject, draft)
    made.has_read(1000, 1000.0)
    return made


def write_behind(e: Engine, prompt: list[int], found: Lookup, plan: Plan, sampling: SamplingParameters) -> Written:
    """The text after a prompt that was taken up, of which no more is read than has to be."""
    written = write(e, prompt, sampling, plan, 12)
    assert written.statistics.prompt_tokens_decoded <= len(prompt) - found.n_tokens
    return written


@dataclass
class Kept:
    """A text that was kept on disk, the next prompt of its conversation, and what is written after that."""

    target: Path
    draft: Path
    folder: Path  # a copy of what was kept
    copy: SavedCaches  # the same in memory
    prompt: list[int]
    expected: dict[float, Written]  # by temperature: plainly, by an engine that goes on with its own text


def _models(kind: str, folder: Path) -> tuple[Path, Path]:
    if kind == "embedded":
        return embedded.TARGET, embedded.DRAFT
    if kind == "eagle3":
        return agreeing_pair(folder)
    if kind == "dflash":
        return dflash2_pair(folder)
    path = folder / "target.gguf"
    if kind == "gemma4":
        random_gemma4(path)
        return path, random_assistant(folder / "draft.gguf", path)
    if kind == "mtp":
        return random_mtp_step35(path), path
    if kind == "gemma3":
        random_gemma3(path, window=24)
    elif kind == "deepseek2":
        random_deepseek2(path)
    else:
        random_recurrent(path, kind)
    return path, noisy(folder / "draft.gguf", path, 0.04)


KINDS = ["embedded", "gemma3", "deepseek2", "qwen35", "mamba", "eagle3", "mtp", "dflash", "gemma4"]


@pytest.fixture(scope="module", params=KINDS)
def kept(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Kept:
    """Of a target of each kind of cache, with a draft or a head. A chain has written the text that is kept."""
    place = tmp_path_factory.mktemp(request.param)
    target, draft = _models(request.param, place)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPECRUN_CACHE_DIR", str(place / "cache"))
        patch.setattr(prompt_states, "FEWEST", FEWEST)
        patch.setattr(prompt_file, "_PIECE", 1 << 14)
        with engine(target, draft, PLANS[1], ctx_size=300) as e:
            first, then = code_prompts(e, 2, 60)
            answer = write(e, first, SAMPLED, PLANS[1], 20)
            saved = e.save()
            states().close(e)
        prompt = [*first, *answer.tokens, *then[:10]]
        with engine(target, None, OFF.plan(), ctx_size=300) as e:
            expected = {}
            for sampling in (SAMPLED, GREEDY):
                e.reset()
                assert write(e, first, SAMPLED, OFF.plan(), 20).tokens == answer.tokens
                expected[sampling.temperature] = write(e, prompt, sampling, OFF.plan(), 12)
    assert saved
    return Kept(target, draft, place / "cache" / "prompts", saved, prompt, expected)


@pytest.mark.slow
@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_a_text_goes_on_from_disk_as_if_it_had_never_ended(kept: Kept, folder: Path, plan: Plan) -> None:
    shutil.copytree(kept.folder, folder)
    with engine(kept.target, kept.draft, plan, ctx_size=300) as e:
        found = states().take_up(e, kept.prompt)
        assert len(kept.prompt) - found.n_tokens <= 20, found.words
        if e.draft:
            assert e.draft.n_unread(kept.prompt) <= 30, "the draft's cache comes from disk, too"
        assert first_difference(write_behind(e, kept.prompt, found, plan, SAMPLED), kept.expected[0.8]) is None
        if plan is PLANS[1]:
            e.reset()
            found = states().take_up(e, kept.prompt)
            assert first_difference(write_behind(e, kept.prompt, found, plan, GREEDY), kept.expected[0.0]) is None


@pytest.mark.slow
def test_a_copy_in_memory_is_written_as_llama_cpp_writes_the_cache(kept: Kept) -> None:
    store = states()
    store.keep(kept.copy)
    store._wait()
    (path,), (expected,) = prompt_folder.files(), kept.folder.glob("*/*.state")
    assert (path.name, path.read_bytes()) == (expected.name, expected.read_bytes())


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["qwen35", "mamba"])
def test_recurrent_states_are_kept_where_two_prompts_part(kind: str, tmp_path: Path) -> None:
    path = random_recurrent(tmp_path / "model.gguf", kind)
    with engine(path, None, OFF.plan(), ctx_size=300) as e:
        common, *ends = code_prompts(e, 4, 50)
        prompts = [[*common, 40 + i, *end] for i, end in enumerate(ends)]
        expected = []
        for prompt in prompts:
            e.reset()
            expected.append(write(e, prompt, SAMPLED, OFF.plan(), 8))
        n_decoded = []
        for prompt, wanted in zip(prompts, expected, strict=True):
            e.reset()
            store = states()
            written = write(e, prompt, SAMPLED, OFF.plan(), 8, store)
            assert first_difference(written, wanted) is None
            n_decoded.append(written.statistics.prompt_tokens_decoded)
            store.close(e)
    assert n_decoded == [100, 100, 50]


def opened(**settings: object) -> Model:
    """The embedded target alone, which keeps its prompts."""
    given = LlamaSettings(threads=1, **settings)  # type: ignore[arg-type]
    model = Model(RunOptions(embedded.TARGET, None, (OFF.plan(),), settings=given))
    model.keep_prompts()
    assert model.prompt_states
    model.prompt_states.has_read(1000, 1000.0)
    return model


def restored(model: Model, prompt: list[int]) -> int:
    """Tokens of a prompt that came from disk."""
    assert model.prompt_states
    return model.prompt_states.take_up(model.engine, prompt).n_tokens


@pytest.mark.slow
def test_a_quantized_cache_is_kept_and_other_settings_read_again() -> None:
    with opened(type_k="q8_0", type_v="q4_0") as model:
        (prompt,) = code_prompts(model.engine, 1, 60)
        expected = write(model.engine, prompt, SAMPLED, OFF.plan(), 12)
    with opened(type_k="q8_0", type_v="q4_0") as model:
        assert restored(model, prompt) == 59
        assert first_difference(write(model.engine, prompt, SAMPLED, OFF.plan(), 12), expected) is None
    for others in ({"type_k": "f16"}, {"type_k": "q8_0", "type_v": "q8_0"}, {"flash_attn": "off"}, {"repack": True}):
        with opened(**others) as model:
            assert restored(model, prompt) == 0
            model.engine.reset()  # so that nothing is kept


@pytest.mark.slow
def test_a_conversation_goes_on_with_the_tokens_that_it_was_written_with() -> None:
    request = Request(sampling=SamplingParameters(1.5, top_k=0, top_p=1, min_p=0, seed=7), max_tokens=60)
    question = "import os\n\ndef walk(path, names, depth):\n    found = []\n    for name in names:\n"
    with opened() as model:
        session = model.session(request)
        tokens = session.ask(question).tokens_with_prompt
        going_on, _ = session.prepare("and?")
        split_anew = model.prompt_tokens(session._asked, raw=True)
        messages = session.messages[:-1]
    assert tokens
    assert going_on.request.prompt[: len(tokens)] == tokens != split_anew[: len(tokens)]
    with opened() as model:
        session = model.session(request)
        session.messages = messages
        again, _ = session.prepare("and?")
        assert again.request.prompt == going_on.request.prompt
        assert restored(model, again.request.prompt) >= len(tokens) - 1
        other, rest = session._written.tokens(question), model.prompt_tokens(question, raw=True)
        assert other == rest, "a text that only begins alike is split as ever"


@pytest.fixture(scope="module")
def e() -> Iterator[Engine]:
    with engine(embedded.TARGET, embedded.DRAFT, PLANS[1], ctx_size=300) as made:
        yield made


def keep(e: Engine, prompt: list[int], store: PromptStates | None = None) -> PromptStates:
    """Read a prompt, and keep it on disk; the caches are empty afterwards."""
    store = store or states()
    e.target.set_prompt(prompt)
    store.close(e)
    e.reset()
    return store


@pytest.mark.parametrize("way", ["with room", "checked behind llama.cpp", "a Python without preadv2"])
def test_what_is_damaged_is_deleted_and_read_again(e: Engine, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    monkeypatch.setattr(prompt_file, "_ROOM", 0 if way == "with room" else 1 << 50)
    if way == "a Python without preadv2":
        monkeypatch.delattr(os, "RWF_NOWAIT", raising=False)
    (prompt,) = code_prompts(e, 1, 60)
    keep(e, prompt)
    (path,) = prompt_folder.files()
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    whole = path.read_bytes()
    assert states().take_up(e, prompt).n_tokens == 59
    e.reset()
    path.write_bytes(whole[:-1])
    assert states().take_up(e, prompt).words.endswith("; damaged and deleted: 1")
    n = len(whole)
    flipped = [
        whole[:i] + bytes([whole[i] ^ 0x10]) + whole[i + 1 :] for i in (0, 20, 200, n // 4, n // 2, n - 3000, n - 1)
    ]
    for content in (b"", whole[: n // 2], whole[:-1], whole + b"x", bytes(n), b"[" * 1000, *flipped):
        path.write_bytes(content)
        e.reset()
        found = states().take_up(e, prompt)
        assert found.n_tokens == 0, content[:20]
        assert e.target.n_cached == 0
        assert not path.exists()


def test_what_is_copied_beside_the_target_s_cache_has_to_fit_memory(e: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    (prompt,) = code_prompts(e, 1, 60)
    store = states()
    assert e.draft
    e.draft.start(prompt)
    monkeypatch.setattr(prompt_states, "_SHARE_OF_RAM", 1 << 62)
    keep(e, prompt, store)
    assert not prompt_folder.files()


@pytest.mark.skipif(sys.platform == "win32", reason="no bound for the size of files")
def test_what_llama_cpp_cannot_write_leaves_nothing(e: Engine, folder: Path) -> None:
    import resource

    (prompt,) = code_prompts(e, 1, 60)
    e.target.set_prompt(prompt)
    n_target = e.n_saved_bytes - e.n_beside_bytes
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    for most in (0, 10_000, n_target - 100, n_target + 100, 0):  # the end of a file is written as it is closed
        store = states()
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
            store.keep(e)
            store._wait()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert [path for path in folder.rglob("*") if path.is_file()] == []
        assert not store.keep(e), "it is not tried again at once"
    states().close(e)
    assert len(prompt_folder.files()) == 1
    e.reset()


def test_what_finds_no_room_stays_on_disk(e: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    (prompt,) = code_prompts(e, 1, 60)
    keep(e, prompt)

    def full(*_: object) -> None:
        raise ContextFullError("no cells are free")

    with monkeypatch.context() as patch:
        patch.setattr(e.target.cells, "restore", full)
        assert "no cells" in states().take_up(e, prompt).words
    with monkeypatch.context() as patch:
        patch.setattr(e, "ctx_size", 50)
        assert "does not fit the context" in states().take_up(e, prompt).words
    assert states().take_up(e, prompt).n_tokens == 59


def test_a_foreign_file_is_not_used(e: Engine, folder: Path) -> None:
    (prompt,) = code_prompts(e, 1, 60)
    keep(e, prompt, states("another build"))
    shutil.copytree(folder / "another build", folder / "subject")
    assert "none was kept" in states().take_up(e, prompt).words
    assert states("another build").take_up(e, prompt).n_tokens == 59


def test_the_longest_beginning_is_taken_up_and_a_shorter_text_goes(e: Engine) -> None:
    first, other = code_prompts(e, 2, 60)
    store = keep(e, first[:40])
    assert store.take_up(e, other).words == "none has this beginning"
    keep(e, first, store)
    assert len(prompt_folder.files()) == 1
    keep(e, [*first[:30], *other[:30]], store)
    assert len(prompt_folder.files()) == 2
    assert states().take_up(e, [*first[:50], *other]).n_tokens == 50
    assert states().take_up(e, [*first[:50], *other]).n_tokens == 0, "the caches hold as much of it"
    e.reset()
    assert states().take_up(e, [*first[:30], *other]).n_tokens == 60 - 1


def test_where_two_prompts_part_a_third_is_not_split(e: Engine) -> None:
    (prompt,) = code_prompts(e, 1, 60)
    model, store = e.target.context.model, states()
    text = b"".join(map(model.token_bytes, prompt)).decode()
    e.target.set_prompt(prompt)
    store.keep(e, FEWEST, is_beginning=True)
    store._wait()
    assert store.beginning(text + "ly", model) == ([], "")
    keep(e, [*prompt, *prompt[:30]], store)
    assert len(prompt_folder.files()) == 2, "what several prompts begin with stays"
    assert store.beginning(text * 2, model)[0] == [*prompt, *prompt[:30]], "the end of a whole text counts"
    windows = [CachedText([*range(n)], n - 1, any_end=False) for n in (20, 30)]
    assert prompt_states._is_beginning(*windows)


def test_what_is_on_disk_is_not_written_again(e: Engine) -> None:
    (prompt,) = code_prompts(e, 1, 60)
    keep(e, prompt)
    (path,) = prompt_folder.files()
    os.utime(path, (1, 1))
    keep(e, prompt[:50])
    keep(e, prompt)
    assert [file.stat().st_mtime for file in prompt_folder.files()] == [1]


def test_only_what_pays_is_written_and_read(e: Engine) -> None:
    (prompt,) = code_prompts(e, 1, 60)
    fast = PromptStates("subject", "draft")
    fast.has_read(1000, 1e-9)
    keep(e, prompt, fast)
    keep(e, prompt, PromptStates("subject", "draft"))  # knows no times
    assert not prompt_folder.files()
    keep(e, prompt)
    assert "as fast" in fast.take_up(e, prompt).words
    assert PromptStates("subject", "draft").take_up(e, prompt).n_tokens == 59


def test_rates_are_measured_and_believed_for_a_day(folder: Path) -> None:
    assert prompt_folder.rate("read") == 200e6
    prompt_folder.learn_rate("write", 100_000_000, 0.1)
    prompt_folder.learn_rate("read", 100_000_000, 0.05)
    prompt_folder.learn_rate("read", 1000, 1.0)  # tells nothing
    assert [round(prompt_folder.rate(what) / 1e9) for what in ("read", "write")] == [2, 1]
    os.utime(kept_facts.path_of("rates", {"folder": str(folder)}), (1, 1))
    assert prompt_folder.rate("read") == 200e6


def test_the_folder_stays_within_its_bound(e: Engine, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = code_prompts(e, 3, 60)
    for age, prompt in enumerate(prompts[:2]):
        keep(e, prompt, states(f"build {age}"))
    first, second = prompt_folder.files()
    for path, used in ((first, 20.0), (second, 10.0)):
        os.utime(path, (used, used))
    unfinished = folder / "build 0" / ".some.state.999999999-0123abcd"
    unfinished.write_bytes(b"killed")
    os.utime(unfinished, (1, 1))
    monkeypatch.setattr(prompt_folder, "_MOST_BYTES", int(2.5 * first.stat().st_size))
    keep(e, prompts[2])
    assert not second.exists()
    assert not unfinished.exists()
    assert len(prompt_folder.files()) == 2
    monkeypatch.setattr(prompt_folder, "_MOST_BYTES", 1000)
    keep(e, prompts[1])
    assert len(prompt_folder.files()) == 2, "what is larger than the bound is not written"
    assert prompt_folder.forget() > 0
    assert not folder.exists()


def test_a_disk_that_refuses_changes_nothing(e: Engine, folder: Path) -> None:
    (prompt,) = code_prompts(e, 1, 60)
    folder.write_text("no folder")
    store = states()
    e.target.set_prompt(prompt)
    store.keep(e)
    store._wait()
    assert not store.keep(e), "it is not tried again at once, as a server would do all the time"
    store.close(e)
    e.reset()
    assert folder.read_text() == "no folder"
    assert states().take_up(e, prompt).n_tokens == 0


def test_a_folder_of_another_user_is_none(e: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    (prompt,) = code_prompts(e, 1, 60)
    keep(e, prompt)
    found = prompt_folder.files()

    def refused(*_: object) -> None:
        raise PermissionError

    with monkeypatch.context() as patch:
        patch.setattr(Path, "glob", refused)
        assert prompt_folder.files() == []
        assert states().take_up(e, prompt).n_tokens == 0
        keep(e, prompt)
    assert prompt_folder.files() == found


def test_ctrl_c_while_waiting_stops_the_writing(e: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    (prompt,) = code_prompts(e, 1, 60)
    store, check = states(), prompt_file._check

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    def slowly(path: Path, piece: tuple[int, int]) -> int:
        while not store._is_stopped.is_set():
            time.sleep(0.01)
        return check(path, piece)

    e.target.set_prompt(prompt)
    with monkeypatch.context() as patch:
        patch.setattr(prompt_file, "_check", slowly)
        store.keep(e)
        assert store._thread
        patch.setattr(store._thread, "join", interrupted)
        with pytest.raises(KeyboardInterrupt):
            store.close(e)
    store.close(e)
    assert not prompt_folder.files()
    e.reset()
