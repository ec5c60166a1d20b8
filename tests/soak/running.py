"""Runs a state machine: the same steps each time, or as many as a time allows."""

from __future__ import annotations

import time
from collections.abc import Callable

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

_EXAMPLES = 4  # of one run of hypothesis, which then forgets what it has seen


def run(machine: type[RuleBasedStateMachine], n_examples: int, n_steps: int, seed_: int = 0) -> None:
    """`n_examples` machines of at most `n_steps` steps each. What fails is made small, and its steps are printed."""
    chosen = settings(
        max_examples=n_examples,
        stateful_step_count=n_steps,
        deadline=None,
        database=None,
        # Explaining a failure takes as long as finding it.
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    run_state_machine_as_test(seed(seed_)(machine), settings=chosen)


def run_for(machine: type[RuleBasedStateMachine], seconds: float, first_seed: int, tell: Callable[[], None]) -> None:
    """Machines with other steps each, until the time is over. tell: called now and then."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        run(machine, _EXAMPLES, 50, first_seed)
        first_seed += 1
        tell()
