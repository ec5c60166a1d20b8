"""How far the size of passes moves the logits of a known text."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from specrun.catalog import embedded
from specrun.sampling import SamplingParameters
from specrun.speculation.drafters.chain import CHAIN
from specrun.speculation.drafters.specexec import SPECEXEC
from specrun.speculation.method import OFF, Plan
from specrun.verifying import verifier as rounding
from tests.engines import code_prompts, engine, write
from tests.models import wide_target


def test_rows_of_plain_passes_are_those_of_plain_decoding() -> None:
    with engine(embedded.TARGET, None, OFF.plan(), ctx_size=128) as e:
        prompt = code_prompts(e, 1, 30)[0]
        written = write(e, prompt, SamplingParameters(temperature=0), OFF.plan(), 12).tokens
        rows = rounding.rows_after(e.target, prompt, written, rounding.PLAIN, 5)
        assert rows.argmax(axis=1).tolist() == written[-5:]


@pytest.mark.parametrize("plan", [SPECEXEC.plan(16, 6), CHAIN.plan(depth=15)], ids=str)
def test_q8_0_does_not_depend_on_the_size(plan: Plan) -> None:
    with engine(embedded.TARGET, embedded.DRAFT, plan, ctx_size=128) as e:
        prompt = code_prompts(e, 1, 30)[0]
        written = write(e, prompt, SamplingParameters(temperature=0), OFF.plan(), 20).tokens
        plain = rounding.rows_after(e.target, prompt, written, rounding.PLAIN, 20)
        for rows in rounding.rows_of_sizes(e.target, prompt, written, 20, (2, 3, 8, 16)):
            assert np.array_equal(rows, plain)


@pytest.mark.slow
def test_k_quants_change_a_little_where_other_kernels_begin(made: Path) -> None:
    with engine(wide_target(made, "q4_k_m"), embedded.DRAFT, SPECEXEC.plan(16, 6), ctx_size=128, repack=False) as e:
        prompt = code_prompts(e, 1, 30)[0]
        written = write(e, prompt, SamplingParameters(temperature=0), OFF.plan(), 20).tokens
        plain = rounding.rows_after(e.target, prompt, written, rounding.PLAIN, 20)
        differences = [
            np.abs(rows - plain).max() for rows in rounding.rows_of_sizes(e.target, prompt, written, 20, (8, 16))
        ]
        assert 0 < max(differences) < 1
