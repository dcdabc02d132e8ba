"""What holds for every plan, over cards, machines, goals and levers that somebody set."""

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from planning_inputs import CARDS, EMBEDDED, GOALS, SERVER, gpu, inputs, machine

from orchestrator.plan import Plan
from orchestrator.planning.planner import make_plan

_SETS: dict[str, st.SearchStrategy[Any]] = {
    "max_num_seqs": st.integers(1, 400),
    "max_model_len": st.integers(1, 300_000),
    "max_num_batched_tokens": st.integers(1, 4096),
    "ubatch_tokens": st.integers(1, 4096),
    "kv_cache_dtype": st.sampled_from(["f16", "q8_0", "q4_0", "f32", "fp16"]),
    "kv_unified": st.booleans(),
    "kv_cache_tokens": st.integers(1, 1_000_000),
    "kv_cache_bytes": st.integers(0, 2**36),
    "kv_offload_bytes": st.integers(0, 2**16).map(lambda mib: mib << 20),
    "flash_attention": st.sampled_from(["on", "off"]),
    "gpu_layers": st.integers(0, 100),
    "gpu_memory_utilization": st.floats(0.05, 1),
    "threads": st.integers(1, 128),
    "prefix_caching": st.booleans(),
    "cache_reuse_tokens": st.integers(0, 512),
    "chunked_prefill": st.booleans(),
    "scheduling_policy": st.sampled_from(["fcfs", "priority"]),
    "block_size": st.integers(1, 64),
    "replicas": st.integers(1, 3),
}
_sets = st.lists(st.sampled_from(sorted(_SETS)), max_size=3, unique=True).flatmap(
    lambda names: st.fixed_dictionaries({name: _SETS[name] for name in names})
)
_machines = st.builds(
    machine,
    cores=st.integers(1, 64),
    memory_gib=st.floats(0.3, 1000),
    gpus=st.lists(
        st.sampled_from([gpu(0, 8), gpu(1, 24, 20), gpu(2, 80), gpu(3, 2)]), max_size=4, unique=True
    ),
)
_cases = st.tuples(
    st.sampled_from(GOALS),
    st.sampled_from(sorted(CARDS)),
    _machines,
    st.sampled_from([EMBEDDED, SERVER]),
    _sets,
)


def _write(value: Any) -> str:
    return json.dumps(value)


def _made(case: Any) -> tuple[Plan, dict[str, Any]]:
    goal, which, on, engine, chosen = case
    sets = [f"{name}={_write(v)}" for name, v in chosen.items()]
    return make_plan(inputs(goal, *sets, of=CARDS[which], on=on, engine=engine)), chosen


@settings(max_examples=150, deadline=None, derandomize=True)
@given(_cases)
def test_a_plan_keeps_what_was_set_fits_and_survives_json(case: Any) -> None:
    plan, chosen = _made(case)
    data = plan.to_json()
    text = json.dumps(data, sort_keys=True)
    assert json.loads(text) == data

    # what somebody set is kept exactly, by the rule "user"
    for name, value in chosen.items():
        if name == "chunked_prefill" and value is False:
            assert name in plan.not_expressible
        elif name == "prefix_caching" and value is True:
            assert plan.levers[name].value is True
        else:
            assert plan.levers[name].value == value, name

    for name, d in plan.levers.items():
        assert all(r.value != d.value for r in d.rejected), name

    # the same inputs, the same plan; and its JSON is a plan again
    assert json.dumps(_made(case)[0].to_json(), sort_keys=True) == text
    assert Plan.from_json(json.loads(text)).to_json() == data

    for v in plan.violations:
        assert all((v.code, v.message, v.remedy)), v
    if plan.violations:
        assert not plan.steps_down
        return

    p = {name: x.value for name, x in plan.predictions.items()}
    assert p["host_memory_bytes"] <= p["host_memory_available_bytes"]
    assert p["gpu_memory_bytes"] <= p["gpu_memory_available_bytes"]
    v = {name: d.value for name, d in plan.levers.items()}
    assert v["max_model_len"] <= plan.model["context_length"]
    assert v["ubatch_tokens"] <= v["max_num_batched_tokens"]
    assert v["kv_cache_tokens"] >= v["max_model_len"]
    if not v["kv_unified"]:
        assert v["kv_cache_tokens"] >= v["max_num_seqs"] * v["max_model_len"]
    assert p["max_concurrency"] <= v["max_num_seqs"]
    for lower in plan.steps_down.values():
        smaller = Plan.from_json(lower)
        assert not smaller.steps_down
        assert not smaller.violations
        q = {name: x.value for name, x in smaller.predictions.items()}
        assert q["kv_bytes"] < p["kv_bytes"] or q["compute_bytes"] < p["compute_bytes"]
        assert q["host_memory_bytes"] <= p["host_memory_bytes"]
        for name in chosen:
            assert smaller.levers[name].value == v[name]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.sampled_from(GOALS),
    st.sampled_from(sorted(CARDS)),
    st.integers(1, 64),
    st.sampled_from([2.0, 6.0, 16.0, 60.0]),
)
def test_the_remedy_for_memory_is_a_figure_that_works(
    goal: str, which: str, slots: int, memory_gib: float
) -> None:
    of, on = CARDS[which], machine(memory_gib=memory_gib)
    asked = [f"max_num_seqs={slots}", f"max_model_len={of.context_length}"]
    plan = make_plan(inputs(goal, *asked, of=of, on=on))
    for v in plan.violations:
        if v.code == "memory" and v.remedy.endswith(" fits"):
            sets = v.remedy.removesuffix(" fits").split("--set ")[1:]
            mended = make_plan(inputs(goal, *(s.strip() for s in sets), of=of, on=on))
            assert not mended.violations
        elif v.code == "memory":
            assert "too large here" in v.remedy
