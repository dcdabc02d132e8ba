"""Which family a checkpoint belongs to, and what is published about it.

Two tables. `families.json` has a row for each family: Hugging Face class names or model types, a pattern on
the model's name where one class holds several kinds, parsers by engine, lowest versions, multi-token
prediction. `recipes.json` has one line for each model that the vLLM project published launch facts for. A
row is found by class (or type) and name, the first that fits; a recipe by its exact model name. A model of
neither has no family: nothing is guessed from a likeness.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from orchestrator.machine.machine import Gpu
from orchestrator.model_card.card import ModelCard
from orchestrator.model_families import arguments, variables
from orchestrator.model_families.arguments import Arguments
from orchestrator.model_families.versions import at_least, highest, parsed

NO_CODE = "this checkpoint is loaded without code of its own, so there is nothing to consent to"
"""Why consent that a recipe gives by habit is left out."""

_HERE = Path(__file__).parent
_OVERRIDES: Mapping[str, tuple[str, ...]] = {
    "hopper": ("nvidia", "hopper"),
    "blackwell": ("nvidia", "blackwell"),
    "amd": ("amd",),
    "cpu": ("cpu",),
}


@dataclass(frozen=True, slots=True)
class Draft:
    """A trained way to guess tokens that belongs to this very model.

    `model` is a hub id, None where the draft layers are in the checkpoint itself; `give_target` is True where
    the engine must be given the checkpoint's own path as the draft. `tokens` is the published number of
    guesses, None where none is. `flags` were published together with it.
    """

    method: str
    model: str | None
    tokens: int | None
    source: str
    give_target: bool = False
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Requirements:
    """What a model needs beside the usual. `levers` must hold, `suggested` are the publisher's own tuning;
    `max_model_len` is the longest context that was published, a ceiling and no aim.

    `flags` is argv for what no lever says; `why` has a sentence for each lever, flag or variable. `left_out`
    are published flags and variables that a plan does not take over, each with the reason.
    """

    levers: Mapping[str, Any] = field(default_factory=dict)
    suggested: Mapping[str, Any] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    trust_remote_code: bool = False
    max_model_len: int | None = None
    why: Mapping[str, str] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Verified:
    """What a recipe was run on: hardware names, layouts (`single_node_tp`, `_tep` tensor and expert, `_dep`
    data and expert, ...), tensor size where it is fixed (by hardware name), least memory in GB by variant."""

    hardware: tuple[str, ...]
    layouts: tuple[str, ...]
    tensor: int | Mapping[str, int] | None
    memory_gb: Mapping[str, int]

    def tensor_on(self, hardware: str) -> int | None:
        """The published tensor size on a hardware name, None where it is free."""
        return self.tensor.get(hardware) if isinstance(self.tensor, Mapping) else self.tensor


@dataclass(frozen=True, slots=True)
class Family:
    """A family as one checkpoint meets it: the family's `row`, the model's `recipe`; either may be empty.

    `since` is the row's lowest version by engine, for the checkpoint's name; `remote_code`: the checkpoint
    holds code that transformers would run.
    """

    name: str
    row: Mapping[str, Any]
    recipe: Mapping[str, Any]
    variant: Mapping[str, Any]
    since: Mapping[str, str] = field(default_factory=dict)
    remote_code: bool = False

    @property
    def source(self) -> str:
        """Where these facts come from."""
        named = [_table()["sources"][key] for key in self.row.get("source", ())]
        return "; ".join([*named, *([_recipes()["source"]] if self.recipe else [])])

    def notes_for(self, kind: str, tools: bool) -> tuple[str, ...]:
        """What is to be known of the family on an engine; `tools`: where clients call tools."""
        words = {kind, "tools"} if tools else {kind}
        return tuple(n["say"] for n in self.row.get("notes", ()) if set(n.get("for", ())) <= words)

    def tool_call_parser(self, kind: str, version: str) -> str | None:
        """The name that this engine version knows the family's tool calls by; None where it knows none."""
        return self._parser("tools", "tool_call_parser", kind, version)

    def reasoning_parser(self, kind: str, version: str) -> str | None:
        """As `tool_call_parser`, for reasoning; None also where the family does not reason."""
        return self._parser("reasoning", "reasoning_parser", kind, version)

    def newer_parser(self, lever: str, kind: str, version: str) -> tuple[str, str] | None:
        """The name of the family's own parser and its first version, where this version is older."""
        known = self.row.get("tools" if lever == "tool_call_parser" else "reasoning", {}).get(kind)
        if known is None or isinstance(known, str) or at_least(version, known[0][1]):
            return None
        return str(known[0][0]), str(known[0][1])

    def min_version(self, kind: str) -> str | None:
        """The lowest version of an engine that is known to run it ("nightly": newer than the releases of
        August 2026), None where nothing is published. An older one may do: that is for a warning."""
        known = [self.since[kind]] if kind in self.since else []
        if kind == "vllm" and self.recipe:
            known.append(self.recipe["since"])
        return highest(known)

    def requirements(
        self, kind: str, version: str, generation: str, *, layout: str | None = None, tools: bool = False
    ) -> Requirements:
        """What the model needs on an engine and a GPU generation (see `gpu_generation`).

        `layout` is a recipe's name of one ("single_node_tep"), `tools` adds what tool calls need beside the
        parser. What is published is vLLM's: another engine has only the consent to remote code.
        """
        trust = self.remote_code and "--trust-remote-code" in self.recipe.get("args", ())
        if kind != "vllm" or not self.recipe:
            return Requirements(trust_remote_code=trust)
        parts: list[tuple[Mapping[str, Any], str]] = [(self.recipe, "on any device")]
        parts += self._on(self.recipe, generation)
        parts.append((self.variant, f"for {self.variant.get('precision', 'this')} weights"))
        if layout is not None:
            extra = self.recipe.get("layout_args", {}).get(layout, {})
            parts += [(extra, f"in layout {layout}"), *self._on(extra, generation)]
        if tools:
            parts.append(({"args": self.recipe.get("tools", ())}, "for tool calls"))
        every = Arguments()
        why: dict[str, str] = {}
        env: dict[str, str] = {}
        for part, when in parts:
            read = arguments.read(part.get("args", ()))
            set_ = part.get("env", {})
            reason = f"published for {self.recipe['model']} {when}"
            why |= dict.fromkeys((*read.levers, *read.suggested, *_names(read.flags), *set_), reason)
            every, env = arguments.merged(every, read), {**env, **set_}
        absent = [f for f, since in arguments.FLAG_SINCE.items() if not at_least(version, since)]
        every = arguments.with_one_backend(arguments.without(every, absent))
        env, left_out = variables.fitting(env, self.variant.get("precision"))
        for flag in every.left_out:
            reason = f"{kind} {version} has no such flag" if flag in absent else arguments.OTHER_BACKEND
            left_out[flag] = arguments.LEFT_OUT.get(flag, reason)
        if every.levers.get("trust_remote_code") and not self.remote_code:
            left_out["--trust-remote-code"] = NO_CODE
        levers = {k: v for k, v in every.levers.items() if k not in _NOT_NEEDS}
        return Requirements(
            levers=levers,
            suggested=every.suggested,
            flags=every.flags,
            env=env,
            max_model_len=every.levers.get("max_model_len"),
            trust_remote_code=self.remote_code and bool(every.levers.get("trust_remote_code")),
            why={k: v for k, v in why.items() if k not in _PARSERS},
            left_out=left_out,
        )

    def drafts(self, kind: str, version: str) -> tuple[Draft, ...]:
        """Trained drafts that this engine version can use, the published ones first."""
        return (*self._published(kind, version), *self._in_checkpoint(kind, version))

    @property
    def verified(self) -> Verified | None:
        """What the model's recipe was run on, None without one."""
        if not self.recipe:
            return None
        memory = {k: v["memory_gb"] for k, v in self.recipe["variants"].items() if "memory_gb" in v}
        r = self.recipe
        return Verified(tuple(r["hardware"]), tuple(r["layouts"]), r.get("tensor"), memory)

    def _parser(self, key: str, lever: str, kind: str, version: str) -> str | None:
        known = self.row.get(key, {}).get(kind)
        if known is None and kind == "vllm" and not self.row.get(key):
            args = (*self.recipe.get("args", ()), *self.recipe.get(key, ()))
            name = arguments.read(args).levers.get(lever)
            # a model that only a nightly runs may have a parser that every release has
            known = [[name, self.recipe["since"]]] if name and parsed(self.recipe["since"]) else name
        if known is None or isinstance(known, str):
            return known
        return next((str(name) for name, since in known if at_least(version, since)), None)

    def _on(self, part: Mapping[str, Any], generation: str) -> list[tuple[Mapping[str, Any], str]]:
        there = part.get("on", {})
        return [(there[n], f"on {n}") for n in _OVERRIDES.get(generation, (generation,)) if n in there]

    def _published(self, kind: str, version: str) -> list[Draft]:
        args = self.recipe.get("speculation", ())
        config = arguments.draft(args)
        if kind != "vllm" or not config or not at_least(version, self.recipe["since"]):
            return []
        # an assistant without a method is one of multi-token prediction (vLLM reads it from its model type)
        method, model = config.get("method", "mtp"), config.get("model")
        tokens = config.get("num_speculative_tokens")
        return [Draft(method, model, tokens, _recipes()["source"], flags=arguments.beside_draft(args))]

    def _in_checkpoint(self, kind: str, version: str) -> list[Draft]:
        how = self.row.get("mtp", {})
        if kind not in how or any(d.method == "mtp" for d in self._published(kind, version)):
            return []
        tokens, sources = how.get("tokens"), _table()["sources"]
        if kind == "sglang":
            return [Draft("mtp", None, None, sources["sglang-mtp"], give_target=how[kind] == "self")]
        return [Draft("mtp", None, tokens, sources["vllm-mtp"])] if at_least(version, how[kind]) else []


_NOT_NEEDS = frozenset({"trust_remote_code", "max_model_len", "tool_call_parser", "reasoning_parser"})
"""Have methods or fields of their own."""
_PARSERS = frozenset({"tool_call_parser", "reasoning_parser"})


def family(card: ModelCard) -> Family | None:
    """The family of a checkpoint, by its class names and its name; None where it is in no table."""
    names = _names_of(card)
    recipe, variant = _recipe_of(names)
    row = next((r for r in _table()["families"] if _fits(r, card, names)), None)
    if row is None and not recipe:
        return None
    name = row["family"] if row else _base(recipe["model"])
    return Family(name, row or {}, recipe, variant, _since(row or {}, names), card.needs_remote_code)


def gpu_generation(gpu: Gpu | None) -> str:
    """ "cpu" without a device, "amd", or NVIDIA's by compute capability ("unknown" without one).

    Source: https://developer.nvidia.com/cuda-gpus
    """
    if gpu is None:
        return "cpu"
    if gpu.vendor == "amd":
        return "amd"
    major, _, minor = (gpu.compute_capability or "").partition(".")
    if major == "8":
        return "ada" if minor == "9" else "ampere"
    if major == "7":
        return "turing" if minor == "5" else "volta"
    return {"9": "hopper", "10": "blackwell", "11": "blackwell", "12": "blackwell"}.get(major, "unknown")


def _fits(row: Mapping[str, Any], card: ModelCard, names: Sequence[str]) -> bool:
    classes = {*card.architectures, card.architecture}
    known = classes & set(row.get("architectures", ())) or card.model_type in row.get("model_types", ())
    if not known:
        return False
    wanted, barred = row.get("name"), row.get("not_name")
    if barred and any(re.search(barred, n) for n in names):
        return False
    return wanted is None or any(re.search(wanted, n) for n in names)


def _since(row: Mapping[str, Any], names: Sequence[str]) -> dict[str, str]:
    """A row's lowest versions: one for all of it, or the first whose pattern is in the name."""
    out = {}
    for kind, told in row.get("since", {}).items():
        pairs = [("", told)] if isinstance(told, str) else told
        out[kind] = next(v for pattern, v in pairs if any(re.search(pattern, n) for n in (*names, "")))
    return out


def _recipe_of(names: Sequence[str]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """The recipe that names the model, and the variant of it, both empty where there is none."""
    for name in names:
        for recipe, variant in _by_name().get(name, ()):
            return recipe, variant
    return {}, {}


def _names_of(card: ModelCard) -> list[str]:
    """The last part of each name that a checkpoint goes by, in lower case."""
    return list(dict.fromkeys(_base(n) for n in (card.name, card.source, card.path) if n))


def _base(name: str) -> str:
    return name.rstrip("/").rsplit("/", 1)[-1].lower()


def _names(flags: Sequence[str]) -> list[str]:
    return [f for f in flags if f.startswith("--")]


@lru_cache(maxsize=1)
def _table() -> dict[str, Any]:
    data: dict[str, Any] = json.loads((_HERE / "families.json").read_text("utf-8"))
    return data


@lru_cache(maxsize=1)
def _recipes() -> dict[str, Any]:
    data: dict[str, Any] = json.loads((_HERE / "recipes.json").read_text("utf-8"))
    return data


@lru_cache(maxsize=1)
def _by_name() -> dict[str, list[tuple[dict[str, Any], dict[str, Any]]]]:
    """Recipes with the variant that a name stands for; a model's own name is the variant without one."""
    out: dict[str, list[tuple[dict[str, Any], dict[str, Any]]]] = {}
    for recipe in _recipes()["recipes"]:
        own = _base(recipe["model"])
        unnamed: dict[str, Any] = next((v for v in recipe["variants"].values() if "model" not in v), {})
        for name, variant in [
            (own, unnamed),
            *((_base(v.get("model", "")), v) for v in recipe["variants"].values()),
        ]:
            if name:
                out.setdefault(name, []).append((recipe, variant))
    # a model's own recipe comes before one that names it as a variant
    return {n: sorted(found, key=lambda x: _base(x[0]["model"]) != n) for n, found in out.items()}
