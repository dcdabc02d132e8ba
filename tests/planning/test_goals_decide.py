"""What each goal takes on llama.cpp, and that the goals differ as the tree says."""

import itertools

import pytest
from planning_inputs import CARDS, EMBEDDED, GOALS, LLAMA_8B, card, gpu, machine, plan, values

from orchestrator.planning.request import Reservations

THIS = machine(cores=2, memory_gib=23)


def test_the_goals_differ_in_slots_context_and_batch_pairwise() -> None:
    made = {g: values(plan(g, on=THIS, engine=EMBEDDED)) for g in GOALS}
    for a, b in itertools.combinations(GOALS, 2):
        for lever in ("max_num_seqs", "max_model_len", "max_num_batched_tokens"):
            assert made[a][lever] != made[b][lever], (a, b, lever)
        assert made[a]["speculative"] != made[b]["speculative"]
    assert len({v["ubatch_tokens"] for v in made.values()}) == 3
    assert made["throughput"]["max_num_seqs"] == max(v["max_num_seqs"] for v in made.values())
    assert made["edge"]["max_num_seqs"] == 1
    assert made["agent"]["max_model_len"] == max(v["max_model_len"] for v in made.values())
    assert [made[g]["kv_cache_dtype"] for g in GOALS] == ["f16", "f16", "q8_0", "f16"]
    assert made["throughput"]["speculative"] == "off"
    assert made["latency"]["speculative"]["method"] == "ngram"


def test_every_decision_has_a_reason_and_a_rule() -> None:
    for goal in GOALS:
        for name, d in plan(goal).levers.items():
            assert d.reason, (goal, name)
            assert d.rule, (goal, name)


def test_every_lever_is_decided_or_left_out_with_a_reason() -> None:
    from orchestrator.levers import LEVERS

    for goal in GOALS:
        p = plan(goal)
        assert set(p.levers) | set(p.layout["left_out"]) == set(LEVERS)
        assert all(p.layout["left_out"].values())


@pytest.mark.parametrize(
    ("cores", "cpus", "threads"),
    [(1, 1.0, 1), (2, 2.0, 1), (8, 8.0, 7), (8, 2.5, 1), (4, 16.0, 3), (8, 0.5, 1)],
)
def test_threads_follow_quota_and_physical_cores_and_leave_one(cores: int, cpus: float, threads: int) -> None:
    assert values(plan("edge", on=machine(cores=cores, cpus=cpus)))["threads"] == threads


@pytest.mark.parametrize(("itl", "batch"), [(20, 128), (50, 128), (100, 256), (400, 512)])
def test_the_latency_batch_follows_the_itl_objective(itl: int, batch: int) -> None:
    p = plan("latency", f"slo.itl_p99_ms={itl}")
    assert p.levers["max_num_batched_tokens"].value == batch
    assert p.levers["ubatch_tokens"].value <= batch


def test_lossless_agents_keep_every_bit() -> None:
    p = plan("agent", "lossless=true")
    assert p.levers["kv_cache_dtype"].value == "f16"
    assert p.levers["cache_reuse_tokens"].value == 0
    assert all(d.lossless for d in p.levers.values())
    assert not p.violations


def test_a_lossy_plan_says_so_first() -> None:
    p = plan("agent")
    assert p.warnings[0].startswith("can change answers: kv_cache_dtype=q8_0")


def test_kv_blocks_that_do_not_divide_a_head_are_not_taken() -> None:
    d = plan("agent", of=CARDS["odd heads"]).levers["kv_cache_dtype"]
    assert (d.value, d.rule) == ("f16", "kv_f16_by_shape")


@pytest.mark.parametrize(("which", "word"), [("mha", "MHA"), ("hybrid", "hybrid")])
def test_agents_are_warned_of_models_that_hold_little(which: str, word: str) -> None:
    p = plan("agent", of=CARDS[which], on=machine(cores=64, memory_gib=512))
    assert any(word in w for w in p.warnings)


def test_a_workload_longer_than_the_model_is_said() -> None:
    p = plan("agent", of=CARDS["mha"], on=machine(memory_gib=512))
    assert any("6400 tokens, more than 4096" in w for w in p.warnings)


def test_agents_share_a_pool_that_shrinks_before_the_context_does() -> None:
    p = plan("agent", of=LLAMA_8B, on=machine(memory_gib=24))
    v = values(p)
    assert v["max_model_len"] == 131072
    assert v["max_model_len"] <= v["kv_cache_tokens"] < 4 * 131072
    assert not p.violations
    assert p.levers["kv_cache_tokens"].rejected[0].value == 4 * 131072


def test_throughput_gives_up_slots_where_memory_is_short() -> None:
    full, short = (values(plan("throughput", of=LLAMA_8B, on=machine(memory_gib=g))) for g in (32, 8))
    assert short["max_num_seqs"] < full["max_num_seqs"]
    assert short["max_model_len"] == full["max_model_len"]


def test_edge_takes_fewer_bits_only_where_memory_is_short() -> None:
    big = card(layers=32, kv_heads=32, heads=32, head_dim=128, weights_bytes=2**30)
    roomy, tight = (plan("edge", of=big, on=machine(memory_gib=g)) for g in (8, 1.55))
    assert roomy.levers["kv_cache_dtype"].value == "f16"
    assert tight.levers["kv_cache_dtype"].value == "q8_0"
    assert tight.levers["kv_cache_dtype"].rule == "memory_fit"
    assert not tight.violations


def test_the_prompt_cache_is_planned_within_memory() -> None:
    p = plan("agent", of=LLAMA_8B, on=machine(memory_gib=24))
    assert p.levers["kv_offload_bytes"].value < 8 * 2**30
    assert p.predictions["host_memory_bytes"].value <= p.predictions["host_memory_available_bytes"].value
    assert plan("edge").levers["kv_offload_bytes"].value == 0


def test_all_layers_go_to_a_gpu_that_holds_them() -> None:
    p = plan("latency", of=LLAMA_8B, on=machine(gpus=[gpu(0, 24)]))
    assert p.levers["gpu_layers"].value == LLAMA_8B.layers + 1
    assert p.levers["device_ids"].value == ["GPU-0"]
    assert p.predictions["gpu_memory_bytes"].value <= p.predictions["gpu_memory_available_bytes"].value


def test_a_smaller_pool_comes_before_layers_on_the_cpu() -> None:
    v = values(plan("agent", of=LLAMA_8B, on=machine(gpus=[gpu(0, 24)])))
    assert v["gpu_layers"] == LLAMA_8B.layers + 1
    assert v["kv_cache_tokens"] < 4 * 131072


def test_a_model_too_large_for_its_gpu_is_split_by_layers() -> None:
    p = plan("edge", of=LLAMA_8B, on=machine(gpus=[gpu(0, 4)]))
    assert 0 < p.levers["gpu_layers"].value < LLAMA_8B.layers
    assert not p.violations


def test_the_embedded_engine_stays_on_the_cpu_and_says_why() -> None:
    d = plan("edge", on=machine(gpus=[gpu(0, 24)]), engine=EMBEDDED).levers["gpu_layers"]
    assert d.value == 0
    assert "embedded" in d.reason


def test_held_devices_are_left_alone() -> None:
    both = machine(gpus=[gpu(0, 24), gpu(1, 24)])
    p = plan("latency", on=both, reservations=Reservations(devices=("GPU-0",)))
    assert p.levers["device_ids"].value == ["GPU-1"]


def test_an_engine_without_look_up_gets_none() -> None:
    import dataclasses

    old = dataclasses.replace(
        EMBEDDED, flags=tuple(f for f in EMBEDDED.flags if "--spec-type" not in f.spellings)
    )
    d = plan("latency", engine=old).levers["speculative"]
    assert (d.value, d.rule) == ("off", "no_ngram_here")


def test_a_draft_model_is_counted_and_named_by_its_file() -> None:
    draft = card(name="draft", path="/models/draft.gguf")
    spec = "speculative={method: draft_model, model: draft, num_tokens: 4}"
    p = plan("latency", spec, of=card(layers=60), draft=draft)
    assert p.levers["speculative"].value == {
        "method": "draft_model", "model": "/models/draft.gguf", "num_tokens": 4
    }  # fmt: skip
    assert p.predictions["weights_bytes"].value > 2 * draft.weights_bytes


def test_speed_is_unknown_and_not_invented() -> None:
    p = plan("edge").predictions
    assert [(p[n].value, p[n].basis) for n in ("ttft_ms", "tpot_ms", "output_tokens_per_s")] == [
        (None, "unknown")
    ] * 3


LARGE = card(
    name="24-gb",
    layers=64,
    heads=40,
    kv_heads=8,
    head_dim=128,
    hidden_size=5120,
    vocab_size=152064,
    context_length=131072,
    weights_bytes=24_000_000_000,
)


@pytest.mark.parametrize("where", ["1xl4", "1xrtx4090"])
def test_a_pool_takes_no_layers_from_the_gpu_beyond_the_workload_s_own_need(where: str) -> None:
    from orchestrator.machine import load

    there, need = load(where), 4 * 6400
    p = plan("agent", of=LARGE, on=there)
    least = plan("agent", f"kv_cache_tokens={need}", "max_model_len=6400", of=LARGE, on=there)
    v = values(p)
    assert not p.violations
    assert LARGE.layers + 1 > v["gpu_layers"] >= values(least)["gpu_layers"] > 0
    assert v["kv_cache_tokens"] >= need
    # a pool as large as the host could hold as well would leave fewer
    wide = plan("agent", "kv_cache_tokens=131072", of=LARGE, on=there)
    assert values(wide)["gpu_layers"] < v["gpu_layers"]


def test_a_gpu_that_stays_unused_is_said() -> None:
    from orchestrator.machine import load

    p = plan("edge", on=load("1xl4"), engine=EMBEDDED)
    assert any("NVIDIA L4" in w and "unused" in w for w in p.warnings)
    assert not any(
        "unused" in w for w in plan("edge", "gpu_layers=0", on=load("1xl4"), engine=EMBEDDED).warnings
    )
    assert not any("unused" in w for w in plan("edge", on=load("1xl4")).warnings)


def test_a_context_below_the_workload_is_said_with_the_lever() -> None:
    warnings = plan("edge", "max_model_len=10").warnings
    assert any("768 tokens, more than max_model_len=10: " in w for w in warnings)


def test_a_limit_on_kv_is_the_reason_where_it_is_what_bounds() -> None:
    big = card(layers=32, kv_heads=32, heads=32, head_dim=128, weights_bytes=2**30)
    p = plan("edge", "kv_cache_bytes=220MiB", of=big)
    assert not p.violations
    fitted = [d for d in p.levers.values() if d.rule == "memory_fit"]
    assert fitted
    assert all("220 MiB of KV that kv_cache_bytes allows" in d.reason for d in fitted)


def test_who_asked_for_exact_answers_is_named() -> None:
    (v,) = plan("edge", "lossless=true", "kv_cache_dtype=q8_0").violations
    assert "--set lossless=true was given" in v.message


@pytest.mark.parametrize(
    ("args", "named"),
    [
        ("['--rope-scaling', 'yarn']", "--rope-scaling"),
        ("['--lora', '/a.gguf']", "--lora"),
        ("['--override-kv', 'llama.context_length=int:16384']", "--override-kv"),
    ],
)
def test_raw_flags_that_may_change_answers_are_said_where_they_must_not(args: str, named: str) -> None:
    sets = [f"engine_args.llamacpp={args}", "lossless=true"]
    assert any("may change answers" in w and named in w for w in plan("edge", *sets).warnings)
    quiet = plan("edge", "engine_args.llamacpp=['--top-k', '3']", "lossless=true")
    assert not any("may change" in w for w in quiet.warnings)


@pytest.mark.parametrize(("threads", "warned"), [(7, False), (8, True)])
def test_threads_that_leave_no_core_free_are_said(threads: int, warned: bool) -> None:
    p = plan("edge", f"threads={threads}")
    assert not p.violations
    assert any("physical cores free" in w for w in p.warnings) is warned
