"""Batch sizes for which vLLM records graphs: a largest size between two of them is taken down to the lower.

The grid is 1, 2, 4, then every eighth below 256, then every sixteenth (vLLM 0.32.0 vllm/config/vllm.py:2470,
`_set_cudagraph_sizes`). SGLang records the size that it is given whatever it is.
"""

from __future__ import annotations

MOST = 512
"""Largest size that a plan asks for: vLLM's own largest, apart from data-center Blackwell's 1024."""


def covering(n: int) -> int:
    """The smallest size of the grid that holds a batch of `n`, 512 at most."""
    if n >= MOST:
        return MOST
    for small in (1, 2, 4):
        if n <= small:
            return small
    step = 8 if n <= 256 else 16
    return -(-n // step) * step


def within(n: int) -> int:
    """The largest size of the grid up to `n` (1 or more): what vLLM makes of `n`."""
    if n < 8:
        return max(size for size in (1, 2, 4) if size <= max(1, n))
    step = 8 if n < 256 else 16
    return n // step * step
