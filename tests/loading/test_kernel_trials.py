"""The layer on which trials run: it has the heads of the file that it stands for."""

from __future__ import annotations

from specrun.catalog import embedded
from specrun.catalog.gguf_file import GgufFile
from specrun.llama.context import ContextConfig
from specrun.llama_settings import UNDECIDED
from specrun.loading import kernel_trials
from specrun.loading.kernel_trials import Heads


def test_heads_are_those_of_the_file() -> None:
    target = GgufFile.read(embedded.TARGET)
    heads = Heads.of(target)
    assert heads
    assert heads.n_heads == target.n_heads
    config, ways = ContextConfig(64, n_seq_max=1, n_batch=64, n_outputs=1), {"as it is": UNDECIDED}
    with kernel_trials._opened(heads, (256, 256), "F16", config, ways) as contexts:
        small = GgufFile.read(contexts["as it is"].model.path)
    assert Heads.of(small) == heads
    assert small.n_layers == 1
