"""`llmserve profiles`: what a launch may start from, shown, checked and compared."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer

from orchestrator.cli import output
from orchestrator.errors import LlmserveError


def complete_profile(incomplete: str) -> list[str]:
    """Names of profiles for the shell's completion; imports neither yaml nor pydantic."""
    from orchestrator.profile_files import found

    return [name for name in found() if name.startswith(incomplete)]


def register(app: typer.Typer) -> None:
    """Add `profiles` and its commands."""
    group = typer.Typer(
        name="profiles",
        no_args_is_help=True,
        help="Show, check and compare profiles: goal, workload, objective and levers in a file.",
        epilog="Example: llmserve profiles show edge",
    )
    group.command("list", epilog="Example: llmserve profiles list")(list_)
    group.command("show", epilog="Example: llmserve profiles show latency --merged")(show)
    group.command("validate", epilog="Example: llmserve profiles validate my-profile.yaml")(validate)
    group.command("schema", epilog="Example: llmserve profiles schema > profile.schema.json")(schema)
    group.command("diff", epilog="Example: llmserve profiles diff latency throughput")(diff)
    app.add_typer(group)


_Profile = Annotated[
    str,
    typer.Argument(metavar="PROFILE", help="A profile's name or file.", autocompletion=complete_profile),
]


def list_(json_output: output.Json = False) -> None:
    """List the profiles that have a name: your own, and those that come with llmserve."""
    from orchestrator import profile_files, profiles

    rows: list[dict[str, Any]] = []
    for name, path in profile_files.found().items():
        row: dict[str, Any] = {"name": name, "goal": None, "extends": None, "error": None}
        row |= {"builtin": profile_files.is_builtin(path), "path": str(path)}
        try:
            profile = profiles.load(name)
            row |= {"goal": profile.goal, "extends": profile.extends}
        except LlmserveError as e:
            row["error"] = e.message
        rows.append(row)
    if json_output:
        output.emit({"profiles": rows})
        return
    from rich.table import Table
    from rich.text import Text

    table = Table("profile", "goal", "extends", "from", box=None, pad_edge=False)
    for row in rows:
        where = "llmserve" if row["builtin"] else "yours"
        goal = row["goal"] or Text("broken", "red")
        table.add_row(Text(row["name"]), goal, Text(row["extends"] or ""), where)
    con = output.console()
    con.print(table)
    con.print(Text(f"Your own go into {profile_files.user_dir()}", "dim"), soft_wrap=True)
    broken = next((row["name"] for row in rows if row["error"]), None)
    con.print(Text(f"Next: llmserve profiles {f'validate {broken}' if broken else 'show NAME'}", "dim"))


def show(
    profile: _Profile,
    merged: Annotated[
        bool,
        typer.Option("--merged", help="With what it extends and every default, instead of the file."),
    ] = False,
    json_output: output.Json = False,
) -> None:
    """Print a profile's file with its comments, or with --merged what a launch would start from."""
    from orchestrator import profiles
    from orchestrator.profile_files import candidates, is_builtin

    resolved = profiles.resolve(profile=profile)
    path = candidates(profile)[0]
    if json_output:
        about = {"name": resolved.profile.profile, "path": str(path), "builtin": is_builtin(path)}
        output.emit(about | {"profile": resolved.profile.model_dump(), "origin": resolved.origin})
    elif merged:
        import yaml

        text = yaml.safe_dump(resolved.profile.model_dump(), sort_keys=False, allow_unicode=True, width=100)
        sys.stdout.write(text)
    else:
        sys.stdout.write(path.read_text(encoding="utf-8-sig"))


def validate(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...", help="Files, or names of profiles.", autocompletion=complete_profile
        ),
    ],
    json_output: output.Json = False,
) -> None:
    """Check profiles and all they extend; every problem is named with its line and the nearest right key."""
    from orchestrator import profiles

    results: list[dict[str, Any]] = []
    code = 0
    for file in files:
        problems: list[dict[str, str]] = []
        try:
            profiles.load(file)
        except LlmserveError as e:
            problems = e.violations or [{"code": e.code, "message": e.message, "remedy": e.remedy}]
            code = code or int(e.exit_code)
        results.append({"file": file, "valid": not problems, "problems": problems})
    if json_output:
        output.emit({"files": results})
    else:
        _print_results(results)
    if code:
        raise typer.Exit(code)


def _print_results(results: list[dict[str, Any]]) -> None:
    from rich.text import Text

    con = output.console()
    for result in results:
        if result["valid"]:
            con.print(Text.assemble(("valid  ", "green"), result["file"]), soft_wrap=True)
        else:
            count = len(result["problems"])
            what = "1 problem" if count == 1 else f"{count} problems"
            con.print(Text.assemble(("wrong  ", "bold red"), f"{result['file']}: {what}"), soft_wrap=True)
        for problem in result["problems"]:
            con.print(Text(f"  • {problem['message']}"), soft_wrap=True)
            if problem["remedy"]:
                con.print(Text(f"    → {problem['remedy']}"), soft_wrap=True)


def schema(json_output: output.Json = False) -> None:
    """Print the JSON Schema of profiles, with which editors complete and check.

    First line of a profile, for editors with a YAML language server:
    # yaml-language-server: $schema=profile.schema.json
    """
    from orchestrator.profile_schema import json_schema

    if json_output:
        output.emit({"schema": json_schema()})
    else:
        sys.stdout.write(json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n")


def diff(a: _Profile, b: _Profile, json_output: output.Json = False) -> None:
    """Compare two profiles, each with what it extends and every default: the keys in which they differ."""
    from orchestrator import profiles

    flat_a, flat_b = (dict(_flat(profiles.load(name).model_dump())) for name in (a, b))
    keys = [k for k in dict.fromkeys((*flat_a, *flat_b)) if k not in ("profile", "extends")]
    rows = [
        {"key": k, "a": _value(flat_a, k), "b": _value(flat_b, k)}
        for k in keys
        if _value(flat_a, k) != _value(flat_b, k)
    ]
    if json_output:
        output.emit({"a": a, "b": b, "differences": rows})
        return
    from rich.markup import escape
    from rich.table import Table
    from rich.text import Text

    con = output.console()
    if not rows:
        con.print(Text(f"{a} and {b} are alike."))
        return
    table = Table("key", escape(a), escape(b), box=None, pad_edge=False)
    for row in rows:
        table.add_row(Text(row["key"]), Text(_shown(row["a"])), Text(_shown(row["b"])))
    con.print(table)


def _flat(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in data.items():
        if isinstance(value, Mapping) and not prefix.startswith("levers."):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _value(flat: Mapping[str, Any], key: str) -> Any:
    """A lever that a profile does not name is decided by the planner."""
    return flat.get(key, "auto" if key.startswith("levers.") else None)


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
