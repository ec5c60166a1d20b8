"""How many tokens the target's passes may have, by its context, its cache and the sizes that they are padded to."""

from __future__ import annotations

from collections.abc import Sequence

from specrun.llama.context import ContextConfig
from specrun.llama.rollback import TextCache
from specrun.speculation.planning.pass_sizes import ANY_SIZE, PassSizes
from specrun.speculation.tree import n_in_order

BLOCK = 256  # llama.cpp reads the cells of the KV cache in blocks of so many, up to the last one that is taken


class PassBounds:
    """Bounds of the passes over one text.

    cells: how the cache takes tokens back, and which sequences it has for this text.
    padding: the sizes that passes are padded to. The passes over new text of a prompt are the same with every plan, so
        they may be larger than the largest of these sizes. The context needs room for the padding.
    """

    def __init__(self, config: ContextConfig, cells: TextCache) -> None:
        self._config = config
        self.cells = cells
        self.padding: PassSizes = ANY_SIZE

    @property
    def largest_pass(self) -> int:
        """Tokens of the largest pass that is of the class."""
        return self.padding.largest(self._config.n_batch)

    @property
    def is_cut_at_blocks(self) -> bool:
        """Whether committed tokens must have read as many blocks of cells as in plain decoding.

        On a GPU attention is divided among groups of threads by the number of cells, so a token's last bits depend on
        it (docs/adr/0018). Where committed tokens wait by design, as with recurrent states, nothing is cut.
        """
        return bool(self._config.settings.gpu_layers) and self.padding != ANY_SIZE and self.cells.drops_padding

    def block_end(self, position: int) -> int:
        """The end of the last block of cells that a plain pass over the token at `position` reads."""
        return -(-(position + self.padding.padded(1)) // BLOCK) * BLOCK

    def n_exact(self, path: Sequence[int], root: int) -> int:
        """How many nodes of an accepted path have the bits that they would have in plain decoding.

        That is, if passes are padded to a class of sizes. path: node indices, root first. root: the root's position.
        """
        if len(path) == 1:  # a plain pass may take less than a millisecond
            return 1
        in_order = n_in_order(path)
        n = in_order if self.padding.in_order else len(path)
        if self.is_cut_at_blocks:
            end = self.block_end(root)
            n = next((i for i in range(1, n) if self.block_end(root + i) > end), n)
            # Tokens that wait for the next pass are decoded with its root, so all must read the same blocks.
            n = min(n, in_order) if self.block_end(root + n) > end else n
        return n

    def can_pad(self, sizes: PassSizes) -> bool:
        """Whether passes can be padded to these sizes: what is added must be taken back after each."""
        most_back = self.cells.most_back
        return most_back is None or sizes.least - 1 <= most_back

    @property
    def prompt_pass(self) -> int:
        """Most tokens of one pass over a prompt."""
        return min(self.prompt_call(), self._config.n_batch)

    def prompt_call(self) -> int:
        """Tokens of a prompt that llama.cpp gets at once. They depend on the settings only, never on the plan."""
        config, multiple = self._config, self.padding.multiple
        # The last pass over a prompt is padded, for which a pass of any other size might have no room.
        prompt_pass = min(config.settings.prompt_pass, config.n_batch)
        n = max(prompt_pass // multiple * multiple, self.padding.least)
        return config.n_call if n == config.n_batch else n

    def padded_call(self, n: int) -> int:
        """Tokens of a call over `n` committed tokens, with padding."""
        # Only the last of the passes that llama.cpp makes of a call is smaller than the others.
        whole = n // self._config.n_batch * self._config.n_batch
        rest = n - whole
        return whole + self.padding.padded(rest) if whole and rest else self.padding.padded(n)

    def whole(self, n: int) -> int:
        """The most of `n` committed tokens that a call can decode without padding, even more than the largest size."""
        if self.cells.drops_padding:
            return n
        n = n // self.padding.multiple * self.padding.multiple
        rest = n % self._config.n_batch
        return n - rest if rest < self.padding.least else n

    def n_alone(self, n_waiting: int) -> int:
        """How many of the committed tokens that wait for a pass are decoded in passes of their own before the next."""
        most = self.cells.most_pending
        if most is None:
            return 0
        if not self.cells.takes_back:
            most = 0
        elif self.padding.most is not None:
            most = min(most, self.padding.most // 2)  # the other half is for the tree
        if n_waiting <= most:
            return 0
        rest = n_waiting % self.largest_pass
        return n_waiting - rest + self.whole(rest)
