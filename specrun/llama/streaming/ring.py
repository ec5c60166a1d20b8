"""The slots in which streamed layers take turns, and the threads that fill them ahead of time."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Condition, Thread

from specrun import clock
from specrun.errors import LlamaError
from specrun.llama.streaming.weight_file import Request

_POISON = bytes([0xA5])  # no weights of any type


class _Slot:
    """The layers that take turns in a slot, and how far it is filled with the layer whose turn it is.

    turn: counted from the first layer of the first pass. order: the number of the pass, and the layer.
    begins_pass: whether it is the turn of the slot's first layer. requests: the parts of this layer.
    n_taken, n_reading, n_left: how many of them a thread has taken, is reading, and how many are not finished.
    """

    def __init__(self, layers: list[int], requests: Sequence[Sequence[Request]]) -> None:
        self._layers = layers
        self._requests = requests
        self.n_reading = 0
        self.begin(0)

    def begin(self, turn: int) -> None:
        """Let the layer of this turn be read."""
        self.turn = turn
        n_passes, place = divmod(turn, len(self._layers))
        self.order, self.begins_pass = (n_passes, self._layers[place]), place == 0
        self.requests = self._requests[self._layers[place]]
        self.n_taken, self.n_left = 0, len(self.requests)


class Ring:
    """Layer i of n has its turns in slot i modulo the number of slots. Close the ring before the files.

    requests: for each streamed layer, in the order of the computation, its parts. n_readers: threads that read them.
    before: the ring in whose place it comes.
    bytes_read, wait_seconds: in all passes so far; for how long the computation had to wait for a layer.

    At first a layer is read only when the computation waits for it, and overwritten when it is done, so that a
    computation that uses weights at any other time gets wrong results. `read_ahead` ends that.
    """

    def __init__(
        self, requests: Sequence[Sequence[Request]], n_slots: int, n_readers: int, before: Ring | None = None
    ) -> None:
        self.bytes_read: int = before.bytes_read if before else 0
        self.wait_seconds: float = before.wait_seconds if before else 0.0
        self._slots = [_Slot(list(range(slot, len(requests), n_slots)), requests) for slot in range(n_slots)]
        self._changed = Condition()
        self._pass = 0
        self._awaited: tuple[int, int] | None = None
        self._reads_ahead = False
        self._is_paused = False
        self._is_closed = False
        self._error: BaseException | None = None
        self._readers = [Thread(target=self._read, name="reader", daemon=True) for _ in range(n_readers)]
        for reader in self._readers:
            reader.start()

    def read_ahead(self) -> None:
        """From now on, fill every slot that is free, in the order in which layers are needed."""
        with self._changed:
            self._reads_ahead = True
            self._changed.notify_all()

    def begin_pass(self) -> None:
        """A pass begins with the first layer, whatever became of the pass before."""
        with self._changed:
            passes = {slot.order[0] for slot in self._slots}
            if self._error or len(passes) > 1 or not all(slot.begins_pass for slot in self._slots):
                self._restart()
            self._pass = self._slots[0].order[0]

    def _restart(self) -> None:
        """Forget what the slots hold, as soon as nobody writes into them."""
        self._is_paused = True
        try:
            while any(slot.n_reading for slot in self._slots):
                self._changed.wait()
        finally:
            self._is_paused = False
        for slot in self._slots:
            slot.begin(0)
        self._error = self._awaited = None
        self._changed.notify_all()

    def wait_for(self, layer: int) -> None:
        """Return when all of a streamed layer is in its slot. Layers come in order, and each is released in between.

        Raises LlamaError if it cannot be read, or if the ring was closed.
        """
        slot, wanted = self._slots[layer % len(self._slots)], (self._pass, layer)
        with self._changed:
            self._awaited = wanted
            self._changed.notify_all()
            started = clock.now()
            while True:
                if self._error:
                    raise self._error
                if self._is_closed:
                    raise LlamaError("weights cannot be streamed any more; load the model again")
                if slot.order != wanted:  # it would have to wait forever
                    raise LlamaError("llama.cpp computed the layers in an unknown order; try --residency off")
                if slot.n_left == 0:
                    break
                self._changed.wait()
            self.wait_seconds += clock.now() - started

    def release_through(self, layer: int) -> None:
        """The computation is done with a streamed layer and with those before it, so their slots are free."""
        with self._changed:
            for slot in self._slots:
                if slot.order[0] == self._pass and slot.order[1] <= layer:
                    if not self._reads_ahead:
                        for request in slot.requests:
                            request.into[:] = _POISON * len(request.into)
                    slot.begin(slot.turn + 1)
            self._changed.notify_all()

    def close(self) -> None:
        """End the threads; what they are reading is read to its end. Safe to call twice."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        for reader in self._readers:
            reader.join()

    # --- in the threads ----------------------------------------------------------------------------------------------

    def _read(self) -> None:
        while taken := self._take():
            slot, request = taken
            n_read, failure = 0, None
            try:
                n_read = request.file.read(request.into, request.offset)
            except BaseException as error:  # the computation raises it
                failure = error
            with self._changed:
                self.bytes_read += n_read
                self._error = self._error or failure
                slot.n_reading -= 1
                slot.n_left -= 1
                self._changed.notify_all()

    def _take(self) -> tuple[_Slot, Request] | None:
        """The request that is needed first, as soon as any is; None once the ring is closed."""
        with self._changed:
            while not self._is_closed:
                may_read = [] if self._is_paused or self._error else self._slots
                slots = [slot for slot in may_read if self._reads_ahead or slot.order == self._awaited]
                slots = [slot for slot in slots if slot.n_taken < len(slot.requests)]
                if slots:
                    slot = min(slots, key=lambda slot: slot.order)
                    slot.n_taken += 1
                    slot.n_reading += 1
                    return slot, slot.requests[slot.n_taken - 1]
                self._changed.wait()
            return None
