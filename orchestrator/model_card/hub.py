"""Models on a Hugging Face hub: what a repository holds, and cards from configuration and headers alone.

The endpoint is `HF_ENDPOINT`, else huggingface.co; a token comes from the environment only (`HF_TOKEN`) and
is never printed. Headers are read by HTTP range requests of bounded size, whatever the server answers.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

from orchestrator.errors import LlmserveError, refused
from orchestrator.model_card import gguf, gguf_card, huggingface, safetensors
from orchestrator.model_card.card import ModelCard
from orchestrator.model_card.reading import Damaged, parse_json, unreadable

if TYPE_CHECKING:
    import httpx

HUB_ID = re.compile(r"^(?!.*(--|\.\.))[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}$")
_TIMEOUT_S = 30.0
_WINDOW_BYTES = 1 << 16
_CONNECTIONS = 8
_MAX_SHARDS = 2048


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """`size` in bytes (None where the hub does not say); `sha256` for files in large-file storage."""

    name: str
    size: int | None
    sha256: str | None = None


@dataclass(frozen=True, slots=True)
class Repository:
    """One commit of a model repository."""

    id: str
    commit: str
    files: Mapping[str, RemoteFile]


def endpoint() -> str:
    """The hub's address, without a slash at its end."""
    return (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")


def token() -> str | None:
    """The user's token, from the environment alone."""
    return os.environ.get("HF_TOKEN") or os.environ.get("HUGGING_FACE_HUB_TOKEN") or None


@contextmanager
def explained(repository: str) -> Iterator[None]:
    """Turns whatever a hub library raises into one `LlmserveError` with a remedy."""
    try:
        yield
    except (LlmserveError, KeyboardInterrupt):
        raise
    except Exception as e:
        raise _explain(repository, e) from None


def look_up(repository: str, revision: str | None = None) -> Repository:
    """The files of a repository at a revision. Raises LlmserveError (`model_not_found`, `model_gated`,
    `hub_unreachable`, `hub_offline`)."""
    if not HUB_ID.match(repository):
        raise refused("model_not_found", f"{repository[:120]!r} is no hub id", "a hub id is ORG/NAME")
    if (os.environ.get("HF_HUB_OFFLINE") or "").upper() in ("1", "TRUE", "YES", "ON"):
        raise refused(
            "hub_offline",
            f"{repository} is not on this machine, and HF_HUB_OFFLINE forbids asking the hub",
            f"unset HF_HUB_OFFLINE and run `llmserve models pull {repository}`, or give a local path",
        )
    from huggingface_hub import HfApi

    with explained(repository):
        info = HfApi(endpoint=endpoint(), token=token() or False).model_info(
            repository, revision=revision, files_metadata=True, timeout=_TIMEOUT_S
        )
        files = {}
        for f in info.siblings or []:
            sha = f.lfs.sha256 if f.lfs is not None else None
            files[f.rfilename] = RemoteFile(f.rfilename, f.size, sha)
        return Repository(repository, info.sha or revision or "main", files)


def read_hub(repository: str, name: str | None = None, revision: str | None = None) -> ModelCard:
    """The card of a hub id from its config and safetensors headers, or from the header of its only GGUF.

    Raises LlmserveError; `model_ambiguous` where it holds several GGUF files and no config.json.
    """
    repo = look_up(repository, revision)
    with Remote(repo) as remote:
        top = [n for n in repo.files if "/" not in n]
        weights = any(n.endswith(".safetensors") for n in top)
        if "config.json" in top and (weights or not any(n.endswith(".gguf") for n in repo.files)):
            return _transformers_card(remote, name or repository)
        return _gguf_card(remote, name or repository)


def gguf_choice(repo: Repository) -> list[str]:
    """The files of the one GGUF model in a repository, first part first.

    Raises LlmserveError: `model_not_found` where there is none, `model_ambiguous` where there are several.
    """
    names = [n for n in repo.files if n.endswith(".gguf") and "mmproj" not in n.lower()]
    first = sorted({_first_part(n) for n in names})
    if not first:
        raise refused(
            "model_not_found",
            f"{repo.id} holds neither a config.json nor a GGUF file",
            "give the id of a model repository",
        )
    if len(first) > 1:
        shown = ", ".join(first[:12]) + (" …" if len(first) > 12 else "")
        raise refused(
            "model_ambiguous",
            f"{repo.id} holds {len(first)} GGUF models: {shown}",
            f"choose one: llmserve models pull {repo.id} --file {first[0]}",
        )
    return parts(first[0])


def parts(name: str) -> list[str]:
    """All parts of a GGUF by the path of one, in the repository's folders."""
    folder, _, file = name.rpartition("/")
    return [f"{folder}/{f}" if folder else f for f in gguf_card.split_files(file)]


def _first_part(name: str) -> str:
    return parts(name)[0]


def _transformers_card(remote: Remote, name: str) -> ModelCard:
    files = remote.repo.files
    names = [n for n in files if "/" not in n]
    config = remote.json("config.json", huggingface.MAX_CONFIG_BYTES)
    beside = (
        remote.json("hf_quant_config.json", huggingface.MAX_CONFIG_BYTES)
        if "hf_quant_config.json" in files
        else {}
    )
    tokenizer: dict[str, Any] = {}
    if "tokenizer_config.json" in files:
        tokenizer = remote.json("tokenizer_config.json", huggingface.MAX_TOKENIZER_CONFIG_BYTES)
    template = any(f in files for f in huggingface.TEMPLATE_FILES) or huggingface.has_template(tokenizer)
    index = None
    if safetensors.INDEX in files:
        text = remote.whole(safetensors.INDEX, safetensors.MAX_INDEX_BYTES)
        index = safetensors.read_index(text, f"{remote.repo.id}/{safetensors.INDEX}")
    shards = safetensors.weight_files(names, index)[:_MAX_SHARDS]
    for shard in shards:
        if shard not in files:
            raise unreadable(remote.repo.id, f"lacks {shard}, which its index names")
    with ThreadPoolExecutor(_CONNECTIONS) as pool:
        headers = list(pool.map(lambda shard: safetensors.checked(remote.open(shard)), shards))
    try:
        return huggingface.card_of(
            config,
            source=remote.repo.id,
            name=name,
            path=None,
            chat_template=template,
            tokenizer=tokenizer,
            beside=beside,
            files=shards,
            header=safetensors.together(headers) if headers else None,
        )
    except Damaged as e:
        raise huggingface.of_config(f"{remote.repo.id}/config.json", config, e) from None


def _gguf_card(remote: Remote, name: str) -> ModelCard:
    files = gguf_choice(remote.repo)
    headers = []
    for file in files:
        if file not in remote.repo.files:
            raise unreadable(remote.repo.id, f"lacks {file}, one of {len(files)} parts")
        try:
            headers.append(gguf.read_header(remote.open(file)))
        except Damaged as e:
            raise unreadable(f"{remote.repo.id}/{file}", str(e)) from None
    try:
        return gguf_card.card_of(headers, remote.repo.id, name, None, files)
    except Damaged as e:
        raise unreadable(remote.repo.id, str(e)) from None


class Remote:
    """Reading one repository's files at one commit: bounded, or as an open stream."""

    def __init__(self, repo: Repository) -> None:
        import httpx

        self.repo = repo
        self._client = httpx.Client(timeout=_TIMEOUT_S, follow_redirects=True)
        secret = token()
        self._headers = {"Accept-Encoding": "identity", "User-Agent": "llmserve"}
        if secret:
            self._headers["Authorization"] = f"Bearer {secret}"

    def __enter__(self) -> Remote:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._client.close()

    def open(self, name: str) -> _Ranged:
        size = self.repo.files[name].size
        if size is None:
            raise unreadable(f"{self.repo.id}/{name}", "has no size on the hub")
        return _Ranged(self, name, size)

    def whole(self, name: str, limit_bytes: int) -> bytes:
        size = self.repo.files[name].size
        if size is not None and size > limit_bytes:
            raise unreadable(f"{self.repo.id}/{name}", f"has {size:,} bytes, more than such a file can need")
        return self.fetch(name, 0, limit_bytes if size is None else size)

    def json(self, name: str, limit_bytes: int) -> dict[str, Any]:
        try:
            return parse_json(self.whole(name, limit_bytes))
        except Damaged as e:
            raise unreadable(f"{self.repo.id}/{name}", str(e)) from None

    def fetch(self, name: str, offset: int, length: int) -> bytes:
        """At most `length` bytes from `offset`; never more is read, even where ranges are ignored."""
        if length <= 0:
            return b""
        with explained(self.repo.id), self.stream(name, f"{offset}-{offset + length - 1}") as answer:
            if answer.status_code != 206 and offset:
                raise unreadable(
                    f"{self.repo.id}/{name}", "is on a server that gives no ranges", "pull it first"
                )
            got = bytearray()
            for piece in answer.iter_bytes(_WINDOW_BYTES):
                got += piece[: length - len(got)]
                if len(got) >= length:
                    break
            return bytes(got)

    @contextmanager
    def stream(self, name: str, byte_range: str) -> Iterator[httpx.Response]:
        """An open answer for a range ("0-99", "100-"); status 206, or 200 where ranges are ignored.

        Raises httpx.HTTPError.
        """
        from urllib.parse import quote

        url = f"{endpoint()}/{self.repo.id}/resolve/{quote(self.repo.commit, safe='')}/{quote(name)}"
        headers = self._headers | {"Range": f"bytes={byte_range}"}
        with self._client.stream("GET", url, headers=headers) as answer:
            answer.raise_for_status()
            yield answer


class _Ranged:
    """A remote file as `Bytes`: reads a window at a time and keeps the last one."""

    def __init__(self, remote: Remote, name: str, size: int) -> None:
        self.name = f"{remote.repo.id}/{name}"
        self.size = size
        self._remote = remote
        self._file = name
        self._at = 0
        self._window = b""

    def read_at(self, offset: int, length: int) -> bytes:
        length = min(length, self.size - offset)
        begin = offset - self._at
        if begin < 0 or begin + length > len(self._window):
            wanted = min(max(length, _WINDOW_BYTES), self.size - offset)
            self._window = self._remote.fetch(self._file, offset, wanted)
            self._at, begin = offset, 0
        return self._window[begin : begin + length]


def _explain(repository: str, e: Exception) -> LlmserveError:
    """One sentence for what went wrong, by the status where there is one."""
    kind = type(e).__name__
    status = getattr(getattr(e, "response", None), "status_code", None)
    if kind == "GatedRepoError" or status == 403:
        return refused(
            "model_gated",
            f"{repository} is gated, and this account has no access to it",
            f"accept its terms at {endpoint()}/{repository} and set HF_TOKEN",
        )
    if kind in ("RevisionNotFoundError", "EntryNotFoundError", "RemoteEntryNotFoundError"):
        return refused(
            "model_not_found", f"{repository} has no such revision or file", "check --revision and --file"
        )
    if status == 401 and token():
        return refused(
            "model_not_found", f"the hub turned away the token in HF_TOKEN for {repository}", "renew it"
        )
    if kind == "RepositoryNotFoundError" or status in (401, 404):
        return refused(
            "model_not_found",
            f"{endpoint()} has no model {repository}, or it is private",
            "check the name; for a private model set HF_TOKEN",
        )
    if status == 429:
        return refused("hub_unreachable", "the hub asks to slow down (429)", "wait a while, or set HF_TOKEN")
    if status is not None:
        return refused(
            "hub_unreachable", f"{endpoint()} answered {status} for {repository}", "try again later"
        )
    if isinstance(e, OSError) and e.errno is not None and e.filename:
        return refused(
            "store_unwritable", f"{e.filename}: {e.strerror}", "free space, or set LLMSERVE_HOME elsewhere"
        )
    cause = str(e).splitlines()[0][:200] if str(e) else ""
    secret = token()
    if secret:
        cause = cause.replace(secret, "***")
    return refused(
        "hub_unreachable",
        f"{endpoint()} cannot be reached for {repository} ({kind}{': ' + cause if cause else ''})",
        "check the network, proxies and HF_ENDPOINT; a pulled model or a local path works offline",
    )
