"""A SGLang command line as its rules see it: what the flags say, and what follows from them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cached_property
from typing import Any

from orchestrator.engines.base import Flag, Installation
from orchestrator.engines.command_line import Parsed, canonical, index, parse
from orchestrator.plan import Plan, ProcessPlan

_PORT = re.compile(r"\{port:(\w+)\}")
_SUFFIXES = {
    "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40,
}  # fmt: skip
_SIZE = re.compile(r"(\d+(?:\.\d+)?)([kMGT]|[KMGT]i)")
_FIRST_STAND_IN_PORT = 60_000
_SPANNING = frozenset(
    {
        "megamoe", "deepep", "deepep_v2", "mooncake", "nixl", "ascend_fuseep", "flashinfer",
        "flashinfer_megamoe", "mori", "pplx",
    }
)  # fmt: skip
"""All-to-all backends that spread the experts over all ranks (0.5.23, arg_groups/overrides.py:1578)."""
_UNLISTED_SPECULATIONS = frozenset({"NONE", "FROZEN_KV_MTP"})
"""Algorithms that SGLang takes beside those its help names (0.5.23, speculative/spec_info.py:31)."""
DEFAULTS: Mapping[str, Any] = {
    "--tp-size": 1, "--pp-size": 1, "--dp-size": 1, "--attn-dp-size": 1, "--ep-size": 1, "--nnodes": 1,
    "--page-size": 1, "--moe-a2a-backend": "none", "--schedule-policy": "fcfs",
    "--disaggregation-mode": "null", "--disaggregation-transfer-backend": "mooncake",
    "--speculative-ngram-max-bfs-breadth": 10, "--port": 30000, "--tokenizer-worker-num": 1,
    "--dcp-size": 1, "--max-loras-per-batch": 8, "--load-balance-method": "auto",
    "--speculative-ngram-external-sam-budget": 0,
}  # fmt: skip


@dataclass(frozen=True)
class Args:
    """One process of a plan, read. `model` and `machine` are the plan's facts, whose keys may be missing."""

    parsed: Parsed
    installation: Installation
    model: Mapping[str, Any]
    machine: Mapping[str, Any]
    env: Mapping[str, str]
    predictions: Mapping[str, Any] = field(default_factory=dict)

    def get(self, flag: str, default: Any = None) -> Any:
        """What the command line says of a flag by any of its names, else `default`, else SGLang's own."""
        values = self.parsed.values
        value = values.get(flag)
        known = self.listed.get(flag)
        if known is not None and (name := canonical(known)) != flag:
            named = values.get(name)
            value = named if named is not None else value
        if value is not None:
            return value
        return DEFAULTS.get(flag) if default is None else default

    def number(self, flag: str) -> Any:
        """`get`, where it is a number, or one with SGLang's suffixes (`8k`); None where it is none."""
        value = self.get(flag)
        if isinstance(value, str):
            value = size(value)
        return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None

    def on(self, flag: str) -> bool:
        return bool(self.get(flag))

    def given(self, flag: str) -> bool:
        """Whether the command line holds the flag itself, whatever its value."""
        known = self.listed.get(flag)
        return known is not None and canonical(known) in self.parsed.values

    def lists(self, flag: str) -> bool:
        return flag in index(self.installation)

    def said(self, flag: str) -> Flag | None:
        return index(self.installation).get(flag)

    # what follows

    @cached_property
    def listed(self) -> Mapping[str, Flag]:
        return index(self.installation)

    @cached_property
    def words(self) -> frozenset[str]:
        """Every spelling of the flags that are given."""
        return frozenset((*self.parsed.values, *(s for g in self.parsed.given for s in g.flag.spellings)))

    @cached_property
    def version(self) -> tuple[int, ...]:
        return version_of(self.installation.version)

    @cached_property
    def device(self) -> str:
        return str(self.get("--device") or self.installation.extras.get("device") or "cuda")

    @cached_property
    def tensor(self) -> int:
        """SGLang's tensor size: all ranks of a stage, those of attention data parallelism among them."""
        return _positive(self.number("--tp-size"))

    @cached_property
    def pipeline(self) -> int:
        return _positive(self.number("--pp-size"))

    @cached_property
    def attention(self) -> int:
        """Attention ranks: --attn-dp-size, or --dp-size with --enable-dp-attention; all of them with DWDP."""
        if 1 < self.dwdp == self.tensor:
            return self.tensor
        ranks = _positive(self.number("--attn-dp-size"))
        if ranks == 1 and self.on("--enable-dp-attention"):
            return _positive(self.number("--dp-size"))
        return ranks

    @cached_property
    def dwdp(self) -> int:
        """Ranks that hold the experts' weights for one another (0.5.23, parallel_hook.py:433)."""
        return _positive(self.number("--dwdp-size"))

    @cached_property
    def data(self) -> int:
        if self.dwdp > 1:
            return 1
        copies = _positive(self.number("--dp-size"))
        moved = self.on("--enable-dp-attention") and _positive(self.number("--attn-dp-size")) == 1
        return 1 if moved else copies

    @cached_property
    def world(self) -> int:
        return self.tensor * self.pipeline * self.data

    @cached_property
    def a2a(self) -> str:
        return str(self.get("--moe-a2a-backend"))

    @cached_property
    def expert(self) -> int:
        return self.tensor if self.a2a in _SPANNING or self.dwdp > 1 else _positive(self.number("--ep-size"))

    @cached_property
    def attention_tensor(self) -> int:
        """Ranks that one attention layer is cut over."""
        return max(1, self.tensor // self.attention)

    @cached_property
    def speculation(self) -> str:
        """The algorithm in capitals, NEXTN by its other name EAGLE; "" where there is none."""
        name = str(self.get("--speculative-algorithm") or "").upper()
        return "EAGLE" if name == "NEXTN" else name

    @cached_property
    def speculations(self) -> frozenset[str]:
        """The algorithms that this SGLang names; empty where it does not say."""
        return frozenset(self.installation.extras.get("spec_methods") or ())

    @property
    def speculation_unknown(self) -> bool:
        """A plugin may bring others: SGLANG_PLUGINS names it."""
        known = self.speculations
        named = self.speculation in known | _UNLISTED_SPECULATIONS or "SGLANG_PLUGINS" in self.env
        return bool(self.speculation and known and not named)

    @property
    def rejection_sampling(self) -> bool:
        """Block verification of the EAGLE family brings it along (0.5.23, speculative_hook.py:184)."""
        eagle = self.speculation in ("EAGLE", "EAGLE3")
        both = self.on("--speculative-use-block-verification") and eagle
        return both or (bool(self.speculation) and self.on("--speculative-use-rejection-sampling"))

    @cached_property
    def topk(self) -> Any:
        """Branches of the draft, as SGLang will settle them; None where there is no draft."""
        if not self.speculation:
            return None
        if self.speculation == "NGRAM":
            return self.number("--speculative-ngram-max-bfs-breadth")
        if self.speculation in ("DFLASH", "DSPARK"):
            return 1
        said = self.number("--speculative-eagle-topk")
        if said is None and self.number("--speculative-num-steps") is None:
            return self.automatic[1]
        return said

    @property
    def automatic(self) -> tuple[int, int, int]:
        """(steps, topk, draft tokens) where nothing is said (0.5.23, speculative_hook.py:1430)."""
        deep = {"LlamaForCausalLM", "Grok1ForCausalLM", "Grok1VForCausalLM"}
        if self.speculation != "STANDALONE" and self.architecture in deep:
            return 5, 4, 8
        return 3, 1, 4

    @cached_property
    def architecture(self) -> str:
        names = self.model.get("architectures") or ()
        return str(names[0]) if names else ""

    @cached_property
    def backends(self) -> frozenset[str]:
        """Attention backends that the command line names; empty where SGLang chooses."""
        flags = ("--attention-backend", "--prefill-attention-backend", "--decode-attention-backend")
        return frozenset(str(b) for f in flags if (b := self.get(f)))

    @cached_property
    def pd(self) -> str:
        return str(self.get("--disaggregation-mode"))

    @cached_property
    def radix(self) -> bool:
        """Whether the prefix cache is on: a decode server's is off by default."""
        if self.pd == "decode":
            return self.on("--disaggregation-decode-enable-radix-cache")
        return not self.on("--disable-radix-cache")

    @cached_property
    def capability(self) -> float | None:
        """The lowest compute capability among the GPUs that the plan uses; None where one is unknown."""
        if self.device != "cuda":
            return None
        there = self.machine.get("gpus") or ()
        used = [gpu for gpu in there if gpu.get("used", True)] or there
        try:
            return min(float(gpu["compute_capability"]) for gpu in used)
        except (KeyError, TypeError, ValueError):
            return None

    @property
    def mla(self) -> bool:
        return bool(self.model.get("mla"))

    @property
    def no_mla(self) -> bool:
        return self.model.get("mla") is False

    @property
    def drafts_itself(self) -> bool:
        """Whether the model has layers that predict ahead, as far as its facts say."""
        return bool(self.model.get("mtp_layers"))

    # comparisons that the tables of rules ask for

    @cached_property
    def served_name(self) -> str:
        return str(self.get("--served-model-name") or self.get("--model-path") or "")

    @property
    def served_name_has_colon(self) -> bool:
        # object storage and the Run:ai streamer name models by URL
        return ":" in self.served_name and not re.match(r"(s3|gs|az)://", self.served_name)

    @property
    def grpc_port_is_http_port(self) -> bool:
        return not (self.on("--grpc-mode") or self.on("--smg-grpc-mode")) and self.number(
            "--grpc-port"
        ) == self.number("--port")

    @property
    def keyed(self) -> bool:
        return self.given("--api-key") or self.given("--admin-api-key")

    @property
    def without_granian(self) -> bool:
        """Whether the installation was asked for the package and has none."""
        return (self.installation.extras.get("dependencies") or {}).get("granian", "?") is None

    @property
    def lora_sized(self) -> bool:
        return self.given("--max-lora-rank") and self.given("--lora-target-modules")

    @property
    def loaded_loras_below_batch(self) -> bool:
        most = self.number("--max-loaded-loras")
        using = self.on("--enable-lora") or self.given("--lora-paths")
        return using and most is not None and most < self.number("--max-loras-per-batch")

    @property
    def backends_outside_gpt_oss(self) -> bool:
        known = {"triton", "trtllm_mha", "fa3", "fa4", "ascend", "intel_amx", "intel_xpu", "aiter"}
        return bool(self.backends - known)

    @property
    def expert_forced(self) -> bool:
        spread = self.a2a in _SPANNING and self.expert != _positive(self.number("--ep-size"))
        return spread and self.given("--ep-size")

    @property
    def dwdp_is_not_tensor(self) -> bool:
        return self.dwdp not in (1, self.tensor)

    @property
    def elastic_scaling(self) -> bool:
        """Whether ranks of experts may join at run time (0.5.23, parallel_hook.py:570)."""
        most = self.number("--max-ep-size")
        return self.given("--elastic-ep-backend") and most is not None and most > self.tensor

    @property
    def elastic_initial_size_without_scaling(self) -> bool:
        return self.given("--elastic-ep-initial-size") and not self.elastic_scaling

    @property
    def draft_tokens_overruled(self) -> bool:
        steps, tokens = self.number("--speculative-num-steps"), self.number("--speculative-num-draft-tokens")
        eagle = self.speculation in ("EAGLE", "EAGLE3", "STANDALONE")
        return eagle and self.topk == 1 and None not in (steps, tokens) and tokens != steps + 1

    @property
    def context_above_pool(self) -> bool:
        pool = self.number("--max-total-tokens")
        return pool is not None and isinstance(self.context, int) and self.context > pool

    @property
    def requests_above_pool(self) -> bool:
        pool, most = self.number("--max-total-tokens"), self.number("--max-running-requests")
        return pool is not None and most is not None and max(1, most // self.attention) > pool // 2

    @cached_property
    def context(self) -> Any:
        """Tokens one request may take: what is said, else the model's own length; None where unknown."""
        return self.number("--context-length") or self.model.get("context_length")


def read(plan: Plan, process: ProcessPlan, installation: Installation) -> Args | None:
    """The arguments of a process of this installation; None where another program runs in it."""
    own = installation.argv
    if tuple(process.argv[: len(own)]) != tuple(own):
        return None
    words = [_with_port(word, process) for word in process.argv[len(own) :]]
    return Args(
        parsed=parse(words, installation, abbreviations=True),
        installation=installation,
        model=plan.model,
        machine=plan.machine,
        env={**installation.env, **process.env},
        predictions={k: p.value for k, p in plan.predictions.items()},
    )


def size(text: str) -> int | None:
    """Whole tokens as human_readable_int reads them (0.5.23, utils/common.py); None where it would not."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        try:
            return int(text)
        except ValueError:
            return None
    if "." in match[1] and match[2].endswith("i"):
        return None
    return int(Decimal(match[1]) * _SUFFIXES[match[2]])


def version_of(text: str) -> tuple[int, ...]:
    """A version as numbers that sort: 0.5.6.post2 is (0, 5, 6, 2)."""
    return tuple(int(n) for n in re.findall(r"\d+", text.split("+")[0])[:4])


def _with_port(word: str, process: ProcessPlan) -> str:
    """A port that only the start will know stands as some free number, each name as another one."""

    def number(match: re.Match[str]) -> str:
        name, names = match.group(1), list(process.ports)
        place = names.index(name) if name in names else len(names)
        return str(process.ports.get(name) or _FIRST_STAND_IN_PORT + place)

    return _PORT.sub(number, word)


def _positive(value: Any) -> int:
    return value if isinstance(value, int) and value > 0 else 1
