from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli import output

if TYPE_CHECKING:
    from rich.table import Table

    from orchestrator.machine import Machine


def register(app: typer.Typer) -> None:
    """Add this module's commands."""
    app.command("machine", epilog="Example: llmserve machine --json > this.json")(show)


def _names(incomplete: str) -> list[str]:
    from orchestrator.machine.files import names

    return [n for n in names() if n.startswith(incomplete)]


def show(
    machine: Annotated[
        str | None,
        typer.Option(
            "--machine",
            metavar="FILE",
            help="Show a machine file, or a known machine by name, instead of this machine.",
            autocompletion=_names,
        ),
    ] = None,
    json_output: output.Json = False,
) -> None:
    """Show GPUs, memory and CPUs as a server started here could use them."""
    from orchestrator.machine import load, measure

    found = load(machine) if machine is not None else measure()
    if json_output:
        output.emit(found.to_json())
        return
    con = output.console()
    con.print(f"[bold]{_plain(found.name)}[/]  {_plain(found.platform)}, {_plain(found.source)}")
    for label, value in _facts(found):
        con.print(f"  {label:<9}{_plain(value)}")
    if found.gpus:
        con.print()
        con.print(_gpus(found))
    for line in _links(found):
        con.print(f"  {_plain(line)}")
    for note in found.notes:
        con.print(f"  [yellow]note[/]  {_plain(note)}")
    if machine is None:
        con.print("\nplan for it: llmserve plan --goal edge", style="dim")
    else:
        con.print(f"\nplan for it: llmserve plan --goal edge --machine {_plain(machine)}", style="dim")


def _facts(m: Machine) -> list[tuple[str, str]]:
    limit = ""
    if m.memory_limit_bytes < m.memory_total_bytes:
        limit = f" (limited; the host has {_size(m.memory_total_bytes)})"
    facts = [
        ("cpus", f"{m.cpus:g} ({m.logical_cpus} logical, {m.physical_cores} physical cores)"),
        ("memory", f"{_size(m.memory_limit_bytes)}, {_size(m.memory_available_bytes)} available{limit}"),
    ]
    if m.shm_total_bytes is not None:
        facts.append(("/dev/shm", f"{_size(m.shm_total_bytes)}, {_size(m.shm_free_bytes or 0)} free"))
    if m.unified_memory:
        facts.append(("unified", "GPUs share the host's memory"))
    if m.driver_version:
        facts.append(("driver", m.driver_version + (f", CUDA {m.cuda_version}" if m.cuda_version else "")))
    if m.nodes > 1:
        facts.append(("nodes", str(m.nodes)))
    if not m.gpus:
        facts.append(("gpus", "none"))
    return facts


def _gpus(m: Machine) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    table.add_column("#", justify="right")
    table.add_column("GPU", overflow="fold")
    table.add_column("UUID", no_wrap=True)
    for column in ("memory", "free", "cc"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("held by" if any(g.holders for g in m.gpus) else "", overflow="fold")
    for g in m.gpus:
        held = ", ".join(f"{h.name or 'unknown'} ({h.pid})" for h in g.holders)
        table.add_row(
            str(g.index),
            _plain(g.name),
            # CUDA_VISIBLE_DEVICES takes the beginning of a UUID; the whole is in --json
            _plain(g.uuid[:12]),
            _size(g.memory_bytes),
            _size(g.free_bytes),
            g.compute_capability or "",
            _plain(held),
        )
    return table


def _links(m: Machine) -> list[str]:
    """Pairs of one kind together: "nvlink 450 GB/s: all 28 pairs"."""
    index = {g.uuid: g.index for g in m.gpus}
    kinds: dict[str, list[str]] = {}
    for link in m.links:
        speed = "" if link.bandwidth_gbps is None else f" {link.bandwidth_gbps:g} GB/s"
        pair = f"{index.get(link.a, '?')}-{index.get(link.b, '?')}"
        kinds.setdefault(f"{link.kind}{speed}", []).append(pair)
    if len(kinds) == 1:
        kind, pairs = next(iter(kinds.items()))
        return [f"{kind}: {'GPUs ' + pairs[0] if len(pairs) == 1 else f'all {len(pairs)} pairs'}"]
    return [
        f"{kind}: GPUs {', '.join(pairs[:12])}{f' and {len(pairs) - 12} more' if len(pairs) > 12 else ''}"
        for kind, pairs in kinds.items()
    ]


def _size(count: int) -> str:
    from orchestrator.planning.words import size

    return size(count)


def _plain(text: str) -> str:
    from rich.markup import escape

    return escape(text)
