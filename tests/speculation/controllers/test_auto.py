"""`auto` on simulated texts and machines: it finds what pays, is off where nothing does, and follows the text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from specrun.speculation.accept import Accepted
from specrun.speculation.controllers.arm import ExpectedPlan, untried
from specrun.speculation.controllers.auto import Auto
from specrun.speculation.controllers.chooser import FixedPlan
from specrun.speculation.drafter import Draft
from specrun.speculation.drafters.chain import CHAIN
from specrun.speculation.drafters.cost_aware import ADAPTIVE, MERGED
from specrun.speculation.drafters.guessed import DRAFTLESS
from specrun.speculation.drafters.specexec import SPECEXEC
from specrun.speculation.method import OFF, Plan
from specrun.speculation.planning.guide import Guide, PassRecord, RunCosts
from specrun.speculation.planning.pass_times import ExpertGrowth, PassTimes
from specrun.speculation.tree import TokenTree
from tests.speculation.controllers.simulation import Machine, Text, best_fixed, run, text, useless

OFF, CHAIN = OFF.plan(), CHAIN.plan(depth=4)
PLANS = (MERGED.plan(64, 63, 16), ADAPTIVE.plan(64, 16, 16), DRAFTLESS.plan(64), OFF)
FIXED = (OFF, CHAIN, SPECEXEC.plan(16, 8), SPECEXEC.plan(64, 12), *PLANS[:2])

# Measured on two CPU cores: a target of 0.98 billion parameters in RAM, and the same with its weights streamed.
Q4_K_M = Machine({1: 22, 2: 33, 4: 55, 8: 92, 16: 135, 32: 250})
Q8_0 = Machine({1: 28, 2: 78, 4: 114, 8: 134, 16: 222, 32: 364})
STREAMED = Machine({n: 571 + 0.3 * ms for n, ms in Q4_K_M.target.items()})
TINY = Machine({1: 0.6, 2: 0.8, 4: 1.1, 8: 1.6, 16: 2.6, 32: 4.5}, level=0.5, python=0.5)


# On an H200 with 16 cores, half of the layers in VRAM (3.2 and 7 billion parameters), or all but the experts of a
# mixture (24, of which a token uses 12): passes of 32 tokens and more copy weights to the card. Rounded; what was not
# measured (31 tokens, and 16 of the mixture) is guessed.
CARD = Machine({1: 18.5, 2: 24, 4: 38, 8: 61, 16: 65, 24: 94, 31: 105, 32: 34, 64: 36, 128: 40}, python=1.0)
LARGER = Machine({1: 32, 2: 41, 4: 64, 8: 108, 16: 112, 24: 157, 31: 165, 32: 57, 64: 60, 128: 70}, 3.5, python=1.0)
CARD_MIXTURE = Machine({1: 22, 2: 29, 3: 35, 5: 48, 9: 66, 16: 85, 31: 115, 32: 52, 64: 63, 128: 75}, python=1.0)


def unknown() -> Auto:
    """A controller that knows nothing of the pair."""
    return Auto(untried(PLANS), Guide(RunCosts()))


# Mixtures of which a token takes 90 % of its time for its experts.
EXPERTS = {"128 of 8": ExpertGrowth(128, 8, 0.9), "32 of 4": ExpertGrowth(32, 4, 0.9)}
_SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 128)


def mixture(experts: ExpertGrowth, plain: float) -> Machine:
    """A machine whose passes take as long as the experts that independent tokens choose."""
    row = experts.row(_SIZES[-1])
    return Machine({n: plain * float(row[n]) for n in _SIZES})


def unknown_mixture(experts: ExpertGrowth, plans: Sequence[Plan] = PLANS) -> Auto:
    """A controller that knows nothing of the pair but its experts."""
    return Auto(untried(plans), Guide(RunCosts(PassTimes(experts=experts))))


def tuned(machine: Machine, *expected: tuple[Plan, float]) -> Auto:
    """A controller with true tables, and rates relative to plain decoding's."""
    plain = 1e3 / machine.ms(1)
    plans = [ExpectedPlan(plan, rate * plain, 0.05 * rate * plain) for plan, rate in expected]
    return Auto([*plans, ExpectedPlan(OFF, plain, 0.0)], Guide(RunCosts.of(machine.costs)), is_tuned=True)


def share_of_plain(plans: Auto, of: Text, machine: Machine, n_tokens: int, place: int = 0) -> float:
    return run(plans, of, machine, n_tokens, place=place).rate * machine.ms(1) / 1e3


@pytest.mark.parametrize("machine", [Q4_K_M, Q8_0, STREAMED, TINY], ids=["q4", "q8", "streamed", "tiny"])
@pytest.mark.parametrize("seed", range(3))
def test_where_nothing_pays_at_most_three_percent_are_lost(machine: Machine, seed: int) -> None:
    assert share_of_plain(unknown(), useless(96, seed), machine, 96) > 0.97


@pytest.mark.parametrize("experts", EXPERTS.values(), ids=EXPERTS)
@pytest.mark.parametrize("plain", [20.0, 400.0])
def test_a_mixture_loses_at_most_three_percent_where_nothing_pays(experts: ExpertGrowth, plain: float) -> None:
    machine = mixture(experts, plain)
    for seed in range(2):
        assert share_of_plain(unknown_mixture(experts), useless(96, seed), machine, 96) > 0.97
        assert share_of_plain(unknown_mixture(experts, PLANS[2:]), text(96, 0.5, seed), machine, 96) > 0.97


@pytest.mark.slow
@pytest.mark.parametrize(
    ("machine", "experts"),
    [(CARD, None), (LARGER, None), (CARD_MIXTURE, ExpertGrowth(24, 12, 0.95))],
    ids=["3b", "7b", "mixture"],
)
def test_beside_a_card_that_large_passes_copy_weights_to(machine: Machine, experts: ExpertGrowth | None) -> None:
    def beside_a_card() -> Auto:
        return Auto(untried(PLANS), Guide(RunCosts(PassTimes(experts=experts, copies_from=32))))

    for seed in range(4):
        assert share_of_plain(beside_a_card(), useless(96, seed), machine, 96) > 0.94
        assert share_of_plain(beside_a_card(), text(96, 0.5, seed), machine, 96) > (0.95 if experts else 1.05)
        assert share_of_plain(beside_a_card(), text(96, 0.85, seed), machine, 96) > 1.5


@pytest.mark.parametrize("machine", [CARD, LARGER], ids=["3b", "7b"])
def test_nor_does_a_prompt_that_was_too_short_to_copy_weights_keep_trees_small(machine: Machine) -> None:
    for seed in range(3):
        short, long = (
            run(Auto(untried(PLANS), Guide(RunCosts(PassTimes(copies_from=32)))), text(300, 0.8, seed), machine, 256, n)
            for n in (20, 100)
        )
        assert max(short.sizes) > 16
        assert short.rate > 0.85 * long.rate


def test_without_its_experts_a_mixture_would_lose_more() -> None:
    """The first tree would have 16 nodes, and read most experts."""
    machine = mixture(EXPERTS["32 of 4"], 40.0)
    assert share_of_plain(unknown(), useless(96, 0), machine, 96) < 0.95
    assert share_of_plain(unknown_mixture(EXPERTS["32 of 4"]), useless(96, 0), machine, 96) > 0.97


@pytest.mark.slow
@pytest.mark.parametrize("experts", EXPERTS.values(), ids=EXPERTS)
def test_a_mixture_is_drafted_for_by_long_sure_copies(experts: ExpertGrowth) -> None:
    machine = mixture(experts, 40.0)
    copied = replace(text(512, 0.5, 1, copied=0.5), certainty=0.98)
    done = run(unknown_mixture(experts, PLANS[2:]), copied, machine, 512)
    assert done.rate * machine.ms(1) / 1e3 > 1.3
    sizes = [size for size in done.sizes if size > 1]
    assert min(sizes[1:]) >= 16 > sizes[0], "a short draft costs as much as it brings, so only the first is short"
    unsure = replace(copied, certainty=0.5)
    plain = run(unknown_mixture(experts, PLANS[2:]), unsure, machine, 512)
    assert sum(size > 1 for size in plain.sizes) <= 1, "only before the time of a plain pass is known"
    assert plain.rate * machine.ms(1) / 1e3 > 0.97


def test_where_the_draft_is_poor_and_passes_are_cheap_it_is_off_soon() -> None:
    for seed in range(3):
        plans = unknown()
        assert share_of_plain(plans, text(256, 0.2, seed), Q8_0, 96) > 0.96
        assert plans.gave_up


@pytest.mark.slow
@pytest.mark.parametrize("agreement", [0.5, 0.7, 0.9])
def test_where_passes_are_slow_it_is_nearly_as_fast_as_the_best_fixed_plan(agreement: float) -> None:
    of = text(256, agreement, 1)
    _, best = best_fixed(FIXED, of, STREAMED, 256)
    assert run(unknown(), of, STREAMED, 256).rate > 0.9 * best


@pytest.mark.slow
def test_where_passes_are_cheap_and_the_draft_is_good_too() -> None:
    of = text(256, 0.9, 1)
    _, best = best_fixed(FIXED, of, Q4_K_M, 256)
    assert best > 1.2e3 / Q4_K_M.ms(1)
    assert run(unknown(), of, Q4_K_M, 256).rate > 0.9 * best


def test_draft_sources_that_cost_nothing_are_not_left_for_plain_decoding_after_bad_luck() -> None:
    machine = Machine({n: 2 * ms for n, ms in Q4_K_M.target.items()})
    plans = Auto(untried([DRAFTLESS.plan(64)]), Guide(RunCosts.of(machine.costs)))
    for n_nodes in (6, 6, *[1] * 12):  # two guesses are wrong, and then there are none
        tree, seconds = TokenTree.chain(range(n_nodes)), machine.ms(n_nodes) / 1e3
        plans.record(PassRecord(Draft(tree), Accepted([0], [99]), seconds, seconds, 0.0, n_nodes, 100))
    assert plans.rates[0] < plans.rates[1]
    assert plans.held.method is DRAFTLESS


@pytest.mark.slow
def test_bad_luck_does_not_end_a_plan_that_wins() -> None:
    tree = ADAPTIVE.plan(32, 31, 16)
    found, fixed = [], []
    for seed in range(6):
        of = text(512, 0.75, seed)
        found.append(run(tuned(Q4_K_M, (tree, 1.15)), of, Q4_K_M, 288).rate)
        guide = Guide(RunCosts.of(Q4_K_M.costs), rate=1 / Q4_K_M.ms(1))
        fixed.append(run(FixedPlan(tree, guide), of, Q4_K_M, 288).rate)
    assert sum(found) > 0.95 * sum(fixed)
    assert min(fixed) > 1e3 / Q4_K_M.ms(1)


def test_slow_passes_lead_to_large_trees_at_once() -> None:
    done = run(unknown(), text(256, 0.7, 0), STREAMED, 64)
    assert not done.plans[0].drafts
    assert max(done.sizes[1:3]) >= 16


@pytest.mark.slow
def test_it_follows_the_text_both_ways() -> None:
    good, bad = text(300, 0.9, 2), useless(300, 2)
    plans = unknown()
    both = bad.then(good)
    place = len(bad.ranks)
    assert share_of_plain(plans, both, Q4_K_M, 150) > 0.97
    assert share_of_plain(plans, both, Q4_K_M, 300, place) > 1.05
    plans = unknown()
    both = good.then(bad)
    assert share_of_plain(plans, both, Q4_K_M, 250) > 1.2
    assert share_of_plain(plans, both, Q4_K_M, 200, len(good.ranks)) > 0.93


@pytest.mark.slow
def test_a_few_unlucky_passes_do_not_end_a_plan_that_wins() -> None:
    good, bad = text(200, 0.9, 3), useless(12, 3)
    mixed = good.then(Text(*(part[:4] for part in bad.parts))).then(good)
    plans = unknown()
    run(plans, mixed, STREAMED, 400)
    run(plans, mixed, STREAMED, 20, place=len(good.ranks) - 8)
    assert plans.held == PLANS[0]


@pytest.mark.slow
def test_a_second_run_begins_where_the_first_ended() -> None:
    of = text(600, 0.7, 4)
    first = unknown()
    run(first, of, STREAMED, 256)
    costs = RunCosts(PassTimes(first.guide.costs.target.times), first.guide.costs.draft)
    second = Auto(first.expected, Guide(costs, first.guide.calibration.with_run()))
    done = run(second, of, STREAMED, 200, place=300)
    assert done.plans[0].drafts, "the time of plain decoding is known"
    guide = Guide(RunCosts.of(STREAMED.costs), first.guide.calibration.with_run(), rate=4 / STREAMED.ms(1))
    assert done.rate > 0.95 * run(FixedPlan(PLANS[0], guide), of, STREAMED, 200, place=300).rate


def test_what_earlier_runs_found_of_a_plan_is_not_forgotten_by_a_run_that_does_not_use_it() -> None:
    known = [ExpectedPlan(OFF, 10.0, 0.0), ExpectedPlan(PLANS[0], 8.0, 0.5), ExpectedPlan(PLANS[2], 13.0, 0.5)]
    plans = Auto(known, Guide(RunCosts.of(Q4_K_M.costs)))
    done = run(plans, text(100, 0.4, 0, copied=0.9), Q4_K_M, 60)
    assert done.share_of("draftless") == 1
    rates = {expected.plan: expected for expected in plans.expected}
    plain = rates[OFF].tokens_per_second
    assert rates[PLANS[0]].tokens_per_second == pytest.approx(0.8 * plain)
    assert rates[PLANS[0]].error > 0.05 * plain, "so that one day it is tried again"


def test_the_plan_that_is_surely_fast_is_held_first() -> None:
    assert tuned(STREAMED, (PLANS[0], 2.0), (CHAIN, 1.5)).held == PLANS[0]
    assert tuned(STREAMED, (PLANS[0], 1.5), (CHAIN, 2.0)).held == CHAIN
    assert tuned(STREAMED, (CHAIN, 1.02)).is_off


@pytest.mark.slow
def test_a_tuned_plan_that_loses_is_left_and_one_that_was_underrated_is_found() -> None:
    overrated = tuned(Q4_K_M, (CHAIN, 1.5))
    share_of_plain(overrated, useless(96, 0), Q4_K_M, 96)
    assert overrated.is_off
    underrated = tuned(STREAMED, (PLANS[0], 0.97))
    assert underrated.is_off
    assert share_of_plain(underrated, text(600, 0.9, 0), STREAMED, 600) > 2
    assert not underrated.is_off


def test_where_tuning_found_that_nothing_pays_a_text_that_differs_is_noticed_at_once() -> None:
    def rates(of: Callable[[int], Text]) -> list[float]:
        plans = [(MERGED.plan(32, 31, 32), 0.95), (DRAFTLESS.plan(32), 0.95)]
        return [share_of_plain(tuned(Q4_K_M, *plans), of(seed), Q4_K_M, 96) for seed in range(6)]

    assert min(rates(lambda seed: useless(96, seed))) > 0.97
    assert sum(rates(lambda seed: text(96, 0.9, seed, copied=0.5))) / 6 > 1.35


@pytest.mark.parametrize("rate", [0.4, 0.75])
def test_a_profile_is_believed_where_it_says_by_more_than_its_error_that_a_plan_loses(rate: float) -> None:
    done = run(tuned(Q4_K_M, (CHAIN, rate)), text(600, 0.9, 0), Q4_K_M, 600)
    assert set(done.plans) == {OFF}


def test_a_draft_that_has_much_to_read_is_not_asked_where_little_can_be_won() -> None:
    machine = Machine(Q4_K_M.target, reading=0.6)
    for prompt, is_asked in ((20, True), (2000, False)):
        for is_cached in (False, True):
            done = run(tuned(machine, (PLANS[1], 0.95)), useless(96, 0), machine, 96, prompt, is_cached=is_cached)
            assert any(plan.drafts for plan in done.plans) == is_asked


def test_nor_at_another_temperature_where_the_target_has_the_prompt_already() -> None:
    machine, costs = Machine(Q4_K_M.target, reading=0.6), RunCosts()
    for seed, is_cached in enumerate((False, True)):
        auto = Auto(untried(PLANS[1:]), Guide(costs))
        done = run(auto, useless(96, seed), machine, 96, 2000, is_cached=is_cached)
        assert not any(plan.method.needs_draft for plan in done.plans)


def test_draft_sources_go_on_alone_where_the_draft_model_does_not_pay() -> None:
    plans = unknown()
    done = run(plans, useless(96, 1), Machine(Q8_0.target, level=40.0), 96)
    assert done.share_of("draftless") > 0 or done.share_of("off") > 0.9


@pytest.mark.parametrize(("machine", "stays"), [(STREAMED, True), (TINY, False)], ids=["slow", "fast"])
def test_sources_that_lost_go_on_with_sure_guesses_where_passes_are_slow(machine: Machine, stays: bool) -> None:
    plans = Auto(untried(PLANS[2:]), Guide(RunCosts()))
    plain, tree = machine.ms(1) / 1e3, TokenTree.chain(list(range(12)))
    for _ in range(20):
        if plans.plan().drafts:
            break
        plans.record(PassRecord(Draft(TokenTree.root_only(0)), Accepted([0], [0]), plain, plain, 0.0, 1, 64))
    for _ in range(3):
        plans.record(PassRecord(Draft(tree), Accepted([0], [5]), 5 * plain, 5 * plain, 0.0, 12, 64))
    assert plans.plan().drafts == stays
    assert (plans.held.method is DRAFTLESS) == stays
    assert not stays or plans.guide.most_lost_ms == 0, "only what is not expected to lose is checked"


def test_reading_much_text_first_is_not_held_against_a_plan() -> None:
    plans = tuned(STREAMED, (CHAIN, 0.95))
    plain = STREAMED.ms(1) / 1e3
    while not plans.plan().drafts:
        plans.record(PassRecord(Draft(TokenTree.root_only(0)), Accepted([0], [0]), plain, plain, 0.0, 1, 64))
    plans.record(PassRecord(Draft(TokenTree.chain([0, 1])), Accepted([0, 1], [0, 0]), 20.0, plain, 19.0, 2, 64))
    assert plans.held == CHAIN


def test_a_card_that_copies_far_more_slowly_than_guessed_costs_little() -> None:
    """The card copies them through pageable memory, which takes four times as long as guessed."""
    slow = replace(CARD, target=CARD.target | {32: 150.0, 64: 152.0, 128: 156.0})
    rates = []
    for seed in range(8):
        plans = Auto(untried(PLANS), Guide(RunCosts(PassTimes(copies_from=32))))
        done = run(plans, text(300, 0.85, seed), slow, 256, 20)
        assert 1 <= sum(size >= 32 for size in done.sizes) <= 3, "once is enough to know, if it was not long ago"
        rates.append(done.rate * slow.ms(1) / 1e3)
    assert sum(rates) / len(rates) > 1.25


@pytest.mark.parametrize("level", [0.1, 0.3])
def test_the_draft_is_not_left_while_it_is_only_looked_at(level: float) -> None:
    """level: of a draft pass, in plain passes; five of the slower ones take more than may be lost at first."""
    plans, plain = Auto(untried(PLANS), Guide(RunCosts(PassTimes(copies_from=32)))), CARD.ms(1) / 1e3
    plans.guide.costs.draft.record([1], CARD.ms(1), level * CARD.ms(1))
    tree, accepted = TokenTree.root_only(0), Accepted([0], [0])
    while not plans.plan().drafts:
        plans.record(PassRecord(Draft(tree), accepted, plain, plain, 0.0, 1, 64))
    for _ in range(5):
        plans.record(PassRecord(Draft(tree, (1,)), accepted, (1 + level) * plain, plain, level * plain, 1, 64))
        assert plans.held == PLANS[0]


def test_a_plan_that_loses_by_passes_that_take_long_now_and_then_is_left() -> None:
    """Another program, or a disk, makes every fourth pass take 2.5 times as long."""
    plans, plain = tuned(STREAMED, (CHAIN, 1.3)), STREAMED.ms(1) / 1e3
    for n in range(60):
        slow = 2.5 if n % 4 == 3 else 1.0
        tree = TokenTree.chain(list(range(5))) if plans.plan().drafts else TokenTree.root_only(0)
        seconds = slow * plain * (1.05 if len(tree) > 1 else 1.0)
        plans.record(PassRecord(Draft(tree), Accepted([0], [9]), seconds, seconds, 0.0, len(tree), 64))
    assert plans.is_off


def test_a_draft_is_tried_again_although_every_sixteenth_pass_has_a_guess_of_draft_sources() -> None:
    """A chance at the sixteenth pass, and none if that had a guess, left a draft untried for a whole text."""
    plans = tuned(STREAMED, (PLANS[0], 0.99), (PLANS[2], 1.1))
    assert plans.held == PLANS[2]
    plain = STREAMED.ms(1) / 1e3
    for n in range(1, 40):
        tree = TokenTree.chain([0, 1]) if n % 16 == 0 else TokenTree.root_only(0)
        plans.record(PassRecord(Draft(tree), Accepted([0], [0]), plain, plain, 0.0, len(tree), 64))
        if plans.held == PLANS[0]:
            return
    raise AssertionError("the draft was never tried")


def test_it_says_what_it_follows() -> None:
    assert str(tuned(STREAMED, (CHAIN, 2.0))) == "chain of 4, by the profile of this machine"
    plans = unknown()
    run(plans, text(300, 0.4, 0), Q4_K_M, 96)
    assert str(plans) == "off, learned while writing, because nothing else pays on this text"
