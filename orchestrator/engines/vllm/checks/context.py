"""Rules of the model: its length, its types, its KV cache, its own code."""

from __future__ import annotations

import os

from orchestrator.engines.vllm.checks.settings import Settings, rules
from orchestrator.plan import Violation

_DTYPES = {"half": "float16", "float": "float32", "torch.bfloat16": "bfloat16", "torch.float16": "float16"}


def check(s: Settings) -> list[Violation]:
    """ModelConfig's and CacheConfig's checks (vLLM 0.33.0 vllm/config/model.py:2657-2683, 1420-1475,
    vllm/config/vllm.py:1492-1508, 3422-3452, vllm/platforms/cuda.py:651)."""
    return [
        *_length(s),
        *_dtype(s),
        *_kv(s),
        *_blocks(s),
        *_device(s),
        *_cpu(s),
        *_own_code(s),
    ]


def dtype(s: Settings) -> str | None:
    """The type the weights will be computed in, as far as it is known: the flag's, else the checkpoint's."""
    asked = s.text("--dtype")
    value = asked if asked not in (None, "auto") else s.model.get("dtype")
    return _DTYPES.get(str(value), str(value)) if value else None


def _length(s: Settings) -> list[Violation]:
    asked, own = s.number("--max-model-len"), s.model.get("context_length")
    if asked == 0:
        return [
            Violation(
                "max_model_len_zero", "max_model_len is 0", "use --set max_model_len=auto, or 1 and more"
            )
        ]
    stretched = s.json("--hf-overrides") or s.given("--rope-scaling")
    if s.env.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN") in ("1", "true") or stretched:
        return []
    longer = s.model.get("model_max_length")
    if (
        not isinstance(own, int)
        or asked is None
        or asked <= max(own, longer if isinstance(longer, int) else 0)
    ):
        return []
    return [
        Violation(
            "context_above_model",
            f"max_model_len is {int(asked)} tokens and the model has {own}",
            f"use --set max_model_len={own}; where the model is known to hold more, say how with "
            "--hf-overrides (rope scaling), or set env VLLM_ALLOW_LONG_MAX_MODEL_LEN=1",
        )
    ]


def _dtype(s: Settings) -> list[Violation]:
    kind, capability = dtype(s), s.capability()
    found = []
    asked = s.text("--dtype")
    unstable = s.model.get("model_type") in rules()["no_float16"]
    old = s.device == "cuda" and capability is not None and capability < 8.0
    if asked == "bfloat16" and old:
        found.append(
            Violation(
                "bfloat16_needs_8_0",
                f"dtype is bfloat16, which needs compute capability 8.0, and a GPU here has {capability}",
                f"use --set dtype={'float32' if unstable else 'float16'}",
            )
        )
    if asked in ("float16", "half") and unstable:
        found.append(
            Violation(
                "no_float16",
                f"models of type {s.model['model_type']} are unstable in float16, and vLLM refuses it",
                f"use --set dtype={'float32' if old else 'bfloat16, or float32'}",
            )
        )
    kv = s.text("--kv-cache-dtype")
    if kv in ("float16", "bfloat16") and kind and kind != kv and s.at_least("0.33"):
        found.append(
            Violation(
                "kv_dtype_differs",
                f"kv_cache_dtype {kv} must be the model's own type, which is {kind}",
                "use --set kv_cache_dtype=auto",
            )
        )
    return found


def _kv(s: Settings) -> list[Violation]:
    found = []
    kv = s.text("--kv-cache-dtype") or ""
    if kv.startswith("nvfp4") and not kv.endswith("_ds_mla") and s.model.get("mla"):
        found.append(
            Violation(
                "nvfp4_with_mla",
                f"kv_cache_dtype {kv} does not work with latent attention (MLA)",
                "use --set kv_cache_dtype=fp8, or auto",
            )
        )
    own = s.number("--mamba-block-size")
    if own is not None and own != s.context and s.on("--enable-prefix-caching") is False:
        found.append(
            Violation(
                "mamba_block_needs_prefix_caching",
                "--mamba-block-size needs prefix caching",
                "use --set prefix_caching=true, or take --mamba-block-size out",
            )
        )
    return found


def _device(s: Settings) -> list[Violation]:
    """GPUs for which the published packages hold no kernels: `lowest_capability` of the rules."""
    capability = s.capability()
    if s.device != "cuda" or capability is None:
        return []
    least = next(row["capability"] for row in rules()["lowest_capability"] if s.at_least(row["since"]))
    if round(capability * 10) >= least:
        return []
    return [
        Violation(
            "gpu_too_old",
            f"vLLM {s.installation.version} is built for compute capability {least / 10} and above, and a "
            f"GPU here has {capability}",
            "use newer GPUs, or --engine llamacpp with a GGUF model",
        )
    ]


def _blocks(s: Settings) -> list[Violation]:
    """Sizes of KV blocks that an attention backend of the device takes: every one of CUDA's, those of
    ordinary heads on ROCm (vLLM 0.33.0 vllm/v1/attention/backends, get_supported_kernel_block_sizes; 0.10.0
    to 0.20.2 flash_attn.py and triton_attn.py, get_kv_cache_shape). Before 0.20.2 the engine itself set the
    blocks of latent attention."""
    size, mla = s.number("--block-size"), bool(s.model.get("mla"))
    if size is None or size <= 0 or size % 16 == 0:
        return []
    if s.device not in ("cuda", "rocm") or (mla and (s.device == "rocm" or not s.at_least("0.20.2"))):
        return []
    return [
        Violation(
            "block_size_not_16",
            f"block_size is {int(size)}, and attention on a GPU takes KV blocks of 16 tokens and multiples",
            f"use --set block_size={max(16, round(size / 16) * 16)}, or --set block_size=auto",
        )
    ]


def _cpu(s: Settings) -> list[Violation]:
    """A CPU has no KV pool of its own: left alone vLLM asks for 92 % of the machine and stops where that is
    not free (vLLM 0.33.0 vllm/v1/worker/cpu_worker.py:221-251)."""
    if s.device != "cpu":
        return []
    found = []
    space = s.env.get("VLLM_CPU_KVCACHE_SPACE")
    if space is not None and not space.isdigit():
        found.append(
            Violation(
                "kv_space_not_whole",
                f"VLLM_CPU_KVCACHE_SPACE is {space!r}: vLLM reads whole GiB and stops at anything else",
                "unset it and use --set kv_cache_bytes",
            )
        )
    sized = s.given("--kv-cache-memory-bytes") or s.given("--gpu-memory-utilization") or space
    if not sized:
        found.append(
            Violation(
                "kv_size_unset",
                "no size for the KV cache is set: on a CPU vLLM then asks for 92 % of the machine's memory",
                "use --set kv_cache_bytes=2GiB",
            )
        )
    threads = s.env.get("VLLM_CPU_OMP_THREADS_BIND")
    if threads and threads not in ("auto", "nobind") and len(threads.split("|")) != s.world:
        found.append(
            Violation(
                "thread_lists_differ",
                f"VLLM_CPU_OMP_THREADS_BIND has {len(threads.split('|'))} lists of cores for {s.world} ranks",
                "give one list a rank, separated by |, or use auto",
            )
        )
    return found


def _own_code(s: Settings) -> list[Violation]:
    if not s.model.get("needs_remote_code") or s.on("--trust-remote-code") is True:
        return []
    return [
        Violation(
            "remote_code",
            "the model brings code of its own, which vLLM runs only with your consent",
            "read it, then use --set trust_remote_code=true; or take another model",
        )
    ]


def missing_file(path: str) -> bool:
    """Whether a value that looks like a path is no file here."""
    return not os.path.isfile(path)
