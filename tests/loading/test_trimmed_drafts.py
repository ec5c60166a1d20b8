"""Trimmed drafts: the text is the target's, and the logits of the tokens that they have are the whole draft's."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from specrun.catalog import embedded
from specrun.errors import ModelFileError
from specrun.making.trimming import trim
from specrun.sampling import SamplingParameters
from specrun.speculation.drafter import DraftNode
from specrun.speculation.drafters.chain import CHAIN
from specrun.speculation.drafters.specexec import SPECEXEC
from specrun.speculation.method import OFF
from specrun.speculation.tree import ROOT
from tests.dense_models import ARCHITECTURES, random_dense
from tests.engines import engine, first_difference, written_by
from tests.hybrids import noisy
from tests.models import TOKENS, edited, tokenizer

SAMPLED = SamplingParameters(temperature=0.8, seed=1)
N_KEPT = 1024  # of 2,048 tokens
LACKED = 1500  # a token that the trimmed draft lacks
KINDS = [(architecture, is_tied) for architecture in ARCHITECTURES for is_tied in (True, False)]


class Trio(NamedTuple):
    """A target, a draft that is like it but not the same, and that draft trimmed to `kept` tokens."""

    target: Path
    draft: Path
    trimmed: Path
    kept: np.ndarray


@pytest.fixture(scope="module", params=KINDS, ids=lambda kind: f"{kind[0]}-{'tied' if kind[1] else 'untied'}")
def trio(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Trio:
    architecture, is_tied = request.param
    folder = tmp_path_factory.mktemp(architecture)
    target = random_dense(folder / "target.gguf", architecture, is_tied=is_tied)
    draft = noisy(folder / "draft.gguf", target, 0.02)
    trimmed = folder / "trimmed.gguf"
    return Trio(target, draft, trimmed, trim(draft, N_KEPT, trimmed))


@pytest.mark.slow
def test_chains_and_trees_write_the_targets_text(trio: Trio) -> None:
    plain = written_by(OFF.plan(), SAMPLED, 2, target=trio.target, draft=trio.draft, max_tokens=64)
    tokens = {token for one in plain for token in one.tokens}
    assert tokens - set(trio.kept.tolist()), "the draft never has to read a token that it lacks"
    for plan in (CHAIN.plan(depth=4), SPECEXEC.plan(24, 6)):
        results = written_by(plan, SAMPLED, 2, target=trio.target, draft=trio.trimmed, max_tokens=64)
        for result, reference in zip(results, plain, strict=True):
            assert first_difference(result, reference) is None, plan
        assert sum(result.n_passes for result in results) < sum(one.n_passes for one in plain)


def logits_of(target: Path, draft: Path, text: list[int]) -> np.ndarray:
    """float32[5, n_vocab]: the draft's logits after the text, and after the nodes of a tree of two paths."""
    with engine(target, draft, SPECEXEC.plan(16, 4)) as e:
        assert e.draft
        root = e.draft.start(text).copy()
        nodes = [(1, ROOT, 11), (2, ROOT, 12), (3, 1, 13), (4, 2, LACKED)]
        first = e.draft.expand([DraftNode(*node) for node in nodes[:2]]).copy()
        return np.stack([root, *first, *e.draft.expand([DraftNode(*node) for node in nodes[2:]])])


@pytest.mark.parametrize("text", [list(range(40, 60)), [*range(40, 60), LACKED, 40, LACKED + 1]], ids=["has", "lacks"])
def test_the_logits_of_the_tokens_that_it_has_are_the_whole_drafts(trio: Trio, text: list[int]) -> None:
    whole, trimmed = (logits_of(trio.target, draft, text) for draft in (trio.draft, trio.trimmed))
    np.testing.assert_array_equal(trimmed[:, trio.kept], whole[:, trio.kept])
    others = np.setdiff1d(np.arange(whole.shape[1]), trio.kept)
    assert np.isneginf(trimmed[:, others]).all()


@pytest.mark.slow
def test_the_embedded_draft_drafts_as_well_with_half_of_its_tokens(tmp_path: Path) -> None:
    trimmed, plan = tmp_path / "trimmed.gguf", SPECEXEC.plan(16, 4)
    trim(embedded.DRAFT, N_KEPT, trimmed)
    plain = written_by(OFF.plan(), SAMPLED, 1, max_tokens=48)[0]
    result = written_by(plan, SAMPLED, 1, max_tokens=48, draft=trimmed)[0]
    assert first_difference(result, plain) is None
    assert result.n_passes < 0.6 * plain.n_passes


@pytest.mark.slow
def test_a_trimmed_draft_may_have_another_tokenizer(tmp_path: Path) -> None:
    tokens = list(tokenizer()[TOKENS])
    tokens[LACKED] = "another"
    trim(edited(tmp_path / "other.gguf", embedded.DRAFT, {TOKENS: tokens}), N_KEPT, tmp_path / "trimmed.gguf")
    plan = SPECEXEC.plan(16, 4)
    plain, written = (
        written_by(p, SAMPLED, 1, max_tokens=24, draft=tmp_path / "trimmed.gguf")[0] for p in (OFF.plan(), plan)
    )
    assert first_difference(written, plain) is None
    assert written.n_passes < 0.8 * plain.n_passes


def test_a_trimmed_draft_is_no_target(tmp_path: Path) -> None:
    trim(embedded.DRAFT, N_KEPT, tmp_path / "trimmed.gguf")
    message = r"trimmed\.gguf is a trimmed draft, which has no tokenizer; give it as --draft"
    with pytest.raises(ModelFileError, match=message), engine(tmp_path / "trimmed.gguf", None, OFF.plan()):
        pass
