"""Plans for targets whose passes check one path."""

from __future__ import annotations

from specrun.speculation.drafters.chain import CHAIN
from specrun.speculation.drafters.specexec import SPECEXEC
from specrun.speculation.registry import find
from specrun.speculation.tree import TreeShape


def test_a_fixed_shape_becomes_a_path_of_its_depth() -> None:
    plan = find("specinfer").plan(16, 3)
    assert plan.shape is not None
    assert plan.shape.n_leaves > 1
    path = plan.on_one_path()
    assert path.method is plan.method
    assert path.shape == TreeShape.chain(plan.shape.depth)
    assert path.is_chain


def test_other_plans_stay_as_they_are() -> None:
    for plan in (CHAIN.plan(depth=4), SPECEXEC.plan(16, 8), find("speculative-sampling").plan(8, 4)):
        assert plan.on_one_path() == plan
