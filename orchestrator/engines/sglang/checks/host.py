"""What SGLang needs of the host: memory to set KV aside in, and the files that are named."""

from __future__ import annotations

import os
from collections.abc import Iterator

from orchestrator.engines.sglang.checks.args import Args
from orchestrator.plan import Violation

_GB, _GIB = 10**9, 1 << 30
_RESERVE = 10 * _GIB
"""Host memory that the hierarchical cache leaves free (0.5.23, mem_cache/pool_host/base.py:28)."""


def memory(args: Args) -> Iterator[Violation]:
    """--hicache-size is GB for each rank, all of it allocated at the start (0.5.23,
    mem_cache/pool_host/base.py:223 and 253)."""
    each, there = args.number("--hicache-size"), args.machine.get("memory_available_bytes")
    if not args.on("--enable-hierarchical-cache") or not each or not isinstance(there, int):
        return
    ranks = max(1, args.world // max(1, args.number("--nnodes") or 1))
    wanted, left = int(each * _GB * ranks), max(0, there - _RESERVE)
    if wanted > left:
        most = left // _GB // ranks * ranks
        fits = f"--set kv_offload_bytes={most}GB or less, or " if most else ""
        yield Violation(
            "host_memory",
            f"kv_offload_bytes asks for {wanted / _GIB:.0f} GiB of host memory, and SGLang takes "
            f"{left / _GIB:.1f} GiB at most of the {there / _GIB:.1f} GiB that are free",
            f"use {fits}--set kv_offload_bytes=0",
        )


def files(args: Args) -> Iterator[Violation]:
    """--chat-template is a file or one of SGLang's own names (0.5.23, parser/template_manager.py:228)."""
    template = args.get("--chat-template")
    if not isinstance(template, str) or os.path.exists(template):
        return
    if "/" in template or template.endswith((".jinja", ".json")):
        yield Violation(
            "chat_template_missing",
            f"chat_template {template!r} is not a file here",
            "give the path of a jinja file, or leave it to the model with --set chat_template=auto",
        )
