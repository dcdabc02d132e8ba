"""An engine's answer over HTTP, of bounded size."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import httpx

REPLY_LIMIT_BYTES = 4 << 20


async def fetch(client: httpx.AsyncClient, method: str, url: str, **request: Any) -> tuple[int, bytes]:
    """Status and body. Raises httpx.HTTPError, and ValueError for a body above REPLY_LIMIT_BYTES."""
    async with client.stream(method, url, **request) as response:
        body = bytearray()
        async for piece in response.aiter_bytes():
            body += piece
            if len(body) > REPLY_LIMIT_BYTES:
                raise ValueError(f"{url} answers more than {REPLY_LIMIT_BYTES} bytes")
        return response.status_code, bytes(body)
