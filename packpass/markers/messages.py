"""Marker ops for point-to-point messages in a loop over documents::

    p2p_send(x, peer, tag, group, work)     # peer: global rank; work: number of the request
    p2p_recv(x, peer, tag, group, work)     # fills x, which nobody may look at before
    p2p_wait(work)
    p2p_group(group)                        # before them: names of the groups that this frame has looked at

No marker ever executes or reaches the inner backend: `passes.fuse_boundary_exchange` replaces them by one exchange, or
the frame is traced again as stock torch would.
"""

from __future__ import annotations

import torch
from torch.fx.node import has_side_effect

_lib = torch.library.Library("packpass_capture", "FRAGMENT")
_TAGS = (torch.Tag.pt2_compliant_tag,)
_lib.define("p2p_send(Tensor x, int peer, int tag, str group, int work) -> ()", tags=_TAGS)
_lib.define("p2p_recv(Tensor(a!) x, int peer, int tag, str group, int work) -> ()", tags=_TAGS)
_lib.define("p2p_wait(int work) -> ()", tags=_TAGS)
_lib.define("p2p_group(str group) -> ()", tags=_TAGS)
_ns = torch.ops.packpass_capture
SEND, RECV, WAIT, GROUP = _ns.p2p_send.default, _ns.p2p_recv.default, _ns.p2p_wait.default, _ns.p2p_group.default
MESSAGES = frozenset({SEND, RECV, WAIT, GROUP})


def _never(*args: object) -> None:
    raise RuntimeError("packpass: a point-to-point marker reached execution; please report this")


for _op in MESSAGES:
    has_side_effect(_op)
    _lib.impl(_op.name().partition("::")[2], _never, "CompositeExplicitAutograd")
    torch.library.register_fake(_op.name(), lambda *args: None, lib=_lib)
