"""Drafts with another tokenizer: the text is the target's, and tokens that both have are guessed as ever."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import gguf
import pytest

from scripts.other_vocabularies import TOKENS, TYPES, in_another_order, with_vocabulary
from specrun.catalog import embedded
from specrun.catalog.gguf_file import GgufFile
from specrun.catalog.pairs import SharedTokens, read_vocabulary
from specrun.decoding.generation import Generation, Request
from specrun.decoding.passes import write_alone
from specrun.errors import PairError
from specrun.llama.draft_tokens import OtherTokens
from specrun.llama.grammar import Grammar
from specrun.llama_settings import LlamaSettings
from specrun.loading.many import Listed, write_many
from specrun.loading.model import Model
from specrun.loading.run_options import RunOptions
from specrun.sampling import SamplingParameters
from specrun.speculation.drafters.chain import CHAIN
from specrun.speculation.drafters.cost_aware import MERGED
from specrun.speculation.drafters.specexec import SPECEXEC
from specrun.speculation.method import OFF, Plan
from specrun.speculation.registry import find
from tests.engines import chooser, code_prompts, engine, first_difference, write, written_by
from tests.hybrids import random_qwen35
from tests.models import edited, random_llama

GREEDY = SamplingParameters(temperature=0)
SAMPLED = SamplingParameters(temperature=0.8, seed=1)
TREE = SPECEXEC.plan(24, 6)


class Others(NamedTuple):
    """The embedded draft with its tokens in another order, and without a seventh of them."""

    permuted: Path
    fewer: Path


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Others:
    folder = tmp_path_factory.mktemp("others")
    types = gguf.GGUFReader(embedded.DRAFT).fields[TYPES].contents()
    kept = [i for i, kind in enumerate(types) if i % 7 or i < 300 or kind != gguf.TokenType.NORMAL]
    fewer = with_vocabulary(embedded.DRAFT, folder / "fewer.gguf", kept[::-1])
    return Others(in_another_order(embedded.DRAFT, folder / "permuted.gguf"), fewer)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plan", "sampling"),
    [(CHAIN.plan(depth=4), SAMPLED), (TREE, SAMPLED), (TREE, GREEDY)],
    ids=["chain-sampled", "tree-sampled", "tree-greedy"],
)
def test_in_another_order_the_same_tokens_drafts_the_same(
    others: Others, plan: Plan, sampling: SamplingParameters
) -> None:
    own, permuted = (written_by(plan, sampling, 2, max_tokens=40, draft=d) for d in (embedded.DRAFT, others.permuted))
    assert permuted == own
    assert [one.statistics.drafted for one in permuted] == [one.statistics.drafted for one in own]


@pytest.mark.slow
def test_with_fewer_tokens_the_text_is_the_targets(others: Others) -> None:
    plan = MERGED.plan(32, 6)
    with engine(embedded.TARGET, others.fewer, plan) as e:
        n_passes = n_tokens = 0
        for prompt in code_prompts(e, 3, 40):
            plain = write(e, prompt, SAMPLED, OFF.plan(), 48)
            e.reset()
            written = write(e, prompt, SAMPLED, plan, 48)
            assert first_difference(written, plain) is None
            n_passes, n_tokens = n_passes + written.n_passes, n_tokens + len(written.tokens)
        assert n_passes < 0.6 * n_tokens


@pytest.mark.slow
def test_with_a_grammar_and_penalties_too(others: Others) -> None:
    sampling = replace(SAMPLED, repeat_penalty=1.3)
    with (
        engine(embedded.TARGET, others.fewer, TREE) as e,
        Grammar('root ::= "def " [a-z_]{4,24} "(self):\\n" [ a-z_=.\\n]{20,40}', e.target.context.model) as grammar,
    ):
        request, texts = Request(code_prompts(e, 1, 30)[0], sampling, 60), []
        for plan in (OFF.plan(), TREE):
            e.reset()
            steps = [*write_alone(Generation(e, request, chooser(plan), constraint=grammar))]
            texts.append([token for step in steps for token in step.tokens])
        assert texts[0] == texts[1]
        assert len(steps) < len(texts[1]), "nothing was accepted"


@pytest.mark.slow
def test_several_texts_share_its_passes(others: Others) -> None:
    one_thread = LlamaSettings(threads=1)
    options = RunOptions(embedded.TARGET, others.fewer, (TREE,), settings=one_thread, draft_settings=one_thread)
    texts = []
    for plan, parallel in ((OFF.plan(), 1), (TREE, 3)):
        with Model(replace(options, plans=(plan,), parallel=parallel)) as model:
            prompts = code_prompts(model.engine, 3, 40)
            asked = [Request(prompt, replace(SAMPLED, seed=i), 24) for i, prompt in enumerate(prompts)]
            texts.append([done.token_ids for _, done in sorted(write_many(model, Listed(enumerate(asked)), None))])
    assert texts[0] == texts[1]


@pytest.mark.slow
def test_several_texts_fit_though_they_have_more_tokens_for_the_draft(tmp_path: Path) -> None:
    types = gguf.GGUFReader(embedded.DRAFT).fields[TYPES].contents()
    kept = [i for i, kind in enumerate(types) if i % 2 or i < 300 or kind != gguf.TokenType.NORMAL]
    half = with_vocabulary(embedded.DRAFT, tmp_path / "half.gguf", kept)
    one_thread = LlamaSettings(threads=1)
    options = RunOptions(
        embedded.TARGET,
        half,
        (CHAIN.plan(depth=2),),
        settings=one_thread,
        draft_settings=one_thread,
        ctx_size=695,
        parallel=3,
    )
    with Model(options) as model:
        prompts = code_prompts(model.engine, 3, 200)
        asked = [Request(prompt, SAMPLED, 24, ignore_eos=True) for prompt in prompts]
        texts = [done for _, done in write_many(model, Listed(enumerate(asked)), None)]
        n_cells = model.engine.target.context.config.n_ctx
    assert all(done.statistics.drafted and done.finish_reason == "length" for done in texts)
    shared = SharedTokens(*(read_vocabulary(GgufFile.read(path)) for path in (embedded.TARGET, half)))
    assert sum(len(shared.read(token)) for done in texts for token in done.request.prompt + done.token_ids) > n_cells


@pytest.mark.slow
def test_a_hybrid_drafts_with_another_tokenizer(tmp_path: Path) -> None:
    target = random_llama(tmp_path / "target.gguf", n_layer=20)
    draft = in_another_order(random_qwen35(tmp_path / "draft.gguf"), tmp_path / "permuted.gguf")
    plan = CHAIN.plan(depth=4)
    plain, written = (
        written_by(p, SAMPLED, 1, max_tokens=24, target=target, draft=draft)[0] for p in (OFF.plan(), plan)
    )
    assert first_difference(written, plain) is None


def test_the_draft_reads_what_the_text_says(others: Others) -> None:
    ours, theirs = (read_vocabulary(GgufFile.read(path)) for path in (embedded.TARGET, others.fewer))
    shared = SharedTokens(ours, theirs)
    other = OtherTokens(shared, 100)
    lacked = next(i for i, same in enumerate(shared.ids.tolist()) if same < 0 and len(ours.tokens[i]) > 3)
    text = [500, lacked, 501]

    def bytes_of(read: list[int]) -> bytes:
        return b"".join(theirs.tokens[i] for i in read)

    assert bytes_of([*other.read(text)]) == b"".join(ours.tokens[i] for i in text)
    assert len(other.read(text)) > len(text)
    assert other.read([500, 501]) == [shared.ids[500], shared.ids[501]], "another text"
    long, whole = [500 + i % 5 for i in range(250)], OtherTokens(shared, 10_000)
    ends = [
        (len(read), read == whole.read(long[:n])[-len(read) :])
        for n in range(60, 250)
        for read in [other.read(long[:n])]
    ]
    assert all(50 < n <= 100 and is_end for n, is_end in ends)
    assert sum(n == 51 for n, _ in ends) < 5, "the beginning moves in large steps"


@pytest.mark.slow
def test_what_cannot_pay_or_compares_distributions_is_refused(others: Others, tmp_path: Path) -> None:
    n_vocab = GgufFile.read(embedded.DRAFT).n_vocab
    few = edited(tmp_path / "few.gguf", embedded.DRAFT, {TOKENS: [f"<{i}>" for i in range(n_vocab)]})
    with pytest.raises(
        PairError, match=r"would not pay: .* shares 0% of the text.*; choose a draft of the same family"
    ):
        Model(RunOptions(embedded.TARGET, few, (TREE,)))
    with pytest.raises(PairError, match=r"--method specinfer compares .* token 0 is .*; choose"):
        Model(RunOptions(embedded.TARGET, others.permuted, (find("specinfer").plan(),)))
