"""`llmserve plan`: what would be launched for a goal, and why. Starts nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli import output
from orchestrator.cli import plan_options as options

if TYPE_CHECKING:
    from orchestrator.plan import Plan
    from orchestrator.planning.request import PlanInputs


def register(app: typer.Typer) -> None:
    """Add `plan`."""
    app.command(epilog="Example: llmserve plan --goal agent --set max_num_seqs=2 --explain")(plan)


def plan(
    goal: options.Goal = None,
    profile: options.Profile = None,
    model: options.Model = None,
    engine: options.Engine = None,
    machine: options.MachineFile = None,
    set_: options.Set = [],  # noqa: B006
    name: options.Name = None,
    host: options.Host = "127.0.0.1",
    port: options.Port = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Every lever with its rule and what was rejected.")
    ] = False,
    diff: Annotated[
        str | None,
        typer.Option(
            "--diff",
            metavar="stock|PROFILE",
            help="Only what differs from the engine's own defaults, or from another profile's plan.",
            autocompletion=options.complete_diff,
            show_default=False,
        ),
    ] = None,
    json_output: output.Json = False,
) -> None:
    """Decide every lever for a goal, model, engine and machine; show it with its reasons."""
    from orchestrator.errors import usage

    if diff is not None and explain:
        raise usage(
            "not_both",
            "--diff and --explain do not go together: --diff gives the reason of all that it shows",
            "leave one out",
        )
    from orchestrator.cli import plan_view
    from orchestrator.cli.fetching import fetching
    from orchestrator.errors import Exit
    from orchestrator.planning.inputs import gather
    from orchestrator.planning.planner import make_plan

    with fetching() as progress:
        inputs = gather(
            goal=goal,
            profile=profile,
            model=model,
            engine=engine,
            machine_file=machine,
            sets=set_,
            name=name,
            host=host,
            port=port,
            progress=progress,
        )
    made = make_plan(inputs)
    if diff is not None and not made.violations:
        _differences(inputs, made, diff, json_output)
        return
    if json_output:
        output.emit(plan_view.refused_json(made) if made.violations else made.to_json())
        raise typer.Exit(Exit.REFUSED if made.violations else Exit.DONE)
    con = output.console()
    if explain:
        plan_view.explain(con, made)
    elif not made.violations:
        plan_view.show(con, made)
    if made.violations:
        raise plan_view.refusal(made, explained=explain)
    launch, lacks = _same("launch"), _lacks(made, "here" if machine is None else "on that machine")
    if lacks:
        con.print(f"\nto launch it: {lacks}", style="dim", markup=False)
    elif machine is None:
        con.print(f"\nnext: {launch}", style="dim", markup=False, soft_wrap=True)
    else:
        what = f"this plan is for {made.machine['name']}; launch plans anew, for the machine here:"
        con.print(f"\nnext: {what}\n      {launch}", style="dim", markup=False, soft_wrap=True)
    if not explain:
        lead = "next: " if lacks else "      "
        con.print(f"{lead}{_same('plan')} --explain", style="dim", markup=False, soft_wrap=True)


def _lacks(made: Plan, where: str) -> str:
    """What a launch would need that is not there, "" for nothing; `where` is the machine, in words."""
    needs = []
    if made.model["format"] == "config":
        needs.append("the model's weights, as this is a configuration alone")
    elif made.model["path"] is None:
        needs.append(f"the model: llmserve models pull {made.model['source']}")
    if made.engine.captured:
        version = made.engine.name.partition("@")[2]
        at = f" --version {version}" if version else ""
        kind = made.engine.kind
        needs.append(f"{kind} {where}: llmserve engines install {kind}{at}")
    return "; ".join(needs)


def _differences(inputs: PlanInputs, made: Plan, other: str, json_output: bool) -> None:
    from dataclasses import replace

    from orchestrator import profiles
    from orchestrator.cli import plan_diff, plan_view
    from orchestrator.planning.planner import make_plan

    if other == plan_diff.STOCK:
        gpu = inputs.machine.gpus[0] if inputs.machine.gpus else None
        stock = {n: inputs.engine.stock(n, inputs.installation, gpu=gpu) for n in made.levers}
        rows, what = plan_diff.against_stock(made, stock), f"{made.engine.kind} alone"
    else:
        theirs = make_plan(replace(inputs, resolved=profiles.resolve(profile=other)))
        if theirs.violations:
            raise plan_view.refusal(theirs)
        rows, what = plan_diff.against_plan(made, theirs), other
    if json_output:
        output.emit({"goal": made.goal, "against": other, "diff": rows})
        return
    plan_diff.show(output.console(), rows, what)


def _same(command: str) -> str:
    """The command line that was typed, for another command; what launch does not take is left out."""
    import shlex
    import sys

    words: list[str] = []
    rest = iter(sys.argv[1:])
    for word in rest:
        if word == "--machine" and command == "launch":
            next(rest, None)
        elif not (word in ("plan", "--explain", "--json") or word.startswith("--machine=")):
            words.append(shlex.quote(word))
    return " ".join(["llmserve", command, *words])
