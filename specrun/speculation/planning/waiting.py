"""How many committed tokens may wait for a pass, where a cache that takes back a pass has to decode them again."""

from __future__ import annotations

import math

from specrun.speculation.planning.costs import CostTable

# Chosen by hand.
_ACCEPTED = 2.0  # tokens that a pass commits which is not accepted whole
_SIZE = 16  # tokens of a pass that tells what a further token costs
_BOUNDS = (2, 48)


def most_waiting(target: CostTable) -> int:
    """The number of waiting tokens from which a pass of their own is cheaper than to decode them again and again.

    With a pass of f + c n milliseconds over n tokens, and a tokens that every pass adds to those that wait, m passes
    take c a m^2 / 2 longer than without, and then f for the pass of their own. Per pass this is least for
    m = sqrt(2 f / (c a)). target: the times of its passes.
    """
    ctx = target.times[0].ctx
    plain, larger = target.ms(1, ctx), target.ms(min(_SIZE, target.largest), ctx)
    each = (larger - plain) / max(min(_SIZE, target.largest) - 1, 1)
    if each <= 0:
        return _BOUNDS[1]
    fixed = max(plain - each, 0.0)
    return round(min(max(math.sqrt(2 * fixed * _ACCEPTED / each), _BOUNDS[0]), _BOUNDS[1]))
