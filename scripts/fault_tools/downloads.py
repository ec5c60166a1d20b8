"""Downloads that were interrupted, and a hub that does not simply continue them."""

from __future__ import annotations

import hashlib
from functools import partial

from fault_tools.injecting import TARGET, Extent, Fault, Injections, Place
from tests.hub import Fault as HubFault
from tests.hub import serve

_REPO, _FILE = "org/model-gguf", "model-q8_0.gguf"
_PULL = ("pull", f"{_REPO}/{_FILE}")
_KEPT = "which are in"  # what a failed pull says of the part that is here


def continuing(faults: tuple[HubFault, ...], fails: str, place: Place, extent: Extent) -> Injections:
    """A part of a model is here, and the next answers of the hub are `faults`. The model comes whole all the same.

    fails: a part of what the first pull says if it has to fail; the part that is here stays, and the next pull comes.
    """
    content = TARGET.read_bytes()
    for i in range(extent.moments):
        begun = content[: len(content) * (i + 1) // (extent.moments + 1)]
        with serve() as hub:
            hub.add(_REPO, {_FILE: content})
            unfinished = (
                place.hub / "hub/models--org--model-gguf/blobs" / f"{hashlib.sha256(content).hexdigest()}.incomplete"
            )
            unfinished.parent.mkdir(parents=True)
            unfinished.write_bytes(begun)
            hub.faults += faults
            run = place.run(*_PULL, environment={"HF_ENDPOINT": hub.url})
            if fails:
                lost = "" if unfinished.exists() and unfinished.read_bytes() == begun else "the part that was here"
                yield run.injection({8}, fails, _KEPT, lost=lost)
                hub.faults.clear()
                run = place.run(*_PULL, environment={"HF_ENDPOINT": hub.url})
            paths = list(place.hub.rglob("snapshots/*/*.gguf"))
            yield run.injection({0}, lost="" if paths and paths[0].read_bytes() == content else "the model")
        place.empty()


_ONCE: dict[str, tuple[HubFault, ...]] = {
    "range refused (416)": (HubFault("/cdn/", status=416),),
    "stale redirect (403)": (HubFault("/cdn/", status=403),),
    "stale redirect (404)": (HubFault("/cdn/", status=404),),
    "range refused (403, each time)": tuple(HubFault("/cdn/", status=403, only_ranges=True) for _ in range(9)),
    "range ignored": (HubFault("/cdn/", ignore_range=True),),
    "range answered with another one": (HubFault("/cdn/", begin=1000),),
    "range answered with a later one": (HubFault("/cdn/", begin=len(TARGET.read_bytes()) - 1),),
    "range answered with status 200": (HubFault("/cdn/", ok=True),),
}
_ALWAYS: dict[str, tuple[tuple[HubFault, ...], str]] = {
    "every request refused (403)": (tuple(HubFault("/cdn/", status=403) for _ in range(9)), "answers 403"),
    "a proxy's page instead of bytes": ((HubFault("/cdn/", page=b"<html>log in</html>"),), "check the proxy"),
}

FAULTS = [
    *(Fault(f"a download: {what}", partial(continuing, faults, "")) for what, faults in _ONCE.items()),
    *(Fault(f"a download: {what}", partial(continuing, *how)) for what, how in _ALWAYS.items()),
]
