import pytest
from sglang_lines import VALUES, rendered, words

from orchestrator.engines.sglang.captured import captured, versions
from orchestrator.engines.sglang.owned import OWNED, SECRETS, owner
from orchestrator.plan import Violation

NEWEST = captured("0.5.23")
OLD = captured("0.5.4")


def refusals(*args: str, version: str = "0.5.23", env: dict[str, str] | None = None) -> tuple[Violation, ...]:
    return rendered(captured(version), args=args, env=env).violations


def codes(*args: str, version: str = "0.5.23") -> list[str]:
    return [v.code for v in refusals(*args, version=version)]


@pytest.mark.parametrize(
    "args",
    [
        ("--tp-size", "4"), ("--tp-size=4",), ("--tensor-parallel-size", "4"), ("--tp", "4"),
        ("--tensor-par=4",), ("--mem-frac", "0.8"), ("--mem-fraction-static=0.8",), ("--ep", "2"),
        ("--expert-parallel-size", "2"), ("--model", "/m"), ("--served", "x"), ("--api-key", "secret"),
        ("--config", "all.yaml"), ("--disable-cuda-graph",), ("--enable-hicache",), ("--schedule-pol", "lpm"),
        ("--nccl-init-addr", "h:1"), ("--speculative-draft-model", "/d"), ("--dp", "2"),
    ],
)  # fmt: skip
def test_what_the_plan_owns_is_refused_in_every_spelling(args: tuple[str, ...]) -> None:
    (refusal,) = refusals(*args)
    assert refusal.code == "engine_args_owned"
    assert refusal.remedy.startswith(("use ", "leave it out"))


def test_a_shortened_flag_is_named_with_what_it_is_short_for() -> None:
    (refusal,) = refusals("--tp", "4")
    assert refusal.message == (
        "engine_args: --tp (short for --tp-size) sets --tp-size, which the plan decides"
    )
    assert refusal.remedy == "use --set tensor_parallel_size=N"


def test_a_key_is_not_repeated_in_its_refusal() -> None:
    assert not any("secret" in v.message + v.remedy for v in refusals("--api-key", "secret"))
    assert not any("secret" in v.message + v.remedy for v in refusals("--api-key=secret"))


def test_a_beginning_of_several_flags_is_ambiguous_as_it_is_for_sglang() -> None:
    (refusal,) = refusals("--pp", "2")
    assert refusal.code == "ambiguous_flag"
    assert "--pp-size, --pp-max-micro-batch-size, --pp-async-batch-depth" in refusal.message
    assert "--set pipeline_parallel_size=N" in refusal.remedy
    # what is unique changes with the version
    assert codes("--pp", "2", version="0.5.1") == ["engine_args_owned"]


def test_a_removed_flag_says_what_to_use_and_a_later_one_since_when() -> None:
    (refusal,) = refusals("--nsa-decode-backend", "fa3")
    assert (refusal.code, refusal.remedy) == ("removed_flag", "use --dsa-decode-backend")
    # a beginning of two others, and still the one that people remember
    (refusal,) = refusals("--cuda-graph-max-bs", "8")
    assert (refusal.code, refusal.remedy) == ("removed_flag", "use --cuda-graph-max-bs-decode")
    (refusal,) = refusals("--gated-launch-port", "1", version="0.5.4")
    assert refusal.code == "unknown_flag"
    assert "it came with SGLang 0.5.2" in refusal.message


def test_an_unknown_flag_names_the_nearest_and_underscores_are_no_dashes() -> None:
    (refusal,) = refusals("--watchdog-timeouts", "300")
    assert (refusal.code, refusal.remedy) == (
        "unknown_flag",
        "the nearest one it lists is --watchdog-timeout",
    )
    (refusal,) = refusals("--watchdog_timeout", "300")
    assert refusal.remedy == "write --watchdog-timeout: SGLang does not take underscores"


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (("--watchdog-timeout",), "missing_value"),
        (("--watchdog-timeout", "--sleep-on-idle"), "missing_value"),
        (("--watchdog-timeout", "long"), "bad_value"),
        (("--attention-backend", "fa9"), "bad_value"),
        (("--sleep-on-idle=1",), "bad_value"),
        (("7",), "stray_argument"),
        (("--sleep-on-idle", "yes"), "stray_argument"),
    ],
)
def test_what_sglangs_parser_would_refuse_is_refused_here(args: tuple[str, ...], code: str) -> None:
    assert codes(*args) == [code]


@pytest.mark.parametrize(
    "args",
    [
        ("--attention-backend", "fa3"), ("--attention-backend=fa3",), ("--watchdog-timeout", "60"),
        ("--sleep-on-idle",), ("--numa-node", "0", "1", "--sleep-on-idle"), ("--no-enable-tf32-matmul",),
        ("--json-model-override-args", '{"a": 1}'), ("--max-prefill-tokens", "16k"), ("--log-level", "debug"),
        ("--watchdog-t", "60"), ("--prefill-max-requests", "-1"),
    ],
)  # fmt: skip
def test_what_is_not_the_plans_passes(args: tuple[str, ...]) -> None:
    assert refusals(*args) == ()


def test_everything_wrong_is_said_at_once() -> None:
    assert codes("--tp", "2", "--nonsense", "3", "--pp", "2", "--watchdog-timeout") == [
        "engine_args_owned", "unknown_flag", "ambiguous_flag", "missing_value",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "args",
    [
        ("--ssl-keyfile-password", "hunter2"), ("--ssl-keyfile-password=hunter2",),
        ("--ssl-keyfile-p=hunter2",), ("--ssl-keyfile-pass", "hunter2"),
        ("--watermark-config", '{"key": "hunter2"}'), ("--watermark-c", ' {"key_b":"hunter2"}'),
        ("--hicache-storage-backend-extra-config", '{"secret_key": "hunter2"}'),
        ("--hicache-storage-backend-ex=" + '{"access_key": "hunter2"}',),
        ("--api-key", "hunter2"), ("--api-k=hunter2",), ("--admin-api-key=hunter2",), ("--admin", "hunter2"),
    ],
)  # fmt: skip
def test_a_secret_is_refused_in_every_spelling_and_not_repeated(args: tuple[str, ...]) -> None:
    (refusal,) = refusals(*args)
    assert refusal.code in ("engine_args_secret", "engine_args_owned")
    assert refusal.remedy
    assert "hunter2" not in refusal.message + refusal.remedy


@pytest.mark.parametrize(
    "args",
    [
        ("--watermark-config", "/etc/watermark.json"), ("--watermark-config", '{"max_probability": 0.5}'),
        ("--hicache-storage-backend-extra-config", "@/etc/store.json"),
        ("--hicache-storage-backend-extra-config", '{"bucket": "kv"}'), ("--ssl-ca-certs", "/etc/ca.pem"),
    ],
)  # fmt: skip
def test_a_flag_that_may_hold_a_secret_passes_where_it_holds_none(args: tuple[str, ...]) -> None:
    assert refusals(*args) == ()


def test_every_flag_that_may_hold_a_secret_is_one_that_some_version_lists() -> None:
    listed = {s for v in versions() for f in captured(v).flags for s in f.spellings}
    assert set(SECRETS) <= listed


def test_variables_that_the_plan_sets_are_refused() -> None:
    (refusal,) = refusals(env={"CUDA_VISIBLE_DEVICES": "0"})
    assert (refusal.code, refusal.remedy) == ("engine_args_owned", "use --set device_ids=[UUID, ...]")
    assert refusals(env={"SGLANG_LOG_MS": "1"}) == ()


@pytest.mark.parametrize("version", versions())
def test_every_flag_that_a_lever_emits_is_owned(version: str) -> None:
    installation = captured(version)
    # a default of the CPU backend, and a bound that goes with chunking off: both the user may set
    free = {"--attention-backend", "--max-prefill-tokens", "--disable-piecewise-cuda-graph"}
    free |= {"--cuda-graph-backend-prefill"}
    emitted = {
        word
        for lever, values in VALUES.items()
        for value in values
        for word in words(rendered(installation, **{lever: value}), installation)
        if word.startswith("--")
    }
    assert {f for f in emitted if owner(f, installation) is None} <= free


def test_every_owned_flag_is_one_that_some_version_lists() -> None:
    listed = {s for v in versions() for f in captured(v).flags for s in f.spellings}
    assert set(OWNED) <= listed


def test_the_order_of_the_devices_is_the_plans_too() -> None:
    (refusal,) = refusals(env={"CUDA_DEVICE_ORDER": "FASTEST_FIRST"})
    assert refusal.code == "engine_args_owned"
    assert "CUDA_DEVICE_ORDER" in refusal.message
