"""The profile: goal, workload, objective, levers, supervision. Frozen, strict, no unknown key.

Defaults are the contract's. A limit's upper end only keeps absurd numbers out.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    WithJsonSchema,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from orchestrator import lever_values
from orchestrator.problems import Problem, Problems, shown

Goal = Literal["throughput", "latency", "agent", "edge"]
EngineKind = Literal["vllm", "sglang", "llamacpp"]

NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"
"""The form of a name that may become a file's, a folder's or a deployment's."""

_ENGINE = NAME[:-1] + r"(@[0-9][0-9A-Za-z.+-]{0,30})?$"
_VARIABLE = r"^[A-Za-z_][A-Za-z0-9_]*$"
_WEEK_S = 604_800

_Tokens = Annotated[int, Field(ge=1, le=100_000_000)]
_Count = Annotated[int, Field(ge=1, le=1_000_000)]
_Ms = Annotated[float, Field(gt=0, le=86_400_000)]
_Seconds = Annotated[float, Field(gt=0, le=_WEEK_S)]
_Text = Annotated[str, Field(min_length=1, max_length=4096)]


def _engine(value: Any) -> Any:
    """An engine's name said in words where it is none."""
    if not isinstance(value, str) or re.match(_ENGINE, value):
        return value
    name, at, version = value.partition("@")
    if at and re.match(NAME, name):
        message = f"{shown(value)}: {shown(version) if version else 'nothing'} after @ is no version"
        remedy = "a version begins with a number, as vllm@0.33.0 does; or leave @ out for the newest known"
    else:
        message = f"{shown(value)} is no engine's name: it is made of letters, digits, dots, - and _"
        remedy = "`llmserve engines list` shows those that are here"
    raise Problems([Problem((), "bad_value", message, remedy)])


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


class Workload(_Strict):
    """What is expected to be asked. The planner sizes slots, context and steps for it."""

    input_tokens: _Tokens = 1024
    """Prompt of a typical request, the shared beginning included."""
    output_tokens: _Tokens = 256
    """Answer of a typical request."""
    concurrency: _Count = 8
    """Requests in flight at once."""
    request_rate: Annotated[float, Field(gt=0, le=1_000_000)] | None = None
    """Requests per second that arrive; null: as many as `concurrency` keeps in flight."""
    turns: _Count = 1
    """Requests of one conversation, each with the earlier ones in its prompt."""
    shared_prefix_tokens: Annotated[int, Field(ge=0, le=100_000_000)] = 0
    """Beginning that all prompts share (system prompt, tools)."""

    @model_validator(mode="after")
    def _prefix_is_part_of_the_prompt(self) -> Workload:
        if self.shared_prefix_tokens > self.input_tokens:
            raise PydanticCustomError(
                "across_keys",
                "shared_prefix_tokens {shared} is more than input_tokens {prompt}, which include it",
                {
                    "shared": self.shared_prefix_tokens,
                    "prompt": self.input_tokens,
                    "remedy": "raise input_tokens or lower shared_prefix_tokens",
                },
            )
        return self


class Slo(_Strict):
    """The objective that goodput counts: a request is good that keeps every limit. null: not asked."""

    ttft_ms: _Ms | None = None
    """Time to the first token, in milliseconds."""
    tpot_ms: _Ms | None = None
    """Time per output token after the first, in milliseconds."""
    itl_p99_ms: _Ms | None = None
    """The 99th percentile of the gaps between tokens, in milliseconds."""
    e2e_ms: _Ms | None = None
    """Time to the last token, in milliseconds."""


class EngineArgs(_Strict):
    """Raw extras by engine kind; refused where the plan owns the flag. `args["vllm"]` reads one kind's."""

    vllm: list[str] = []
    """Arguments added to `vllm serve`."""
    sglang: list[str] = []
    """Arguments added to SGLang's server."""
    llamacpp: list[str] = []
    """Arguments added to llama-server."""

    def __getitem__(self, kind: str) -> list[str]:
        args: list[str] = getattr(self, kind)
        return args


class Restart(_Strict):
    """How failures that may pass are retried: `backoff_s`, times `factor` each time, at most `cap_s`."""

    backoff_s: _Seconds = 1.0
    """Seconds before the first restart."""
    factor: Annotated[float, Field(ge=1, le=100)] = 2.0
    """What each further wait is multiplied by."""
    cap_s: _Seconds = 60.0
    """Longest wait, in seconds."""
    budget: Annotated[int, Field(ge=0, le=10_000)] = 5
    """Restarts allowed within `window_s`; one more is a crash loop."""
    window_s: _Seconds = 600.0
    """Seconds in which restarts are counted."""
    refill_s: _Seconds = 600.0
    """Stable seconds after which the budget is full again."""


class Liveness(_Strict):
    """When a server that runs counts as hung: tokens that do not move, and a probe that gets none."""

    interval_s: _Seconds = 5.0
    """Seconds between two looks."""
    idle_s: _Seconds = 10.0
    """Seconds without progress before the probe is sent."""
    deadline_s: _Seconds = 15.0
    """Seconds the probe may take on an idle server."""
    deadline_loaded_s: _Seconds = 120.0
    """Seconds the probe may take under load; the prefill estimate is added."""
    strikes: Annotated[int, Field(ge=1, le=1000)] = 2
    """Failed probes in a row before the server is replaced."""


class Supervision(_Strict):
    """How the deployment is kept alive, and how it is stopped."""

    restart: Restart = Restart()
    liveness: Liveness = Liveness()
    drain_s: Annotated[float, Field(ge=0, le=_WEEK_S)] = 30.0
    """Seconds that running requests get to finish at a stop."""
    start_cap_s: _Seconds = 3600.0
    """Seconds after which a start that still makes progress is given up."""


class Profile(_Strict):
    """One profile, whole: after `extends` was followed and options were laid over it.

    `levers` holds only what was named, "auto" included: a lever that is absent is "auto" too. Bytes are
    integers there, whatever unit they were written in.
    """

    profile: Annotated[str, Field(pattern=NAME)]
    """The profile's name: the file's, without .yaml."""
    extends: _Text | None = None
    """Another profile's name or file; what is not said here is taken from there."""
    goal: Goal
    """What the server is for: see `llmserve goals`."""
    model: _Text | None = None
    """Model to serve where no --model is given: a file, a folder, a hub id, or a known name."""
    engine: Annotated[str, Field(pattern=_ENGINE), BeforeValidator(_engine)] = "auto"
    """auto, a name from engines.yaml, or to plan for what is not here vllm, sglang, vllm@0.27.1."""
    workload: Workload = Workload()
    slo: Slo = Slo()
    levers: dict[str, Any] = {}
    """What can be set, by neutral name: a value, or auto."""
    engine_args: EngineArgs = EngineArgs()
    env: Annotated[
        dict[str, str],
        WithJsonSchema(
            {
                "type": "object",
                "additionalProperties": {"type": "string"},
                "propertyNames": {"pattern": _VARIABLE},
            }
        ),
    ] = {}
    """Variables added to the engine's environment."""
    lossless: bool = False
    """true: no lever that can change answers."""
    supervision: Supervision = Supervision()

    @field_validator("levers")
    @classmethod
    def _levers_exist_and_fit(cls, values: dict[str, Any]) -> dict[str, Any]:
        good, problems = lever_values.check(values)
        if problems:
            raise Problems(problems)
        return good

    @field_validator("env")
    @classmethod
    def _variables_have_names(cls, env: dict[str, str]) -> dict[str, str]:
        problems = [
            Problem((name,), "bad_key", "a variable's name has letters, digits and _ only")
            for name in env
            if not re.fullmatch(_VARIABLE, name)
        ]
        problems += [
            Problem((name,), "bad_value", "a variable cannot hold the character NUL")
            for name, value in env.items()
            if "\0" in value
        ]
        if problems:
            raise Problems(problems)
        return env


def json_schema() -> dict[str, Any]:
    """JSON Schema 2020-12 of a profile file: what editors complete and check with.

    A file that extends another may leave out `goal`.
    """
    schema = Profile.model_json_schema()
    _tidy(schema)
    _describe(schema)
    schema["properties"]["levers"] |= lever_values.json_schema()
    schema["$defs"]["PairLevers"] = lever_values.pair_json_schema()
    schema["required"] = ["profile"]
    schema["anyOf"] = [{"required": ["goal"]}, {"required": ["extends"]}]
    schema["title"] = "llmserve profile"
    schema["description"] = "A goal, what is expected, what is promised, and the levers."
    return {"$schema": "https://json-schema.org/draft/2020-12/schema"} | schema


def _describe(schema: dict[str, Any]) -> None:
    """Each key with the sentence below its field. pydantic would read them from this file at every start."""
    import ast
    from pathlib import Path

    for definition in ast.parse(Path(__file__).read_text(encoding="utf-8")).body:
        if not isinstance(definition, ast.ClassDef):
            continue
        part = schema if definition.name == Profile.__name__ else schema["$defs"].get(definition.name)
        for field, after in zip(definition.body, definition.body[1:], strict=False):
            if part is None or not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
                continue
            if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                part["properties"][field.target.id]["description"] = str(after.value.value)


def _tidy(schema: Any) -> None:
    """Drop pydantic's titles, which repeat the keys."""
    if isinstance(schema, dict):
        if isinstance(schema.get("title"), str):
            del schema["title"]
        for part in schema.values():
            _tidy(part)
    elif isinstance(schema, list):
        for part in schema:
            _tidy(part)
