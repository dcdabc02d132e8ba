"""What SGLang would refuse at its start, or do differently without a word, found in a Plan.

`refused.yaml` and `adjusted.yaml` hold the rules that are conditions, `sizes.py` those that calculate,
`values.py` what stands inside a value. All of them look at the command line itself, so they hold for
levers and for raw engine_args alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from orchestrator.engines.base import Installation
from orchestrator.engines.sglang.checks import amd, host, sizes, table, values
from orchestrator.engines.sglang.checks.args import Args, read
from orchestrator.plan import Plan, Violation

_last: tuple[tuple[Any, ...], tuple[Args, ...]] | None = None


def check(plan: Plan, installation: Installation) -> list[Violation]:
    """All at once, of all processes of the plan; empty where SGLang would take it."""
    if installation.extras.get("broken"):
        return []
    found = [v for args in _processes(plan, installation) for v in refused(args)]
    return list(dict.fromkeys(found))


def warnings(plan: Plan, installation: Installation) -> list[str]:
    """What SGLang would start with and do otherwise than planned, a sentence each."""
    if installation.extras.get("broken"):
        return []
    said = [
        rule.said(args) for args in _processes(plan, installation) for rule in table.met("adjusted", args)
    ]
    return list(dict.fromkeys(said))


def refused(args: Args) -> Iterator[Violation]:
    """Every violation of one process: what its parser refuses, what does not divide, and the rules."""
    yield from _unparsed(args)
    for part in (
        sizes.ranks,
        sizes.heads,
        sizes.devices,
        sizes.pages,
        sizes.room,
        sizes.draft,
        sizes.quantization,
        amd.quantization,
        host.memory,
        host.files,
        values.inside,
    ):
        yield from part(args)
    for rule in table.met("refused", args):
        yield Violation(rule.code, rule.said(args), rule.remedy(args))


def _processes(plan: Plan, installation: Installation) -> tuple[Args, ...]:
    """The plan's processes, read; kept, as `check` follows `warnings` on the same ones."""
    global _last
    seen = (plan.processes, plan.model, plan.machine, plan.predictions, installation)
    if _last is None or any(a is not b for a, b in zip(_last[0], seen, strict=True)):
        found = (read(plan, process, installation) for process in plan.processes)
        _last = seen, tuple(args for args in found if args is not None)
    return _last[1]


def _unparsed(args: Args) -> Iterator[Violation]:
    """argparse with abbreviations: a beginning that fits several flags is refused (`--pp` in 0.5.23)."""
    parsed, version = args.parsed, args.installation.version
    removed = args.installation.extras.get("removed") or {}
    for word in parsed.unknown:
        if word in removed:
            yield Violation("removed_flag", f"SGLang {version} no longer has {word}", str(removed[word]))
            continue
        near = args.installation.nearest(word)
        yield Violation(
            "unknown_flag",
            f"SGLang {version} has no {word}",
            f"did you mean {near}?" if near else "take it out of engine_args",
        )
    for word, many in parsed.ambiguous.items():
        yield Violation(
            "ambiguous_flag",
            f"{word} could be {', '.join(many)}",
            "write the whole name of the flag in engine_args",
        )
    for flag in parsed.incomplete:
        yield Violation("missing_value", f"{flag} has no value", "give it one in engine_args")
    for flag, text in parsed.bad:
        known = args.said(flag)
        offered = f": it takes {', '.join(known.choices)}" if known is not None and known.choices else ""
        yield Violation("bad_value", f"{flag} does not take {text!r}{offered}", "correct it in engine_args")
    for word in parsed.positionals:
        yield Violation(
            "stray_argument", f"SGLang takes no {word!r} on its own", "take it out of engine_args"
        )
