"""Methods by name for drafting with a trained head, whose trees grow as SpecExec's do.

A head is a draft like any other: chains, adaptive trees and those merged with draft sources take it as they take a
draft model. These methods are for asking for a head, and for nothing else if there is none.
"""

from __future__ import annotations

from specrun.speculation.drafters.specexec import specexec
from specrun.speculation.method import DFLASH_HEAD, EAGLE3_HEAD, MTP_HEAD, Method

EAGLE3 = Method(
    name="eagle3",
    kind="tree",
    paper="EAGLE-3, arXiv 2503.01840, in trees of SpecExec",
    pays="where a tree pays and a head was trained for this target: it drafts better than a small model of its cost",
    drafter=specexec,
    needs=(EAGLE3_HEAD,),
    head="eagle3",
)

MTP = Method(
    name="mtp",
    kind="tree",
    paper="Gloeckle et al., arXiv 2404.19737; DeepSeek-V3, 2412.19437, in trees of SpecExec",
    pays="where drafting pays and the target has MTP layers, which take the memory of a layer or two",
    drafter=specexec,
    needs=(MTP_HEAD,),
    head="mtp",
)

DFLASH = Method(
    name="dflash",
    kind="tree",
    paper="DFlash, arXiv 2602.06036, in trees of SpecExec",
    pays="where a head was trained for this target, and draft passes take time: a whole tree needs one",
    drafter=specexec,
    needs=(DFLASH_HEAD,),
    head="dflash",
)
