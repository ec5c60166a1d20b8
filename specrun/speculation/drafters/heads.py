"""Methods by name for drafting with a trained head, in trees of SpecExec, for asking for a head and nothing else.

All other methods take a head as they take a draft model.
"""

from __future__ import annotations

from specrun.speculation.drafters.specexec import specexec
from specrun.speculation.method import HEADS, HeadKind, Method


def _method(head: HeadKind, paper: str, pays: str) -> Method:
    return Method(
        name=head,
        kind="tree",
        paper=f"{paper}, in trees of SpecExec",
        pays=pays,
        drafter=specexec,
        needs=(HEADS[head],),
        head=head,
    )


EAGLE3 = _method(
    "eagle3",
    "EAGLE-3, arXiv 2503.01840",
    "where a tree pays and a head was trained for this target: it drafts better than a small model of its cost",
)
MTP = _method(
    "mtp",
    "Gloeckle et al., arXiv 2404.19737; DeepSeek-V3, 2412.19437",
    "where drafting pays and the target has MTP layers, which take the memory of a layer or two",
)
DFLASH = _method(
    "dflash",
    "DFlash, arXiv 2602.06036",
    "where a head was trained for this target, and draft passes take time: a whole tree needs one",
)
