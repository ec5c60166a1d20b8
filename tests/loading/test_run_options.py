"""How many states a context keeps follows from the architecture, the plans and the memory."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specrun.catalog import embedded
from specrun.catalog.entries import TABLES
from specrun.catalog.gguf_file import GgufFile
from specrun.catalog.layer_states import state_bytes
from specrun.hardware.memory import Memory
from specrun.loading import run_options
from specrun.loading.model import Model
from specrun.loading.placing import plan_load
from specrun.loading.run_options import KeptStates, RunOptions, states_of_draft
from specrun.speculation.drafters.chain import CHAIN
from specrun.speculation.drafters.guessed import DRAFTLESS
from specrun.speculation.method import OFF, Plan
from tests.hybrids import KINDS, random_recurrent

CHECKPOINT = KeptStates(n_sequences=2)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, GgufFile]:
    folder = tmp_path_factory.mktemp("models")
    return {kind: GgufFile.read(random_recurrent(folder / f"{kind}.gguf", kind)) for kind in KINDS}


def of_target(
    file: GgufFile, plans: tuple[Plan, ...], pads: bool, has_draft: bool, n_texts: int = 1
) -> KeptStates | None:
    options = RunOptions(file.path, file.path if has_draft else None, plans, exact=pads, parallel=n_texts)
    return options.recurrent_states(file, is_streamed=False)


@pytest.mark.parametrize(
    ("plans", "expected"),
    [
        ((CHAIN.plan(depth=5),), KeptStates(n_snapshots=5)),
        ((CHAIN.plan(depth=32),), KeptStates(n_snapshots=32)),
        ((CHAIN.plan(depth=33),), CHECKPOINT),
        ((CHAIN.plan(depth=5), OFF.plan()), KeptStates(n_snapshots=5)),
        ((DRAFTLESS.plan(64), CHAIN.plan(depth=4), OFF.plan()), KeptStates(n_snapshots=8)),
        ((OFF.plan(),), KeptStates()),
    ],
    ids=lambda value: " or ".join(map(str, value)) if isinstance(value, tuple) else str(value),
)
def test_snapshots_are_as_many_as_a_path_has_tokens(
    files: dict[str, GgufFile], plans: tuple[Plan, ...], expected: KeptStates
) -> None:
    assert of_target(files["qwen35"], plans, pads=False, has_draft=True) == expected
    without = CHECKPOINT if expected.n_snapshots else expected
    assert of_target(files["mamba"], plans, pads=False, has_draft=True) == without


def test_draft_sources_among_several_plans_take_a_checkpoint(files: dict[str, GgufFile]) -> None:
    """Snapshots would make every plain pass longer, and with sources alone most passes are plain."""
    several, one = (DRAFTLESS.plan(16), OFF.plan()), (DRAFTLESS.plan(16),)
    for plans, expected in ((several, CHECKPOINT), (one, KeptStates(n_snapshots=15))):
        assert of_target(files["qwen35"], plans, pads=False, has_draft=False) == expected
    options = RunOptions(files["qwen35"].path, None, (CHAIN.plan(depth=4), *several))
    assert plan_load(options).states == CHECKPOINT
    with_draft = replace(options, draft=files["qwen35"].path)
    assert plan_load(with_draft).states == KeptStates(n_snapshots=8)


def test_padding_takes_a_checkpoint(files: dict[str, GgufFile]) -> None:
    for plan in (OFF.plan(), CHAIN.plan(depth=4)):
        assert of_target(files["qwen35"], (plan,), pads=True, has_draft=True) == CHECKPOINT


def test_models_with_attention_alone_keep_none() -> None:
    file = GgufFile.read(embedded.TARGET)
    assert of_target(file, (CHAIN.plan(depth=4),), pads=True, has_draft=True) is None
    assert states_of_draft(file) is None


def test_a_draft_has_a_checkpoint(files: dict[str, GgufFile]) -> None:
    assert {states_of_draft(file) for file in files.values()} == {CHECKPOINT}


def test_snapshots_that_take_too_much_give_way(files: dict[str, GgufFile], monkeypatch: pytest.MonkeyPatch) -> None:
    file = files["qwen35"]
    monkeypatch.setattr(run_options, "_SMALL_SNAPSHOTS", 0)
    several, one = (CHAIN.plan(depth=12), OFF.plan()), (CHAIN.plan(depth=12),)
    for affordable, of_several, of_one in ((12, 8, 12), (7, 7, None), (3, None, None)):
        monkeypatch.setattr(run_options, "_SNAPSHOTS_SHARE", (affordable + 0.5) * sum(state_bytes(file)) / file.n_bytes)
        for plans, expected in ((several, of_several), (one, of_one)):
            states = KeptStates(n_snapshots=expected) if expected else CHECKPOINT
            assert of_target(file, plans, pads=False, has_draft=True) == states


def test_streamed_targets_keep_fewer_states_and_placement_counts_them(
    files: dict[str, GgufFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_options, "_SMALL_SNAPSHOTS", 0)
    monkeypatch.setattr(run_options, "_SNAPSHOTS_SHARE", 1.0)
    file = files["qwen35"]
    options = RunOptions(file.path, None, (CHAIN.plan(depth=8),))
    assert plan_load(options).states == KeptStates(n_snapshots=8)
    roomy = plan_load(options).placement.request
    monkeypatch.setattr(Memory, "read", lambda: Memory(10**9, 1))
    assert plan_load(options).states == CHECKPOINT
    tight = plan_load(options).placement.request
    states = sum(state_bytes(file))
    assert sum(roomy.target.kv) - sum(tight.target.kv) == (KeptStates(1, 8).n_states - CHECKPOINT.n_states) * states


def test_architectures_that_nobody_tried_are_decoded_plainly(
    files: dict[str, GgufFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(TABLES, "untried_states", frozenset({"lfm2"}))
    plans = (CHAIN.plan(depth=4), OFF.plan())
    assert of_target(files["lfm2"], plans, pads=False, has_draft=True) == KeptStates()
    with Model(RunOptions(files["lfm2"].path, None, (DRAFTLESS.plan(8),))) as model:
        assert model.plans.candidates == (OFF.plan(),)
        assert [notice for notice in model.notices if "lfm2 is untried" in notice]


def test_contexts_have_room_for_a_further_plan(files: dict[str, GgufFile]) -> None:
    options = RunOptions(files["lfm2"].path, None, (OFF.plan(),), largest=CHAIN.plan(depth=7))
    assert plan_load(options).states == KeptStates(n_snapshots=7)


def test_each_of_several_texts_has_a_state_as_far_as_these_are_small(
    files: dict[str, GgufFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    def kept(plan: Plan, pads: bool = False) -> KeptStates | None:
        return of_target(files["qwen35"], (plan,), pads, has_draft=True, n_texts=3)

    assert kept(OFF.plan()) == KeptStates(3, n_texts=3)
    assert kept(CHAIN.plan(depth=4)) == KeptStates(4, n_texts=3), "one of them has a checkpoint"
    assert kept(CHAIN.plan(depth=4), pads=True) == CHECKPOINT
    monkeypatch.setattr(run_options, "_SMALL_SNAPSHOTS", 2 * 2 * sum(state_bytes(files["qwen35"])))
    monkeypatch.setattr(run_options, "_SNAPSHOTS_SHARE", 0)
    assert kept(OFF.plan()) == KeptStates(2, n_texts=2)
    with Model(RunOptions(files["qwen35"].path, None, (OFF.plan(),), parallel=3)) as model:
        assert len(model.slots.engines) == 2
        assert [notice for notice in model.notices if notice.startswith("2 texts are written at a time")]
