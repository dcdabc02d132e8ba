"""Rules of the layout: what divides, what needs experts, how data-parallel ranks are numbered."""

from __future__ import annotations

from orchestrator.engines.vllm.checks.settings import Settings
from orchestrator.plan import Violation

_EXECUTORS = ("mp", "ray", "uni", "external_launcher")


def check(s: Settings) -> list[Violation]:
    """ParallelConfig's checks and the model's with it (vLLM 0.33.0 vllm/config/parallel.py:530-600,
    vllm/config/model.py:1498-1607, vllm/engine/arg_utils.py:2385-2530)."""
    return [
        *_heads(s),
        *_experts(s),
        *_devices(s),
        *_context_parallel(s),
        *_executor(s),
        *_data_parallel(s),
        *_nodes(s),
    ]


def _heads(s: Settings) -> list[Violation]:
    heads, size = s.model.get("heads"), s.count("--tensor-parallel-size")
    if not isinstance(heads, int) or not heads or heads % size == 0:
        return []
    legal = [n for n in range(1, min(heads, 64) + 1) if heads % n == 0]
    return [
        Violation(
            "tensor_parallel_heads",
            f"{heads} attention heads do not divide by tensor_parallel_size {size}",
            f"use --set tensor_parallel_size={max(n for n in legal if n <= size)} "
            f"(legal here: {', '.join(map(str, legal))})",
        )
    ]


def _experts(s: Settings) -> list[Violation]:
    found = []
    experts, known = s.model.get("experts"), "experts" in s.model
    parallel = s.on("--enable-expert-parallel") is True
    if parallel and known and not experts:
        found.append(
            Violation(
                "expert_parallel_dense",
                "the model has no experts, and expert_parallel is on",
                "use --set expert_parallel=false",
            )
        )
    if s.on("--enable-eplb") is True:
        if s.device not in ("cuda", "rocm", "xpu"):
            found.append(
                Violation(
                    "expert_balancing_device",
                    f"--enable-eplb balances experts on GPUs alone, and this vLLM runs on {s.device}",
                    "take --enable-eplb out of engine_args",
                )
            )
        if not parallel:
            found.append(
                Violation(
                    "expert_balancing_needs_experts",
                    "--enable-eplb needs expert_parallel",
                    "use --set expert_parallel=true, or take --enable-eplb out",
                )
            )
        elif s.world * s.count("--data-parallel-size") <= 1:
            found.append(
                Violation(
                    "expert_balancing_needs_ranks",
                    "--enable-eplb moves experts between ranks, and there is one",
                    "use --set tensor_parallel_size or data_parallel_size above 1, or take --enable-eplb out",
                )
            )
    elif (s.json("--eplb-config").get("num_redundant_experts") or 0) > 0:
        found.append(
            Violation(
                "redundant_experts_without_balancing",
                "--eplb-config asks for redundant experts, and --enable-eplb is off",
                "add --enable-eplb, or take num_redundant_experts out",
            )
        )
    return found


def _devices(s: Settings) -> list[Violation]:
    """More ranks than GPUs (vllm/config/parallel.py:1066); each local data-parallel rank has its own. Ray
    takes those of every node; how many there are beside one machine that is alone, only Ray knows."""
    executor, nodes = s.text("--distributed-executor-backend"), int(s.machine.get("nodes") or 1)
    elsewhere = s.given("--nnodes") or (executor not in (None, "mp", "uni") and nodes == 1)
    if s.device == "cpu" or not s.gpus or elsewhere:
        return []
    local = s.number("--data-parallel-size-local")
    everywhere = executor == "ray"
    copies = int(local) if local and not everywhere else s.count("--data-parallel-size")
    if s.given("--data-parallel-rank"):
        copies = 1
    need, have = s.world * copies, len(s.gpus) * (nodes if everywhere else 1)
    if need <= have:
        return []
    return [
        Violation(
            "more_ranks_than_gpus",
            f"the layout needs {need} GPUs (tensor {s.count('--tensor-parallel-size')} × pipeline "
            f"{s.count('--pipeline-parallel-size')} × data {copies}) and there are {have}",
            "use smaller --set tensor_parallel_size, pipeline_parallel_size or data_parallel_size",
        )
    ]


def _context_parallel(s: Settings) -> list[Violation]:
    size, tensor = s.count("--decode-context-parallel-size"), s.count("--tensor-parallel-size")
    if size == 1 or s.count("--prefill-context-parallel-size") > 1:
        return []
    remedy = "use --decode-context-parallel-size 1, or take it out"
    if tensor % size:
        return [
            Violation(
                "context_parallel_divides",
                f"tensor_parallel_size {tensor} does not divide by --decode-context-parallel-size {size}",
                remedy,
            )
        ]
    heads, kv_heads = s.model.get("heads"), s.model.get("kv_heads")
    if s.model.get("mla") or not isinstance(kv_heads, int) or not kv_heads or not isinstance(heads, int):
        return []
    if tensor <= kv_heads:
        said = f"needs tensor_parallel_size above the model's {kv_heads} KV heads, and it is {tensor}"
    elif size > tensor // kv_heads:
        said = f"may be at most {tensor // kv_heads} with {kv_heads} KV heads over {tensor} devices"
    elif (heads // kv_heads) % size:
        said = f"must divide the {heads // kv_heads} query heads that share a KV head"
    else:
        return []
    return [Violation("context_parallel_heads", f"--decode-context-parallel-size {size} {said}", remedy)]


def _executor(s: Settings) -> list[Violation]:
    name, found = s.text("--distributed-executor-backend"), []
    if name is not None and name not in _EXECUTORS and "." not in name:
        found.append(
            Violation(
                "executor_unknown",
                f"distributed_executor_backend {name!r} is none of {', '.join(_EXECUTORS)}",
                "use --set distributed_executor_backend=mp",
            )
        )
    if name == "uni" and s.count("--pipeline-parallel-size") > 1:
        found.append(
            Violation(
                "executor_without_stages",
                "pipeline_parallel_size above 1 needs more than one process, and "
                "distributed_executor_backend is uni",
                "use --set distributed_executor_backend=mp",
            )
        )
    elif name == "uni" and s.world > 1 and s.device != "cpu":
        # a CPU takes mp instead (vllm/platforms/cpu.py:350); a GPU's one worker waits for the other ranks
        found.append(
            Violation(
                "executor_of_one_rank",
                f"distributed_executor_backend uni runs one worker, and the layout has {s.world} ranks",
                "use --set distributed_executor_backend=mp, or --set tensor_parallel_size=1",
            )
        )
    if name == "external_launcher" and "RANK" not in s.env:
        # vllm/v1/executor/uniproc_executor.py, ExecutorWithExternalLauncher
        found.append(
            Violation(
                "executor_external",
                "distributed_executor_backend external_launcher is for programs that torchrun starts, one "
                "for each rank",
                "use --set distributed_executor_backend=mp",
            )
        )
    ray = (s.installation.extras.get("dependencies") or {}).get("ray", "unknown")
    copies = s.text("--data-parallel-backend")
    if copies not in (None, "mp", "ray"):
        # vllm/engine/arg_utils.py
        found.append(
            Violation(
                "data_parallel_backend_unknown",
                f"--data-parallel-backend is {copies!r}, and takes mp or ray",
                "take it out of engine_args",
            )
        )
    if "ray" in (name, copies if s.count("--data-parallel-size") > 1 else None) and ray is None:
        asked = "distributed_executor_backend" if name == "ray" else "--data-parallel-backend"
        found.append(
            Violation(
                "executor_missing",
                f"{asked} is ray, and ray is not installed beside vLLM",
                "use --set distributed_executor_backend=mp, or install ray into the engine's environment",
            )
        )
    return found


def _data_parallel(s: Settings) -> list[Violation]:
    size, found = s.count("--data-parallel-size"), []
    local, rank = s.number("--data-parallel-size-local"), s.number("--data-parallel-rank")
    external = s.on("--data-parallel-external-lb") is True
    hybrid = s.on("--data-parallel-hybrid-lb") is True
    several = s.on("--data-parallel-multi-port-external-lb") is True
    start = s.given("--data-parallel-start-rank") and not hybrid and not several
    modes = [n for n, on in (
        ("--data-parallel-multi-port-external-lb", several),
        ("--data-parallel-external-lb or --data-parallel-rank", external or rank is not None),
        ("--data-parallel-hybrid-lb or --data-parallel-start-rank", hybrid or start),
    ) if on]  # fmt: skip

    def refuse(code: str, message: str, remedy: str) -> None:
        found.append(Violation(code, message, remedy))

    if s.on("--enable-fault-tolerance") is True and not external:
        # vllm/engine/arg_utils.py:2450
        refuse(
            "fault_tolerance_needs_balancer",
            "--enable-fault-tolerance is for ranks behind a balancer of their own",
            "take it out of engine_args",
        )
    if len(modes) > 1:
        refuse(
            "balancers_clash",
            f"{' and '.join(modes)} each choose who spreads the requests",
            "keep one of them in engine_args",
        )
        return found
    if local is not None and local > size:
        refuse(
            "local_ranks_above_all",
            f"--data-parallel-size-local {local} is more than data_parallel_size {size}",
            f"use --set data_parallel_size={local} or more",
        )
    if several:
        return found + _supervised(s, size, local)
    if hybrid and size <= 1 and s.at_least("0.32"):
        # vllm/config/parallel.py, as an external balancer's
        refuse(
            "hybrid_needs_ranks",
            "--data-parallel-hybrid-lb needs data_parallel_size above 1",
            "use --set data_parallel_size=2 or more, or take it out",
        )
    if hybrid and local is None:
        refuse(
            "hybrid_needs_local_ranks",
            "--data-parallel-hybrid-lb does not know how many ranks are on this node",
            "add --data-parallel-size-local",
        )
    if not external and rank is None:
        return found
    if size <= 1 and external:
        refuse(
            "external_needs_ranks",
            "--data-parallel-external-lb needs data_parallel_size above 1",
            "use --set data_parallel_size=2 or more, or take it out",
        )
    elif rank is None and s.count("--nnodes") == 1:
        refuse(
            "external_needs_rank",
            "--data-parallel-external-lb does not know which rank this is",
            "add --data-parallel-rank",
        )
    if rank is not None and rank >= size:
        refuse(
            "rank_out_of_range",
            f"--data-parallel-rank {rank} is not below data_parallel_size {size}",
            f"use a rank from 0 to {size - 1}",
        )
    if size > 1 and "experts" in s.model and not s.model.get("experts") and s.at_least("0.16"):
        refuse(
            "external_dense",
            "data-parallel ranks of a model without experts share nothing, and vLLM refuses to number them",
            "start each copy without --data-parallel-* flags (--set replicas=2)",
        )
    return found


def _supervised(s: Settings, size: int, local: float | int | None) -> list[Violation]:
    """Ranks that a supervisor starts on ports of their own (vLLM 0.32.0 dp_supervisor.py,
    validate_multi_port_external_lb_args)."""
    flag, said = "--data-parallel-multi-port-external-lb", []
    if s.on("--grpc") is True:
        said.append("does not go with --grpc")
    if s.given("--uds"):
        said.append("does not go with --uds")
    if s.number("--api-server-count") not in (None, 1):
        said.append("takes --api-server-count 1 alone")
    if size < 2:
        said.append("needs data_parallel_size above 1")
    if local is None or local < 2:
        said.append("needs --data-parallel-size-local 2 or more")
    elif local <= size:
        start = s.number("--data-parallel-start-rank")
        first = start if start is not None else int(s.number("--node-rank") or 0) * local
        if size % local:
            said.append(f"needs data_parallel_size {size} to divide by --data-parallel-size-local {local}")
        elif first + local > size:
            said.append(f"would start ranks {first} to {first + local - 1} of {size}")
        port, supervisor = s.number("--port"), s.number("--data-parallel-supervisor-port")
        if port is not None and supervisor is not None and port <= supervisor < port + local:
            said.append(
                f"gives ports {port} to {port + local - 1} to its ranks, the supervisor's {supervisor} too"
            )
    remedy = f"correct that, or take {flag} out of engine_args"
    return [Violation("supervised_ranks", f"{flag} {what}", remedy) for what in said]


def _nodes(s: Settings) -> list[Violation]:
    nodes, rank, found = s.count("--nnodes"), s.number("--node-rank"), []
    if nodes > 1:
        ranks = s.world * s.count("--data-parallel-size")
        if s.text("--data-parallel-backend") not in (None, "mp"):
            found.append(
                Violation(
                    "nodes_need_mp",
                    f"--nnodes {nodes} needs --data-parallel-backend mp",
                    "take --data-parallel-backend out of engine_args",
                )
            )
        if ranks % nodes:
            found.append(
                Violation(
                    "nodes_do_not_divide",
                    f"{ranks} ranks do not spread evenly over --nnodes {nodes}",
                    "use sizes whose product divides by the nodes",
                )
            )
        if rank is not None and not 0 <= rank < nodes:
            found.append(
                Violation(
                    "node_rank_out_of_range",
                    f"--node-rank {rank} is not below --nnodes {nodes}",
                    f"use a node rank from 0 to {nodes - 1}",
                )
            )
    servers = s.number("--api-server-count")
    if s.on("--headless") is True and servers:
        found.append(
            Violation(
                "headless_with_servers",
                f"--headless starts no API server, and --api-server-count is {servers}",
                "take one of the two out of engine_args",
            )
        )
    ids = s.text("--device-ids")
    if ids:
        parts = [p.strip() for p in ids.split(",")]
        if len(set(parts)) < len(parts):
            found.append(
                Violation(
                    "device_twice",
                    f"--device-ids {ids} names a device twice",
                    "name each once, or use --set device_ids",
                )
            )
        if len({p.isdigit() for p in parts}) > 1:
            found.append(
                Violation(
                    "device_ids_mixed", f"--device-ids {ids} mixes numbers and UUIDs", "use --set device_ids"
                )
            )
    return found
