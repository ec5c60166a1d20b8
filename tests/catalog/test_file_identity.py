"""What identifies a model by its bytes."""

from __future__ import annotations

from pathlib import Path

import pytest

from specrun.catalog.file_identity import file_identity
from specrun.errors import ModelFileError


def test_identity_is_of_the_content(tmp_path: Path) -> None:
    one, moved, other, longer = (tmp_path / name for name in ("one", "moved", "other", "longer"))
    data = bytearray(5 * 2**20)
    one.write_bytes(data)
    moved.write_bytes(data)
    longer.write_bytes(data + b"\0")
    data[-1] = 1
    other.write_bytes(data)
    assert file_identity([one]) == file_identity([moved])
    assert len({file_identity(paths) for paths in ([one], [other], [longer], [one, other], [other, one])}) == 5
    with pytest.raises(ModelFileError, match="cannot be read"):
        file_identity([tmp_path / "none"])
