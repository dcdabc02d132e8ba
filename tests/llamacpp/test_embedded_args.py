from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.engines.base import Installation
from orchestrator.engines.llamacpp.embedded_args import EnumName, Refused, load_table, parse

TABLE = load_table()


def settings(*argv: str, **env: str) -> dict[str, object]:
    return parse(argv, env, TABLE)


REFUSALS = Path(__file__).parent / "llama-server-refusals.txt"
_LINES = REFUSALS.read_text(encoding="utf-8").splitlines()[1:]
SAID = [(line.split(), said.strip()) for line, said in zip(_LINES[::2], _LINES[1::2], strict=True)]


@pytest.mark.parametrize(("argv", "said"), SAID, ids=lambda v: " ".join(v) if isinstance(v, list) else "")
def test_a_wrong_command_line_is_refused_in_llama_servers_words(argv: list[str], said: str) -> None:
    with pytest.raises(Refused) as refusal:
        settings(*argv)
    assert str(refusal.value).splitlines()[0] == said


def test_a_wrong_variable_is_refused_in_llama_servers_words() -> None:
    with pytest.raises(
        Refused, match=r'error while handling environment variable "LLAMA_ARG_CTX_SIZE": stoi'
    ):
        settings(LLAMA_ARG_CTX_SIZE="abc")


def test_the_table_says_nothing_that_llama_server_does_not(binary: Installation, help_text: str) -> None:
    for row in TABLE.flags:
        listed = binary.flag(row.names[0])
        assert listed is not None, row.names
        assert set(row.names) | set(row.negated) == set(listed.spellings)
        assert bool(row.value) == listed.takes_value, row.names
        if row.env:
            assert binary.extras["variables"][row.env] == listed.spellings[0]
        if row.choices and listed.choices:
            assert set(row.choices) - {listed.default} == set(listed.choices) - {listed.default}
        if row.default is not None and listed.default is not None:
            assert row.default == listed.default, row.names
    for row in TABLE.removed:
        assert {binary.extras["removed"][n] for n in row.names} == {row.advice}


def test_slots_are_always_set_and_automatic_ones_share_a_buffer() -> None:
    assert settings()["n_parallel"] == 4
    assert settings("-np", "-1", "-no-kvu")["kv_unified"] is True
    assert settings("-np", "3")["n_parallel"] == 3
    assert "kv_unified" not in settings("-np", "3")


def test_a_later_host_wins_and_the_line_wins_over_the_environment() -> None:
    assert settings("--host", "127.0.0.1", "--host", "::1")["hostnames"] == ["::1"]
    assert settings("--ctx-size", "512", LLAMA_ARG_CTX_SIZE="1024")["n_ctx"] == 512
    assert settings(LLAMA_ARG_CTX_SIZE="1024")["n_ctx"] == 1024


def test_switches_their_opposites_and_underscores() -> None:
    assert settings("--no-kv-offload")["no_kv_offload"] is True
    assert settings("-kvo")["no_kv_offload"] is False
    assert settings("--no_cache_prompt")["cache_prompt"] is False
    assert settings(LLAMA_ARG_WARMUP="x")["n_parallel"] == 4  # no variable of ours
    assert settings(LLAMA_ARG_CONTEXT_SHIFT="on")["ctx_shift"] is True


def test_threads_of_batches_and_drafts_follow_where_they_are_not_set() -> None:
    made = settings("-t", "3", "--poll", "0", "--threads-draft", "2")
    assert made["cpuparams_batch.n_threads"] == 3
    assert made["cpuparams_batch.poll"] == 0
    assert made["speculative.draft.cpuparams_batch.n_threads"] == 2


def test_values_become_what_the_attributes_take(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("# mine\none\n\ntwo\n")
    made = settings(
        "--api-key", "a,b", "--api-key-file", str(keys), "--fit-target", "1,2", "--seed", "-1",
        "--rope-scale", "4", "-ngl", "all", "-ts", "3/1", "--cache-type-k", "q8_0",
        "--spec-type", "ngram-mod,draft-simple", "-c", "12abc", "--temp", "0.5",
    )  # fmt: skip
    assert made["api_keys"] == ["a", "b", "one", "two"]
    assert made["fit_params_target"] == [1 << 20, 2 << 20]
    assert made["sampling.seed"] == 2**32 - 1
    assert made["rope_freq_scale"] == 0.25
    assert made["n_gpu_layers"] == -2
    assert made["tensor_split"] == [3.0, 1.0]
    assert made["cache_type_k"] == EnumName("ggml_type", "GGML_TYPE_Q8_0")
    assert [e.member[-9:] for e in made["speculative.types"]] == ["NGRAM_MOD", "FT_SIMPLE"]  # type: ignore[attr-defined]
    assert made["n_ctx"] == 12
    assert made["sampler_bits"] == ["COMMON_PARAMS_SAMPLING_CONFIG_TEMP"]


@given(
    st.lists(
        st.one_of(
            st.sampled_from([n for f in TABLE.flags if "file" not in f.kind for n in f.names]),
            st.sampled_from(["1", "-1", "0", "on", "1e999", "nan", "", "a\0b", "9" * 30, "1,2", "é"]),
            st.text(max_size=5),
        ),
        max_size=6,
    )
)  # fmt: skip
def test_any_command_line_is_taken_or_refused(argv: list[str]) -> None:
    try:
        outcome: object = settings(*argv)["n_parallel"]
    except Refused as refusal:
        outcome = str(refusal)
    assert isinstance(outcome, int) or str(outcome).startswith("error")
