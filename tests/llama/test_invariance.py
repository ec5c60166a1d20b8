"""Passes of all sizes measure as bit-exact with the kernel that specrun chooses, and not with the one it avoids."""

from __future__ import annotations

from specrun.catalog import embedded
from specrun.llama.invariance import exact_up_to
from specrun.speculation.drafters.specexec import SPECEXEC
from tests.engines import code_prompts, engine


def test_the_default_settings_are_exact_for_every_size() -> None:
    with engine(embedded.TARGET, embedded.DRAFT, SPECEXEC.plan(64, 8)) as alone:
        tokens = code_prompts(alone, 1, 200)[0]
        for ctx in (40, 600):
            assert exact_up_to(alone.target, tokens, [1, 2, 4, 8, 16, 33, 64], ctx, 8) == 64


def test_a_pass_that_differs_in_a_bit_ends_it() -> None:
    with engine(embedded.TARGET, embedded.DRAFT, SPECEXEC.plan(64, 8)) as alone:
        tokens = code_prompts(alone, 1, 200)[0]
        score = alone.target.score

        def bent(tree):  # type: ignore[no-untyped-def]
            rows = score(tree)
            if len(tree) >= 8:
                rows[2, 5] += 1e-6
            return rows

        alone.target.score = bent  # type: ignore[method-assign]
        assert exact_up_to(alone.target, tokens, [1, 2, 4, 8, 16], 40, 8) == 4
