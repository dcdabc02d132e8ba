"""How SGLang's ranks meet: the ports that attention ranks take beside it, and what each node is told."""

from __future__ import annotations

from orchestrator.engines.base import Installation
from orchestrator.plan import Violation

HEAD = "HEAD"
"""Stands for the first node's address, which no plan knows."""

MEETING_PORT = 20000
"""Where nodes meet on the first: a fixed one, for nobody looks which is free there."""

FLAGS = ("--nnodes", "--node-rank", "--dist-init-addr")


def ports_of_attention(name: str, ranks: int) -> tuple[str, ...]:
    """The port `name` of --dist-init-addr and those above it that SGLang binds unasked where ranks have
    attention of their own, by their names in a ProcessPlan.

    SGLang 0.5.23 takes six for its processes' messages, and one more for each rank with the Rust server
    (server_args.py:834); releases before 0.5.4 one more for each rank always. Without the flag all lie 233
    above --port, where no one looked.
    """
    return (name, *(f"{name}+{n}" for n in range(1, 7 + ranks)))


def arguments(nodes: int, installation: Installation) -> tuple[list[tuple[str, ...]], list[Violation]]:
    """What only each node is told, and what is refused: no release that is known lacks one of the flags."""
    if nodes == 1:
        return [()], []
    unlisted = [flag for flag in FLAGS if installation.flag(flag) is None]
    if unlisted:
        refused = Violation(
            "nodes_not_expressible",
            f"SGLang {installation.version} lists no {unlisted[0]}, which {nodes} nodes need",
            "use smaller sizes, so that one node is enough",
        )
        return [()], [refused]
    own = []
    for node in range(nodes):
        values = (str(nodes), str(node), f"{HEAD}:{MEETING_PORT}")
        own.append(tuple(word for pair in zip(FLAGS, values, strict=True) for word in pair))
    return own, []
