"""A head with random weights, as it is written: it drafts through llama.cpp, and the text stays the target's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from scripts.make_head.export import whole_embedding
from scripts.make_head.shape import embedding_rows
from scripts.make_head.vocabulary import Vocabulary
from specrun.catalog import embedded
from specrun.catalog.gguf_file import GgufFile
from specrun.catalog.heads import check_head, head_in
from specrun.llama import HeadDraft
from specrun.sampling import SamplingParameters
from specrun.speculation.drafters.chain import CHAIN
from specrun.speculation.drafters.specexec import SPECEXEC
from specrun.speculation.method import OFF
from tests.engines import code_prompts, engine, first_difference, write
from tests.models import Reader
from tests.scripts.make_head.orders import random_head

pytestmark = pytest.mark.long


def test_the_file_is_a_head_of_the_target(tmp_path: Path) -> None:
    file = GgufFile.read(random_head(tmp_path / "head.gguf"))
    head = head_in(file)
    assert head is not None
    assert (head.kind, head.target_layers, head.target_width) == ("eagle3", (1, 4, 7), 256)
    check_head(GgufFile.read(embedded.TARGET), file, head)
    tensors = {tensor.name: tensor for tensor in Reader(file.path).tensors}
    assert tensors["output.weight"].shape.tolist() == [256, 512]
    drafted = tensors["d2t"].data
    assert (np.diff(drafted) > 0).all()


def test_with_all_tokens_the_output_is_the_targets(tmp_path: Path) -> None:
    file = GgufFile.read(random_head(tmp_path / "head.gguf", n_kept=2048))
    assert not {"output.weight", "d2t"} & file.by_name.keys()


@pytest.mark.parametrize("n_kept", [512, 2048])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_text_is_the_targets_own(tmp_path: Path, n_kept: int, temperature: float) -> None:
    head, sampling = random_head(tmp_path / "head.gguf", n_kept=n_kept), SamplingParameters(temperature=temperature)
    with engine(embedded.TARGET, None, OFF.plan()) as e:
        prompt = code_prompts(e, 1, 40)[0]
        plain = write(e, prompt, replace(sampling, seed=3), OFF.plan(), 32)
    for plan in (CHAIN.plan(depth=3), SPECEXEC.plan(16, 4)):
        with engine(embedded.TARGET, head, plan) as e:
            assert isinstance(e.draft, HeadDraft)
            assert first_difference(write(e, prompt, replace(sampling, seed=3), plan, 32), plain) is None


def test_rows_of_tokens_that_were_never_read_follow_from_the_targets_embedding() -> None:
    file, rng = GgufFile.read(embedded.TARGET), np.random.default_rng(0)
    read = np.sort(rng.choice(2048, 1500, replace=False))
    everything = embedding_rows(file, np.arange(2048))
    wanted = everything @ rng.standard_normal((256, 256)).astype(np.float32) / 16 + 0.5
    found = whole_embedding(wanted[read], Vocabulary(read, read, 2048), file)
    np.testing.assert_array_equal(found[read], wanted[read])
    others = np.setdiff1d(np.arange(2048), read)
    error = np.square(found[others] - wanted[others]).mean() / wanted[others].var()
    assert error < 0.05
