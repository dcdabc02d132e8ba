"""How a plan is shown to a person: short, with its reasons, or refused."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from orchestrator.errors import Exit, LlmserveError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from orchestrator.plan import Decision, Plan

_GIB = 2**30
_BAR = 40


def refusal(plan: Plan, *, explained: bool = False) -> LlmserveError:
    """The error that a plan with violations is: all of them, each with its remedy (exit 3).

    `explained`: the whole plan has been shown already.
    """
    from orchestrator.planning.words import count

    remedy = "nothing was started; type the command again with the changes above"
    if not explained:
        remedy = "nothing was started; `llmserve plan --explain` with the same options shows the whole plan"
    violations = count(len(plan.violations), "violation")
    return LlmserveError(
        "plan_refused",
        f"the plan for {plan.goal} with {plan.model['name']} is refused: {violations}",
        remedy,
        exit_code=Exit.REFUSED,
        violations=[{"code": v.code, "message": v.message, "remedy": v.remedy} for v in plan.violations],
    )


def refused_json(plan: Plan) -> dict[str, Any]:
    """`{schema_version, error, violations, plan}` for a program."""
    return refusal(plan).to_json() | {"plan": plan.to_json()}


def show(con: Console, plan: Plan) -> None:
    """What would be launched, every lever with its reason, memory, and the command line."""
    _head(con, plan)
    con.print()
    con.print(_levers(plan))
    con.print()
    _memory(con, plan)
    _command(con, plan)


def show_short(con: Console, plan: Plan) -> None:
    """Model, engine and machine, the levers that differ from the engine's defaults on one line each."""
    _head(con, plan)
    changed = {n: d for n, d in plan.levers.items() if not d.stock}
    words = ", ".join(f"{n}={value(d.value, n)}" for n, d in changed.items())
    con.print(f"[dim]levers[/]   {_plain(words)}", soft_wrap=False)


def explain(con: Console, plan: Plan) -> None:
    """The path through the tree: every lever with rule, reason and what was rejected; then memory."""
    _head(con, plan)
    con.print()
    for what in ("model", "engine"):
        choice = plan.layout[f"{what}_choice"]
        con.print(f"[bold cyan]{what}[/] = [bold]{_plain(choice['value'])}[/]  [dim]({choice['rule']})[/]")
        con.print(f"  {_plain(choice['reason'])}")
        for r in choice["rejected"]:
            con.print(f"  [dim]not {_plain(r['value'])}: {_plain(r['why'])}[/]")
    con.print(f"\n[bold]goal {plan.goal}[/], profile {_plain(plan.profile)}: levers from top to bottom")
    for name, d in plan.levers.items():
        _explained(con, name, d)
    left_out: Mapping[str, str] = plan.layout.get("left_out", {})
    if left_out:
        con.print("\n[bold]left out[/]")
        for name, why in left_out.items():
            con.print(f"  [dim]{name}: {_plain(why)}[/]")
    _environment(con, plan)
    if plan.not_expressible:
        con.print(f"\n[bold]not expressible on {plan.engine.name}[/]: {', '.join(plan.not_expressible)}")
    con.print()
    _memory(con, plan)
    if plan.steps_down:
        con.print(f"[dim]should memory run out all the same:[/] {_plain(_lower(plan))}")
    _command(con, plan)


def _environment(con: Console, plan: Plan) -> None:
    """The engine's variables, and what the model's published launch has and the plan has not."""
    reasons: Mapping[str, str] = plan.layout.get("environment", {})
    values = {name: text for p in plan.processes for name, text in p.env.items()}
    if values:
        con.print("\n[bold]environment[/]")
    for name, text in values.items():
        con.print(f"[bold cyan]{_plain(name)}[/] = [bold]{_plain(text)}[/]")
        con.print(f"  {_plain(reasons.get(name, ''))}")
    published: Mapping[str, str] = plan.layout.get("published_left_out", {})
    if published:
        con.print("\n[bold]published with the model and left out[/]")
        for what, why in published.items():
            con.print(f"  [dim]{_plain(what)}: {_plain(why)}[/]")


def value(v: Any, lever: str = "") -> str:
    """A lever's value as it would be written after `--set LEVER=`; bytes in words."""
    from orchestrator.levers import LEVERS
    from orchestrator.planning.words import size, written

    if lever in LEVERS and LEVERS[lever].kind == "bytes" and isinstance(v, int):
        return size(v)
    return written(v)


def _head(con: Console, plan: Plan) -> None:
    from orchestrator.planning.words import size

    m, machine = plan.model, plan.machine
    facts = [
        m["quantization"] or m["format"],
        size(m["weights_bytes"]),
        f"model context {m['context_length']}",
    ]
    con.print(f"[dim]model[/]    [bold]{_plain(m['name'])}[/]  {_plain(_list(facts))}")
    engine = plan.engine
    version = f"{engine.kind} {engine.version}{' (captured)' if engine.captured else ''}"
    con.print(f"[dim]engine[/]   [bold]{_plain(engine.name)}[/]  {_plain(version)}")
    gpus = [g["name"] for g in machine["gpus"]]
    free = size(machine["memory_available_bytes"])
    what = [
        f"{machine['cpus']:g} CPUs",
        f"{free} of memory free",
        _gpus(gpus, machine.get("nodes", 1)),
    ]
    con.print(f"[dim]machine[/]  [bold]{_plain(machine['name'])}[/]  {_plain(_list(what))}")
    for warning in plan.warnings:
        con.print(f"[yellow]note[/]     {_plain(warning)}")


def _gpus(names: list[str], nodes: int) -> str:
    """`8 x NVIDIA H100`, or `2 nodes of 8 x NVIDIA H100`. The machine's GPUs are those of one node."""
    if not names:
        return "no GPU"
    kinds = dict.fromkeys(names)
    what = " + ".join(f"{names.count(name)} x {name}" for name in kinds)
    return f"{nodes} nodes of {what}" if nodes > 1 else what


def _levers(plan: Plan) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False, show_edge=False)
    table.add_column("lever", no_wrap=True, style="cyan")
    table.add_column("value", max_width=18, overflow="fold")
    table.add_column("reason", ratio=1, overflow="fold")
    for name, d in plan.levers.items():
        shown = value(d.value, name) + ("" if d.lossless else " (lossy)")
        table.add_row(name, _plain(shown), _plain(d.reason), style="dim" if d.stock else None)
    return table


def _explained(con: Console, name: str, d: Decision) -> None:
    marks = [d.rule]
    if d.stock:
        marks.append("the engine's default")
    if not d.lossless:
        marks.append("can change answers")
    con.print(f"[bold cyan]{name}[/] = [bold]{_plain(value(d.value, name))}[/]  [dim]({', '.join(marks)})[/]")
    con.print(f"  {_plain(d.reason)}")
    for r in d.rejected:
        con.print(f"  [dim]not {_plain(value(r.value, name))}: {_plain(r.why)}[/]")


def _memory(con: Console, plan: Plan) -> None:
    """Bars of what is used: of host and devices together, or of each kind of device."""
    from orchestrator.planning.words import count, size

    def of(name: str) -> int:
        return int(plan.predictions[name].value or 0) if name in plan.predictions else 0

    if "gpu_memory_requested_bytes" in plan.predictions:
        _device_bar(con, plan, of)
    else:
        _host_bar(con, of)
    tokens = plan.predictions["kv_cache_tokens"].value
    token = (
        of("kv_bytes_per_token_per_gpu")
        if "kv_bytes_per_gpu" in plan.predictions
        else of("kv_bytes_per_token")
    )
    at_once = f"{count(of('max_concurrency'), 'request')} of the workload at once"
    if tokens is None:
        con.print("[dim]KV[/]       how many tokens it holds is unknown before the start")
    else:
        con.print(f"[dim]KV[/]       {int(tokens)} tokens of {size(token)}; {at_once}")
    _speed(con, plan)


def _host_bar(con: Console, of: Callable[[str], int]) -> None:
    parts = [
        ("weights", of("weights_bytes"), "blue", "█"),
        ("KV", of("kv_bytes"), "green", "▓"),
        ("compute", of("compute_bytes"), "yellow", "▒"),
        ("prompt cache", of("prompt_cache_bytes"), "magenta", "░"),
        ("other", of("other_bytes"), "white", "▪"),
    ]
    there = of("host_memory_available_bytes") + of("gpu_memory_available_bytes")
    _bar(con, "memory", parts, there)


def _device_bar(con: Console, plan: Plan, of: Callable[[str], int]) -> None:
    """One bar for each device that the plan uses: the fullest rank's, as all are cut to it."""
    parts = [
        ("weights", of("weights_bytes_per_gpu") + of("draft_bytes_per_gpu"), "blue", "█"),
        ("KV", of("kv_bytes_per_gpu"), "green", "▓"),
        ("activations", of("activation_bytes_per_gpu"), "yellow", "▒"),
        ("graphs", of("graph_bytes_per_gpu"), "magenta", "░"),
        ("other", of("non_torch_bytes_per_gpu") + of("margin_bytes_per_gpu"), "white", "▪"),
    ]
    used = plan.layout.get("devices") or []
    names = {g["uuid"]: f"GPU {i}" for i, g in enumerate(plan.machine["gpus"])}
    shown = [names.get(uuid, uuid) for uuid in used] or ["memory"]
    label = (
        shown[0]
        if len(shown) == 1
        else f"GPU {shown[0].removeprefix('GPU ')}-{shown[-1].removeprefix('GPU ')}"
    )
    consecutive = [int(n.removeprefix("GPU ")) for n in shown if n.startswith("GPU ")]
    if len(shown) > 1 and consecutive != list(range(consecutive[0], consecutive[0] + len(shown))):
        label = f"{len(shown)} GPUs"
    needed = bool(plan.violations) and not of("kv_bytes_per_gpu")
    _bar(con, label, parts, of("gpu_memory_bytes"), each=len(shown) > 1, needed=needed)


def _bar(
    con: Console,
    label: str,
    parts: list[tuple[str, int, str, str]],
    there: int,
    *,
    each: bool = False,
    needed: bool = False,
) -> None:
    """What is used of what is there; `needed`: what would be, and does not fit."""
    from orchestrator.planning.words import size

    used = sum(n for _, n, _, _ in parts)
    scale = max(there, used, 1)
    bar = "".join(f"[{c}]{sign * _cells(n, scale)}[/]" for _, n, c, sign in parts if n)
    free = max(0, _BAR - sum(_cells(n, scale) for _, n, _, _ in parts))
    what = f"{size(used)}{' needed' if needed else ''} of {size(there)}{' each' if each else ''}"
    con.print(f"[dim]{label:8}[/] {bar}[dim]{'·' * free}[/] {what}")
    legend = [f"[{c}]{sign}[/] {what} {size(n)}" for what, n, c, sign in parts if n]
    con.print(f"         {'  '.join(legend[:3])}")
    if legend[3:]:
        con.print(f"         {'  '.join(legend[3:])}")


def _speed(con: Console, plan: Plan) -> None:
    p = plan.predictions
    if p["output_tokens_per_s"].value is None:
        con.print("[dim]speed    unknown before it is measured[/]")
        return
    requests = plan.layout.get("speed_at_requests")
    at = f" with {requests} at once" if requests else ""
    first, each, rate = (p[n].value or 0 for n in ("ttft_ms", "tpot_ms", "output_tokens_per_s"))
    con.print(
        f"[dim]speed[/]    about {first:,.0f} ms to the first token, {each:.1f} ms for each more, "
        f"{rate:,.0f} tokens/s{at}"
    )
    band = plan.layout.get("speed_band")
    far = f", good to a factor of {band[1]:.2g} on published runs" if band else ""
    con.print(f"         [dim]a roofline's estimate, no promise{far}[/]")


def _cells(n: int, scale: int) -> int:
    return max(1, round(_BAR * n / scale)) if n else 0


def _command(con: Console, plan: Plan) -> None:
    if plan.violations:
        con.print("\n[dim]no command: this plan is refused[/]")
        return
    for process in plan.processes:
        what = f"command of {process.role}" if len(plan.processes) > 1 else "command"
        numbers = " (device numbers are the machine file's)" if _from_file(plan) else ""
        con.print(f"\n[dim]{what}{numbers}[/]")
        # to be copied: never wrapped in the middle of a word, never marked up
        con.print(command(process.argv, process.env, process.ports), markup=False, soft_wrap=True)


def _from_file(plan: Plan) -> bool:
    """Whether the command names devices of a machine that was read from a file."""
    return plan.machine.get("source", "measured") != "measured" and bool(plan.layout.get("devices"))


def command(
    argv: tuple[str, ...],
    env: Mapping[str, str] | None = None,
    ports: Mapping[str, int | None] | None = None,
) -> str:
    """A command line for a shell, its variables before it, a flag and its value a line. Ports that are chosen
    at the start, and not in `ports`, stand there by name: PORT, and NCCL_PORT for `{port:nccl}`."""

    def port(found: re.Match[str]) -> str:
        number = (ports or {}).get(found[1])
        if number is not None:
            return str(number)
        return "PORT" if found[1] == "http" else f"{found[1].upper()}_PORT"

    lines: list[list[str]] = [
        [f"{name}={shlex.quote(value)}"] for name, value in (env or {}).items() if "{" not in value
    ]
    lines.append([])
    for word in argv:
        if word.startswith("--") and lines[-1]:
            lines.append([])
        lines[-1].append(_PORT.sub(port, word) if "{port:" in word else shlex.quote(word))
    packed: list[str] = []
    for words in lines:
        text = " ".join(words)
        if packed and len(packed[-1]) + len(text) < 74:
            packed[-1] += f" {text}"
        else:
            packed.append(text)
    return " \\\n  ".join(packed)


_PORT = re.compile(r"\{port:([a-z0-9]+)\}")


def _lower(plan: Plan) -> str:
    lower = next(iter(plan.steps_down.values()))["levers"]
    changed = [
        f"{name} {value(d.value, name)} → {value(lower[name]['value'], name)}"
        for name, d in plan.levers.items()
        if name in lower and lower[name]["value"] != d.value
    ]
    return ", ".join(changed)


def _list(words: list[Any]) -> str:
    return ", ".join(str(w) for w in words if w)


def _plain(text: Any) -> str:
    from rich.markup import escape

    return escape(str(text))
