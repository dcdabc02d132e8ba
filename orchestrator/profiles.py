"""Profiles: loading, inheritance, and what a command lays over them.

Precedence: `--set`, then named options, then the file, then what it `extends`; engines' own defaults last.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from orchestrator import lever_values, lever_words, profile_files, strict_yaml
from orchestrator.errors import LlmserveError, usage
from orchestrator.goals import GOALS
from orchestrator.levers import LEVERS
from orchestrator.problems import Loc, Problem, dotted, error, from_validation, nearest, shown, unknown_key
from orchestrator.profile_schema import EngineArgs, Profile, Slo, Supervision, Workload

__all__ = ["EngineArgs", "Profile", "Resolved", "Slo", "Supervision", "Workload", "load", "resolve"]

_CODE = "bad_profile"
_HELP = "`llmserve profiles schema` lists every key"
_HELP_SET = "`llmserve levers` lists what can be set"
_LONGEST_CHAIN = 16

# mappings that are laid over one another key by key; anything else is replaced whole
_SECTIONS: frozenset[Loc] = frozenset(
    {
        ("workload",),
        ("slo",),
        ("levers",),
        ("engine_args",),
        ("env",),
        ("supervision",),
        ("supervision", "restart"),
        ("supervision", "liveness"),
    }
)
_BY_SET = ("model", "engine", "lossless")
_NOT_BY_SET = {
    "goal": "use --goal",
    "profile": "use --profile",
    "extends": "use --profile with a file that extends",
}


@dataclass(frozen=True, slots=True)
class _Layer:
    """Leaves of one source; `builtin` where it came with llmserve; `place` says where a loc stands."""

    leaves: dict[Loc, Any]
    origins: dict[Loc, str]
    builtin: bool = False


@dataclass(frozen=True, slots=True)
class Resolved:
    """A profile after everything was laid over it.

    `origin` says for each key that somebody wrote ("levers.max_num_seqs") who did: "--set", "--model", or
    "profile NAME (file:line)". A key not in it has llmserve's default. `user` are the keys that do not come
    from a built-in profile.
    """

    profile: Profile
    origin: dict[str, str]
    user: frozenset[str] = field(default=frozenset())

    def user_set(self, lever: str) -> bool:
        """Whether the user chose this lever's value; such a value is never changed silently.

        False where the value is "auto" or comes from a built-in profile.
        """
        value = self.profile.levers.get(lever, lever_values.AUTO)
        return value != lever_values.AUTO and f"levers.{lever}" in self.user


def load(name_or_path: str) -> Profile:
    """The profile of a name (the user's folder first) or a file, with what it `extends` merged in.

    Workload, slo, levers, env and supervision are merged key by key; the lists of engine_args are joined,
    the base's first. Raises LlmserveError: exit 5 where there is none, exit 2 with every problem of the
    files as violations.
    """
    return resolve(profile=name_or_path).profile


def resolve(
    *,
    profile: str | None = None,
    goal: str | None = None,
    sets: Sequence[str] = (),
    options: Mapping[str, Any] | None = None,
) -> Resolved:
    """The profile that a command line means.

    `profile` is a name or file; without one the built-in profile of `goal` is taken. `sets` are
    "LEVER=VALUE" or "section.key=VALUE" with YAML values. `options` are named options that were given, by
    key ("model", "engine", "levers.max_model_len"); None means not given.
    Raises LlmserveError as `load`, and exit 2 where neither or a contradiction is given.
    """
    _check_goal(profile, goal)
    chain = (
        _chain(profile) if profile is not None else _follow([profile_files.builtin_dir() / f"{goal}.yaml"])
    )
    given, wrong = _set_layer(sets)
    resolved = _validated([*chain, _option_layer(options or {}), given], wrong)
    if goal is not None and resolved.profile.goal != goal:
        raise usage(
            "goal_conflict",
            f"--goal {goal} and --profile {profile} contradict: that profile is for {resolved.profile.goal}",
            f"leave out --goal, or leave out --profile to take the built-in one for {goal}",
        )
    return resolved


def _check_goal(profile: str | None, goal: str | None) -> None:
    names = ", ".join(GOALS)
    if goal is not None and goal not in GOALS:
        near = nearest(goal, GOALS)
        message = f"there is no goal `{shown(goal)}`; goals are {names}"
        raise usage("no_such_goal", message, f"did you mean `{near}`?" if near else "see `llmserve goals`")
    if goal is None and profile is None:
        raise usage(
            "no_goal",
            f"neither a goal nor a profile was given; goals are {names}",
            "add --goal, for example `--goal edge`; `llmserve goals` explains them",
        )


def _chain(name_or_path: str) -> list[_Layer]:
    return _follow(profile_files.candidates(name_or_path))


def _follow(first: Sequence[Path]) -> list[_Layer]:
    """The files from the last base to the profile itself. All problems of all of them in one error."""
    layers: list[_Layer] = []
    visited: list[Path] = []
    found: list[tuple[str, Problem]] = []
    options, asked_by = list(first), ""
    while True:
        # a user's profile may extend the built-in one that it hides, so what was visited is passed over
        path = next((p for p in options if p.resolve() not in visited), None)
        if path is None or len(visited) == _LONGEST_CHAIN:
            found.append((asked_by, _endless(visited, path)))
            break
        visited.append(path.resolve())
        document = _read(path, asked_by)
        found += [(document.place(p.loc), p) for p in _problems(document, path)]
        layers.insert(0, _layer(document, path))
        base = document.data.get("extends")
        if not isinstance(base, str) or not base:
            break
        asked_by = document.place(("extends",))
        options = _bases(base, path, asked_by)
    if found:
        raise error(_CODE, str(first[0]), found, _HELP)
    return layers


def _read(path: Path, asked_by: str) -> strict_yaml.Document:
    try:
        return strict_yaml.read(path, _CODE)
    except LlmserveError as e:
        if e.code != "no_such_file":
            raise
        if asked_by:
            e.remedy = f"{asked_by} extends it: correct the name there"
        else:
            e.code, e.remedy = "no_such_profile", "`llmserve profiles list` shows the names"
        raise


def _bases(base: str, path: Path, asked_by: str) -> list[Path]:
    try:
        return profile_files.candidates(base, beside=path.parent)
    except LlmserveError as e:
        raise LlmserveError(e.code, f"{asked_by}: {e.message}", e.remedy, exit_code=e.exit_code) from None


def _endless(visited: Sequence[Path], path: Path | None) -> Problem:
    if path is None:
        names = " → ".join(p.stem for p in visited)
        return Problem(
            ("extends",), "extends_cycle", f"profiles extend each other in a circle: {names}", "break it here"
        )
    message = f"more than {_LONGEST_CHAIN} profiles extend one another"
    return Problem(("extends",), "extends_too_long", message, "merge some of them")


def _problems(document: strict_yaml.Document, path: Path) -> list[Problem]:
    """What is wrong in one file, before it is merged: keys that a base may hold are not missed."""
    problems: list[Problem] = []
    try:
        Profile.model_validate(document.data)
    except ValidationError as e:
        problems = from_validation(e, Profile)
    if "extends" in document.data:
        problems = [p for p in problems if p.code != "across_keys" and (p.loc, p.code) != _NO_GOAL]
    name = document.data.get("profile")
    if path.resolve().parent == profile_files.user_dir().resolve() and name != path.stem:
        message = f"the file is called {path.name}, so the profile's name is `{path.stem}`"
        if isinstance(name, str):
            problems.append(Problem(("profile",), "name_differs", message, f"write `profile: {path.stem}`"))
    return problems


_NO_GOAL = (("goal",), "missing_key")


def _layer(document: strict_yaml.Document, path: Path) -> _Layer:
    leaves = dict(_leaves(document.data))
    name = document.data.get("profile", path.stem)
    origins = {loc: f"profile {name} ({document.place(loc)})" for loc in leaves}
    return _Layer(leaves, origins, profile_files.is_builtin(path))


def _leaves(data: Mapping[str, Any], at: Loc = ()) -> Iterator[tuple[Loc, Any]]:
    for key, value in data.items():
        loc = (*at, key)
        if loc in _SECTIONS and isinstance(value, Mapping):
            yield from _leaves(value, loc)
        else:
            yield loc, value


def _option_layer(options: Mapping[str, Any]) -> _Layer:
    leaves: dict[Loc, Any] = {tuple(k.split(".")): v for k, v in options.items() if v is not None}
    return _Layer(leaves, {loc: f"--{str(loc[-1]).replace('_', '-')}" for loc in leaves})


def _set_layer(sets: Sequence[str]) -> tuple[_Layer, list[Problem]]:
    """What can be read of the settings, and what cannot, which is told together with wrong values."""
    leaves: dict[Loc, Any] = {}
    found: list[Problem] = []
    for text in sets:
        key, equals, raw = text.partition("=")
        key = key.strip()
        loc, problem = _target(key)
        if not equals:
            problem = Problem((), "bad_set", f"`{shown(text)}` has no `=`", "write --set LEVER=VALUE")
        if problem is not None:
            found.append(problem)
        elif loc[0] == "env" and len(loc) > 1:
            leaves[loc] = raw
        else:
            try:
                value = strict_yaml.value(raw, "bad_set", "--set")
            except LlmserveError as e:
                found.append(Problem(loc, e.code, e.message.removeprefix("--set: "), e.remedy))
                continue
            if loc in _SECTIONS and not isinstance(value, Mapping):
                message = f"{shown(value)} is not a mapping of keys to values"
                found.append(Problem(loc, "bad_set", message, f"write --set {key}.KEY=VALUE"))
            else:
                leaves |= _leaves(value, loc) if loc in _SECTIONS else {loc: value}
    return _Layer(leaves, dict.fromkeys(leaves, "--set")), found


def _target(key: str) -> tuple[Loc, Problem | None]:
    """Where a `--set` key points: a bare name is a lever or one of a few keys, a dotted one a section's."""
    parts: Loc = tuple(key.split("."))
    if parts[0] == "env" and len(parts) > 1:
        return ("env", key.removeprefix("env.")), None
    if len(parts) == 1:
        if key in LEVERS:
            return ("levers", key), None
        if key in _BY_SET or parts in _SECTIONS:
            return parts, None
        if key in _NOT_BY_SET:
            return parts, Problem((), "bad_set", f"`{key}` is not set this way", _NOT_BY_SET[key])
        sections = [str(s[0]) for s in _SECTIONS]
        unknown = unknown_key(parts, (*LEVERS, *_BY_SET, *sections), "lever")
        remedy = f"{unknown.remedy} " if unknown.remedy else ""
        return parts, replace(unknown, remedy=f"{remedy}`llmserve levers` lists them")
    if parts in _SECTIONS or parts[:-1] in _SECTIONS:
        return parts, None
    if parts[:2] in _SECTIONS or parts[:1] in _SECTIONS:
        whole = dotted(parts[: 3 if parts[:2] in _SECTIONS else 2])
        return parts, Problem(parts, "bad_set", f"`{whole}` is set as a whole", f"write --set {whole}=VALUE")
    if parts[0] in LEVERS:
        whole = f"`{parts[0]}` is set as a whole"
        return parts, Problem((), "bad_set", whole, f"write --set {parts[0]}='{{{parts[1]}: ...}}'")
    return parts, unknown_key(parts[:1], [str(s[0]) for s in _SECTIONS], "section")


def _validated(layers: Sequence[_Layer], wrong: Sequence[Problem] = ()) -> Resolved:
    """The layers over one another; `wrong` are settings that could not be laid over them."""
    leaves: dict[Loc, Any] = {}
    origins: dict[Loc, str] = {}
    user: set[Loc] = set()
    for layer in layers:
        for loc, value in layer.leaves.items():
            joined = loc[0] == "engine_args" and layer.origins[loc] != "--set" and loc in leaves
            leaves[loc] = [*leaves[loc], *value] if joined else value
            origins[loc] = layer.origins[loc]
            user.discard(loc)
            if not layer.builtin:
                user.add(loc)
    found = [("--set", p) for p in wrong]
    try:
        profile = Profile.model_validate(_nested(leaves))
    except ValidationError as e:
        problems = [(_origin(origins, p.loc), p) for p in from_validation(e, Profile)]
        found += [(place, _explained(p) if place == "--set" else p) for place, p in problems]
    if found:
        code = "bad_set" if any(place == "--set" for place, _ in found) else _CODE
        places = ", ".join(dict.fromkeys(place for place, _ in found))
        raise error(code, places, found, _HELP_SET if code == "bad_set" else _HELP)
    return Resolved(profile, {dotted(k): v for k, v in origins.items()}, frozenset(dotted(k) for k in user))


def _explained(p: Problem) -> Problem:
    """A problem of a lever that was set, with what it may be and an example to type."""
    if len(p.loc) < 2 or p.loc[0] != "levers" or p.loc[1] not in LEVERS:
        return p
    lever = LEVERS[str(p.loc[1])]
    remedy = (
        f"{lever_words.accepted(lever)}; for example --set {lever_words.example(lever)}; "
        f"`llmserve levers {lever.name}` says more"
    )
    return replace(p, remedy=f"{p.remedy}; {remedy}" if p.remedy else remedy)


def _origin(origins: Mapping[Loc, str], loc: Loc) -> str:
    """Who wrote what stands at a loc: the leaf it is in, or the last written leaf below it."""
    above = [loc[:n] for n in range(len(loc), 0, -1)]
    below = [o for o in origins if o[: len(loc)] == loc]
    return next((origins[a] for a in above if a in origins), origins[below[-1]] if below else "profile")


def _nested(leaves: Mapping[Loc, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for loc, value in leaves.items():
        inner = out
        for part in loc[:-1]:
            inner = inner.setdefault(str(part), {})
        inner[str(loc[-1])] = value
    return out
