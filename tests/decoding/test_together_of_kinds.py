"""Texts that share passes where caches are not a llama's, or a head drafts: each is the text that it is alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from specrun.catalog import embedded
from specrun.decoding.completion import Completion
from specrun.decoding.generation import Generation, Request
from specrun.decoding.passes import Passes
from specrun.errors import LlamaError
from specrun.llama.batch import Batch
from specrun.llama.context import LlamaContext, Logits
from specrun.llama_settings import LlamaSettings
from specrun.loading.many import Listed, write_many
from specrun.loading.model import Model
from specrun.loading.run_options import RunOptions
from specrun.sampling import SamplingParameters
from specrun.speculation.drafters.chain import CHAIN
from specrun.speculation.drafters.specexec import SPECEXEC
from specrun.speculation.method import OFF, Plan
from tests.dflash_heads import dflash2_pair
from tests.gemma4 import random_assistant, random_gemma4
from tests.hybrids import noisy, random_recurrent
from tests.models import random_gemma3
from tests.mtp_targets import random_mtp_qwen35
from tests.other_caches import random_gpt_oss

SETTINGS = LlamaSettings(threads=1, flash_attn="on")
WINDOW = 24  # tokens; texts are longer
TREE, PATH = SPECEXEC.plan(16, 6), CHAIN.plan(depth=4)
GBNF = 'root ::= ("ab " | "c\\n"){4,9}'
Pair = tuple[Path, Path]


def noised(make: Callable[[Path], Path]) -> Callable[[Path], Pair]:
    def pair(folder: Path) -> Pair:
        target = make(folder / "target.gguf")
        return target, noisy(folder / "draft.gguf", target)

    return pair


def with_assistant(folder: Path) -> Pair:
    target = random_gemma4(folder / "target.gguf")
    return target, random_assistant(folder / "head.gguf", target)


def with_mtp(folder: Path) -> Pair:
    target = random_mtp_qwen35(folder / "target.gguf")
    return target, target


KINDS: dict[str, tuple[Callable[[Path], Pair], Plan]] = {
    "gemma3": (noised(lambda path: random_gemma3(path, window=WINDOW)), TREE),
    "gpt-oss": (noised(lambda path: random_gpt_oss(path, window=WINDOW)), TREE),
    **{kind: (noised(lambda path, kind=kind: random_recurrent(path, kind)), PATH) for kind in ("qwen35", "jamba")},
    "mamba": (noised(lambda path: random_recurrent(path, "mamba")), OFF.plan()),
    "draft of a hybrid": (lambda folder: (embedded.TARGET, random_recurrent(folder / "d.gguf", "lfm2")), TREE),
    "eagle3": (lambda _: (embedded.TARGET, embedded.HEAD), TREE),
    "mtp of a hybrid": (with_mtp, PATH),
    "dflash": (dflash2_pair, TREE),
    "assistant": (with_assistant, TREE),
}


def options(pair: Pair, plan: Plan, parallel: int = 1) -> RunOptions:
    return RunOptions(*pair, (plan,), ctx_size=512, settings=SETTINGS, draft_settings=SETTINGS, parallel=parallel)


def requests(model: Model) -> list[Request]:
    """Texts of several kinds that end at different times. The last one is written alone for a while."""
    text = model.prompt_tokens("def f(x):\n    return x\n\n\nclass Tree:\n    def add(self, x):", raw=True)
    kinds = [SamplingParameters(temperature=0.8 if seed else 0, seed=seed) for seed in range(5)]
    prompts = [text, text[:4], text[:4] + text[9:], text * 3, text * 2]
    asked = [
        Request(prompt, kind, 14 + 6 * i, ignore_eos=True, logprobs=0)
        for i, (prompt, kind) in enumerate(zip(prompts, kinds, strict=True))
    ]
    asked[2] = replace(asked[2], gbnf=GBNF, ignore_eos=False)
    return asked


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Pair, Plan]:
    make, plan = KINDS[request.param]
    return make(tmp_path_factory.mktemp("pair")), plan


@pytest.fixture(scope="module")
def alone(kind: tuple[Pair, Plan]) -> list[Completion]:
    with Model(options(kind[0], OFF.plan())) as model:
        return [model.complete(request).run() for request in requests(model)]


@pytest.fixture(scope="module")
def together(kind: tuple[Pair, Plan]) -> Iterator[Model]:
    with Model(options(*kind, parallel=3)) as model:
        assert len(model.slots.engines) == 3
        yield model


def written(model: Model, asked: list[Request]) -> list[Completion]:
    found = dict(write_many(model, Listed(enumerate(asked))))
    return [completion for _, completion in sorted(found.items()) if isinstance(completion, Completion)]


def assert_same(found: list[Completion], expected: list[Completion]) -> None:
    assert [one.token_ids for one in found] == [one.token_ids for one in expected]
    assert [one.logprobs for one in found] == [one.logprobs for one in expected]
    assert [one.finish_reason for one in found] == [one.finish_reason for one in expected]


@pytest.mark.slow
def test_each_text_is_the_one_that_it_is_alone(
    together: Model, alone: list[Completion], monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    next_pass = Passes.next_pass

    def noted(passes: Passes, texts: list[Generation], readers: list[Generation] = []) -> object:  # noqa: B006
        sizes.append(len(texts))
        return next_pass(passes, texts, readers)

    monkeypatch.setattr(Passes, "next_pass", noted)
    assert_same(written(together, requests(together)), alone)
    assert sum(size > 1 for size in sizes) > 4
    again = together.complete(requests(together)[4]).run()
    assert_same([again], alone[4:])
    if together.engine.draft:
        assert again.statistics.drafted, "the first slot drafts while it is alone"


@pytest.mark.slow
def test_a_text_with_recurrent_states_that_is_left_alone_is_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, plan = KINDS["qwen35"]
    with Model(options(make(tmp_path), plan, parallel=2)) as model:
        decode, sizes = LlamaContext.decode, list[int]()

        def noted(context: LlamaContext, batch: Batch) -> Logits:
            sizes.append(len(batch) if context is model.engine.target.context else 0)
            return decode(context, batch)

        monkeypatch.setattr(LlamaContext, "decode", noted)
        prompt = model.prompt_tokens("def f(x):\n    return x\n\n\nclass Tree:\n    def add(self, x):", raw=True)
        sampling = SamplingParameters(temperature=0.8, seed=3)
        asked = [Request(text, sampling, 40, ignore_eos=True) for text in (prompt, prompt[2:])]
        asked[0] = replace(asked[0], max_tokens=80)
        first, _ = written(model, asked)
        assert first.statistics.drafted > first.statistics.passes - 40
        assert max(sizes) < len(prompt), "no pass is larger than the one over the prompt"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gemma3", "jamba"])
def test_after_a_pass_that_failed_all_texts_begin_again(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, plan = KINDS[name]
    with Model(options(make(tmp_path), plan, parallel=3)) as model:
        expected = written(model, requests(model))
        decode, passes = LlamaContext.compute, iter(range(8))

        def failing(context: LlamaContext, function: Callable[..., int], batch: object, what: str) -> None:
            if context is model.engine.target.context and next(passes, None) is None:
                raise LlamaError("no")
            decode(context, function, batch, what)

        with monkeypatch.context() as patch:
            patch.setattr(LlamaContext, "compute", failing)
            with pytest.raises(LlamaError, match="no"):
                written(model, requests(model))
        assert_same(written(model, requests(model)), expected)
