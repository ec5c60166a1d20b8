"""The short form: clients of every kind, some seconds long."""

from __future__ import annotations

import sys

import pytest

from tests.soak import serving
from tests.soak.load import under_load


@pytest.mark.long
@pytest.mark.skipif(sys.platform == "win32", reason="counts files as Unix does")
def test_no_client_harms_the_others() -> None:
    outcome = serving.soak(120)
    assert outcome.wrong == []
    assert outcome.counts["compared"] > 20
    assert outcome.looks[-1].files <= outcome.looks[0].files + 4, "connections that a client has just closed"


@pytest.mark.long
@pytest.mark.skipif(sys.platform == "win32", reason="counts files as Unix does")
def test_clients_that_leave_and_that_send_slowly_hold_nobody_up() -> None:
    load = under_load(6)
    assert load.outcome.wrong == []
    assert load.outcome.counts["streamed"] > 8
    assert load.outcome.counts["left"] > 1
