"""On a GPU committed tokens have read as many blocks of KV cells as plain decoding reads for them."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from specrun.catalog import embedded
from specrun.decoding.engine import Engine
from specrun.llama.context import ContextConfig
from specrun.llama.pass_bounds import BLOCK, PassBounds
from specrun.llama.scoring import Part
from specrun.llama_settings import LlamaSettings
from specrun.sampling import SamplingParameters
from specrun.speculation.drafters.specexec import SPECEXEC
from specrun.speculation.method import OFF
from specrun.speculation.planning.pass_sizes import ANY_SIZE, PassSizes
from specrun.speculation.tree import TokenTree
from tests.engines import Written, code_prompts, engine, first_difference, write

PLAN = SPECEXEC.plan(32, 8)
SINGLE = PassSizes(32, 32, 32, in_order=True)
CLASSES = [SINGLE, PassSizes(5, 1, 8), PassSizes(5, 1, 8, in_order=True), PassSizes(8, 4)]


@pytest.fixture(scope="module")
def alone() -> Iterator[Engine]:
    with engine(embedded.TARGET, embedded.DRAFT, SPECEXEC.plan(64, 8)) as e:
        yield e


@pytest.fixture
def as_on_a_gpu(alone: Engine, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """An engine that cuts at blocks, though every size of a pass gives the same bits on the CPU."""
    monkeypatch.setattr(PassBounds, "is_cut_at_blocks", property(lambda self: self.padding != ANY_SIZE))
    return alone


def test_the_cpu_is_not_cut(alone: Engine) -> None:
    alone.target.padding = SINGLE
    assert not alone.target.is_cut_at_blocks
    assert alone.target.n_exact([0, 1, 2, 5], BLOCK - 33) == 3


@pytest.mark.parametrize(
    ("sizes", "root", "path", "expected"),
    [
        (SINGLE, 100, range(9), 9),
        (SINGLE, 220, range(9), 5),  # a plain pass over the token at 224 is the last that reads 256 cells
        (SINGLE, 224, range(9), 1),
        (SINGLE, 225, range(9), 9),
        (SINGLE, 100, [0, 1, 4], 2),
        (PassSizes(5, 1, 8), 240, [0, 1, 4, 6, 7], 5),  # what waits reads the same cells as the next root
        (PassSizes(5, 1, 8), 248, [0, 1, 4, 6], 2),  # the next root would read more, so none may wait
        (PassSizes(5, 1, 8), 248, [0, 1, 2, 3], 4),
    ],
)
def test_a_path_ends_where_plain_decoding_reads_a_further_block(
    as_on_a_gpu: Engine, sizes: PassSizes, root: int, path: list[int], expected: int
) -> None:
    as_on_a_gpu.target.padding = sizes
    assert as_on_a_gpu.target.n_exact(list(path), root) == expected


def bounds(sizes: PassSizes, drops_padding: bool) -> PassBounds:
    """Of a context with passes of up to 64 tokens, and of 20 over prompts if that is a size of the class."""
    settings = LlamaSettings(batch_size=20, ubatch_size=20)
    config = ContextConfig(n_ctx=256, n_seq_max=1, n_batch=64, n_outputs=64, settings=settings)
    made = PassBounds(config, SimpleNamespace(drops_padding=drops_padding))  # type: ignore[arg-type]
    made.padding = sizes
    return made


@pytest.mark.parametrize(
    ("sizes", "n"), [(ANY_SIZE, 20), (PassSizes(8, 8), 16), (PassSizes(4, 4), 20), (PassSizes.only(32), 32)], ids=str
)
def test_passes_over_a_prompt_have_a_size_of_the_class(sizes: PassSizes, n: int) -> None:
    assert bounds(sizes, True).prompt_pass == bounds(sizes, True).prompt_call() == n


@pytest.mark.parametrize(("n", "whole"), [(3, 0), (7, 0), (8, 8), (21, 20), (64, 64), (70, 64), (75, 72)])
def test_where_padding_stays_only_passes_of_the_class_are_made(n: int, whole: int) -> None:
    assert bounds(PassSizes(8, 4), False).whole(n) == whole
    assert bounds(PassSizes(8, 4), True).whole(n) == n


@pytest.mark.slow
@pytest.mark.parametrize("sizes", CLASSES, ids=str)
def test_every_committed_token_read_what_it_reads_in_plain_decoding(
    as_on_a_gpu: Engine, sizes: PassSizes, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = as_on_a_gpu.target
    prepare, commit = target.prepare, target.commit
    n_read: list[int] = []
    ends: set[int] = set()

    def prepared(tree: TokenTree) -> Part:
        n_read[:] = [-(-(target.n_cached + target.pass_size(tree)) // BLOCK) * BLOCK]
        return prepare(tree)

    def committed(tree: TokenTree, path: list[int], next_token: int) -> None:
        root = len(target.tokens) - 1
        for position in range(target.n_cached, root + len(path)):
            assert n_read == [-(-(position + sizes.padded(1)) // BLOCK) * BLOCK]
        ends.update(n_read)
        commit(tree, path, next_token)

    monkeypatch.setattr(target, "commit", committed)
    target.padding = sizes
    prompt = code_prompts(as_on_a_gpu, 1, BLOCK - 80)[0]
    written: list[Written] = []
    for plan in (OFF.plan(), PLAN):
        monkeypatch.setattr(target, "prepare", prepared)
        as_on_a_gpu.reset()
        ends.clear()
        written.append(write(as_on_a_gpu, prompt, SamplingParameters(temperature=0.0), plan, 100))
        assert ends == {BLOCK, 2 * BLOCK}
    assert first_difference(written[1], written[0]) is None
    assert written[1].n_passes < written[0].n_passes / 1.5
