"""The short form: clients of every kind, some seconds long."""

from __future__ import annotations

import sys

import pytest

from tests.soak import serving


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="counts files as Unix does")
def test_no_client_harms_the_others() -> None:
    outcome = serving.soak(120)
    assert outcome.wrong == []
    assert outcome.counts["compared"] > 20
    assert outcome.looks[-1].files <= outcome.looks[0].files + 4, "connections that a client has just closed"
