"""Levers of how steps run and how clients are served, asked by `branch` after those of `levers`."""

from __future__ import annotations

from orchestrator.plan import Decision, Rejected
from orchestrator.planning.paged import table
from orchestrator.planning.paged.levers import undecided
from orchestrator.planning.paged.situation import Situation
from orchestrator.planning.paged.sizing import Sizing
from orchestrator.planning.words import count

FINE = 32
"""Batches up to which vLLM's preset "interactivity" records each one (0.32.0 vllm/config/vllm.py:2467)."""


def graphs(s: Situation, z: Sizing) -> Decision:
    """Recorded steps: up to the largest decode batch there will be."""
    if not s.is_free("cuda_graph"):
        return s.as_given("cuda_graph")
    if s.on_cpu:
        return Decision(
            "off", "a CPU records no graphs; a start without compiling is minutes shorter", "no_graphs"
        )
    if not z.graph:
        return Decision("off", "recorded graphs leave too little memory", "memory_fit")
    if not z.fits:
        return undecided("the largest decode batch, and nothing fits that could decode")
    off = Rejected("off", "launching kernels one by one costs most at small batches")
    reason = f"every decode batch is recorded, up to {count(z.max_num_seqs, 'request')}"
    if z.wish.speculative_tokens and s.kind == "vllm":
        reason += f" with {z.wish.speculative_tokens} guesses each"
    return Decision(z.graph, reason, "graphs_by_seqs", rejected=(off,))


def async_scheduling(s: Situation, speculative: object, z: Sizing) -> Decision:
    """Prepare the next step while this one runs."""
    if not s.is_free("async_scheduling"):
        return s.as_given("async_scheduling")
    method = speculative.get("method") if isinstance(speculative, dict) else None
    if s.kind == "sglang":
        if z.layout.pipeline > 1 or (s.on_cpu and method):
            return Decision(False, "SGLang turns its overlap off here", "engine_turns_it_off")
        return Decision(True, "SGLang's overlap scheduler: the engine's own default", "engine_default")
    if s.on_cpu:
        return Decision(False, "a CPU has nothing to overlap with", "engine_turns_it_off")
    if s.version < (0, 16):
        return Decision(
            False, "off by default before 0.16, and not yet safe with everything", "engine_default"
        )
    # from 0.33 n-grams may run ahead: the second model runner looks them up on the GPU
    on_cpu = method == "suffix" or (method == "ngram" and s.version < (0, 33))
    if on_cpu or (z.layout.pipeline > 1 and s.version < (0, 33)):
        why = f"{method} guesses on the CPU" if on_cpu else "pipeline stages"
        return Decision(False, f"{why}: the engine cannot prepare the next step ahead", "engine_turns_it_off")
    return Decision(True, "the engine's own default: the CPU's work hides behind the GPU's", "engine_default")


def performance_mode(s: Situation, z: Sizing) -> Decision | None:
    """The engine's own preset; None where the version has none."""
    if not s.is_free("performance_mode"):
        return s.as_given("performance_mode")
    if not s.lists("--performance-mode"):
        return None
    double = Rejected("throughput", "doubles defaults that this plan sets anyway")
    if s.on_cpu or not z.fits or not z.graph:
        why = "no graphs are recorded" if z.fits else "nothing fits"
        return Decision("balanced", f"{why}: the presets change nothing here", "engine_default")
    fine = s.goal == "latency" or (s.goal == "agent" and z.graph <= FINE)
    if fine:
        reason = f"records every batch from 1 to {min(FINE, z.graph)}, so small ones are not padded"
        return Decision(
            "interactivity", reason, f"{s.goal}_interactivity", rejected=(Rejected("balanced", "pads"),)
        )
    reason = f"records 1, 2, 4, then every eighth: of batches up to {z.graph} few rows are padding"
    small = f"records each batch up to {FINE} alone: for few at once"
    if s.goal == "edge":
        reason = (
            "records 1, 2, 4, then every eighth batch: fewer recordings start sooner and take less memory"
        )
        small = f"records every batch up to {min(FINE, z.graph)}: a slower start, and memory that is scarce"
    return Decision("balanced", reason, "engine_default", rejected=(Rejected("interactivity", small), double))


def scheduling(s: Situation) -> Decision:
    """Who runs next, and how a client asks for it."""
    if not s.is_free("scheduling_policy"):
        return s.as_given("scheduling_policy")
    if s.goal != "latency":
        return Decision("fcfs", "in order of arrival: no request is more urgent", "fcfs")
    ask = 'a client sends "priority": 10 with a long job, and it waits aside (smaller runs first)'
    if s.kind == "sglang":
        ask = 'a client sends "priority": 10 with a request, and it goes before others (larger runs first)'
    reason = f"without priorities as fcfs; {ask}"
    fcfs = Rejected("fcfs", "a long job would hold everyone who comes after it")
    return Decision("priority", reason, "latency_priority", rejected=(fcfs,))


def queue(s: Situation, z: Sizing) -> Decision:
    """Waiting requests before new ones are turned away; 0 for no limit."""
    if not s.is_free("max_queued_requests"):
        return s.as_given("max_queued_requests")
    factor = table.row(s.goal).get("queue_factor")
    flag = "--max-num-queued-reqs" if s.kind == "vllm" else "--max-queued-requests"
    if not factor:
        return Decision(0, "who waits is served in the end", "no_queue_limit")
    if not s.lists(flag):
        return Decision(0, f"this version has no {flag}", "no_queue_limit")
    if not z.fits:
        return undecided(f"{factor} times what runs at once, and nothing fits")
    value = factor * z.max_num_seqs
    reason = f"{factor} times what runs at once: who would wait longer hears 503 now and can go elsewhere"
    return Decision(
        value, reason, "latency_queue", rejected=(Rejected(0, "a queue that grows answers nobody in time"),)
    )


def stream_interval(s: Situation) -> Decision:
    """Tokens between two messages of a stream."""
    if not s.is_free("stream_interval"):
        return s.as_given("stream_interval")
    value = table.row(s.goal)["stream_interval"] if s.lists("--stream-interval") else 1
    if value == 1:
        return Decision(1, "every token is sent when it is there", "every_token")
    reason = f"{value} tokens a message: fewer wake-ups of the API process, and nobody reads along"
    return Decision(
        value, reason, "throughput_stream", rejected=(Rejected(1, "one message a token costs CPU time"),)
    )


def parser(s: Situation, lever: str) -> Decision | None:
    """Tool-call or reasoning parser of the model's family; None where it is not this goal's business."""
    if not s.is_free(lever):
        return s.as_given(lever)
    if s.goal != "agent":
        return None
    what = "tool calls" if lever == "tool_call_parser" else "reasoning"
    if s.family is None:
        return Decision(
            None, f"no family of this architecture is known: set {lever} for {what}", "unknown_family"
        )
    name = getattr(s.family, lever)(s.kind, s.version_text)
    newer = s.family.newer_parser(lever, s.kind, s.version_text)
    if newer is not None:
        stands = f", and {name} stands in" if name is not None else ""
        reason = f"{s.family.name} has {newer[0]} for {what}, from {s.kind} {newer[1]} on{stands}"
        return Decision(name, reason, "family_parser")
    if name is None:
        return Decision(
            None, f"{s.family.name} has no {what} parser on {s.kind} that is known", "family_parser"
        )
    return Decision(name, f"{s.family.name} writes {what} in this form", "family_parser")


def executor(s: Situation, z: Sizing) -> Decision | None:
    """Who starts the ranks, where that is not the engine's own business; None where it is."""
    if not s.is_free("distributed_executor_backend"):
        return s.as_given("distributed_executor_backend")
    if z.layout.nodes == 1 or s.kind != "vllm":
        return None
    nodes = z.layout.nodes
    reason = f"starts the ranks of all {nodes} nodes from one command, once `ray start` joined the nodes"
    other = Rejected("mp", "starts processes of one machine, and needs a command of its own on every other")
    return Decision("ray", reason, "ranks_on_several_nodes", rejected=(other,))


def trust_remote_code(s: Situation) -> Decision:
    """Run code that comes with the model: only with consent."""
    if not s.is_free("trust_remote_code"):
        return s.as_given("trust_remote_code")
    habit = s.needs.left_out.get("--trust-remote-code")
    if habit is not None:
        return Decision(False, f"the published launch gives it, and {habit}", "no_remote_code")
    return Decision(False, "nothing of the model's repository is executed unless asked for", "no_remote_code")


def shutdown(s: Situation) -> Decision | None:
    """How long the engine finishes requests once it is told to end."""
    if not s.is_free("shutdown_timeout_s"):
        return s.as_given("shutdown_timeout_s")
    if not s.lists("--shutdown-timeout"):
        return None
    value = int(s.profile.supervision.drain_s)
    reason = "the profile's drain_s: running answers are finished; without it the engine cuts them off"
    return Decision(value, reason, "drain", rejected=(Rejected(0, "every answer in flight would be lost"),))


def threads(s: Situation) -> Decision | None:
    """Cores that compute, where the engine computes on a CPU."""
    if not s.is_free("threads"):
        return s.as_given("threads")
    if not s.on_cpu:
        return None
    ranks = (s.given("tensor_parallel_size") or 1) * (s.given("data_parallel_size") or 1)
    value = max(1, (s.usable_cores - 1) // ranks)
    reason = f"{count(s.usable_cores, 'physical core')}, one left to the API server and the scheduler"
    return Decision(value, reason, "threads_leave_a_core")
