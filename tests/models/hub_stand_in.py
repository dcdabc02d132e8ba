"""A small real hub on loopback: the part of the Hugging Face HTTP interface that pulling a model needs."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "c0ffee" + "0" * 34


class Hub:
    """`repositories` maps an id to its files. `requests` is every (method, path, Range) that came.

    Switches: `cut` maps a file to the bytes after which its connection is dropped, once (and with
    `ill_after_cut` it is broken from then on); `broken` are files answered with 500; `hold` maps a file to an
    event that its answer waits for; `gated` and `private` are ids; with `ranges` False every answer is the
    whole file.
    """

    def __init__(self) -> None:
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.commit = COMMIT
        self.cut: dict[str, int] = {}
        self.broken: set[str] = set()
        self.ill_after_cut = False
        self.hold: dict[str, threading.Event] = {}
        self.gated: set[str] = set()
        self.private: set[str] = set()
        self.ranges = True
        self.requests: list[tuple[str, str, str | None]] = []
        self.tokens: set[str | None] = set()
        self.sent_bytes = 0
        hub = self

        class Handler(_Handler):
            stand_in = hub

        self._server = _Server(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})

    def __enter__(self) -> Hub:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def fetched(self, name: str) -> list[str | None]:
        """The Range of every GET of a file."""
        return [r for method, path, r in self.requests if method == "GET" and path.endswith("/" + name)]


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away in the middle is what some tests do."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    stand_in: Hub

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        hub = self.stand_in
        path = unquote(urlsplit(self.path).path)
        hub.requests.append((self.command, path, self.headers.get("Range")))
        hub.tokens.add(self.headers.get("Authorization"))
        api = re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?", path)
        file = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        found = api or file
        if found is None:
            return self._error(404, "EntryNotFound")
        repository = found[1]
        if repository in hub.private and self.headers.get("Authorization") is None:
            return self._error(401, "RepoNotFound")
        if repository not in hub.repositories:
            return self._error(404, "RepoNotFound")
        if (found[2] or "main") not in ("main", hub.commit):
            return self._error(404, "RevisionNotFound")
        if api is not None:
            return self._describe(repository)
        assert file is not None
        if repository in hub.gated:
            return self._error(403, "GatedRepo")
        if file[3] not in hub.repositories[repository]:
            return self._error(404, "EntryNotFound")
        if file[3] in hub.broken and self.command == "GET":
            return self._error(500, None)
        return self._send_file(file[3], hub.repositories[repository][file[3]])

    def _describe(self, repository: str) -> None:
        siblings = []
        for name, data in self.stand_in.repositories[repository].items():
            entry: dict[str, Any] = {
                "rfilename": name,
                "size": len(data),
                "blobId": hashlib.sha1(data).hexdigest(),
            }
            if name.endswith((".safetensors", ".gguf")):
                sha = hashlib.sha256(data).hexdigest()
                entry["lfs"] = {"sha256": sha, "size": len(data), "pointerSize": 130}
            siblings.append(entry)
        body = json.dumps(
            {"id": repository, "sha": self.stand_in.commit, "siblings": siblings, "tags": []}
        ).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _send_file(self, name: str, data: bytes) -> None:
        hub = self.stand_in
        first, last = 0, len(data) - 1
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        if asked and hub.ranges:
            first, last = int(asked[1]), min(int(asked[2] or last), last)
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(data)}")
        else:
            self.send_response(200)
        part = data[first : last + 1]
        self.send_header("Content-Length", str(len(part)))
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("ETag", f'"{hashlib.sha256(data).hexdigest()}"')
        self.send_header("X-Repo-Commit", hub.commit)
        self.end_headers()
        if self.command == "HEAD":
            return
        cut = hub.cut.pop(name, None)
        if cut is not None:
            part = part[:cut]
            self.close_connection = True
            if hub.ill_after_cut:
                hub.broken.add(name)
        if name in hub.hold:
            hub.hold[name].wait(20)
        hub.sent_bytes += len(part)
        try:
            self.wfile.write(part)
        except (BrokenPipeError, ConnectionResetError):
            # the client had enough
            self.close_connection = True

    def _error(self, status: int, code: str | None) -> None:
        self.send_response(status)
        if code is not None:
            self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()
