from __future__ import annotations

import dataclasses
import json
import threading
from pathlib import Path

import pytest
from checkpoint_files import CONFIG, LLAMA, TENSORS, gguf, safetensors
from hub_stand_in import Hub

from orchestrator import model_store
from orchestrator.errors import LlmserveError
from orchestrator.model_card import read_card

BIG = 3 << 20
WEIGHTS = safetensors({"a": ("BF16", [BIG // 2], BIG)})


@pytest.fixture
def tiny(hub: Hub) -> Hub:
    hub.repositories["org/tiny"] = {
        "config.json": json.dumps(CONFIG).encode(),
        "tokenizer_config.json": json.dumps({"chat_template": "x"}).encode(),
        "tokenizer.json": b"{}",
        "model.safetensors": WEIGHTS,
        "pytorch_model.bin": b"x" * 1000,
        "README.md": b"hello",
        "onnx/model.onnx": b"y",
    }
    return hub


def refusal(call: object, *args: object, **kw: object) -> LlmserveError:
    with pytest.raises(LlmserveError) as e:
        call(*args, **kw)  # type: ignore[operator]
    assert e.value.exit_code == 3
    assert e.value.remedy
    return e.value


def test_a_card_comes_from_headers_and_never_from_weights(tiny: Hub) -> None:
    c = read_card("org/tiny")
    assert (c.format, c.weights_bytes, c.weights_estimated, c.path) == ("safetensors", BIG, False, None)
    assert (c.name, c.chat_template, c.layers) == ("org/tiny", True, 2)
    assert tiny.sent_bytes < 200_000


def test_a_server_without_ranges_sends_no_more_than_is_read(tiny: Hub) -> None:
    tiny.ranges = False
    assert read_card("org/tiny").weights_bytes == BIG


def test_a_gguf_repository_is_read_by_ranges(hub: Hub) -> None:
    data = gguf(LLAMA, [*TENSORS, ("x", (BIG // 4,), 0, BIG)])
    hub.repositories["org/one"] = {"m.gguf": data, "mmproj-m.gguf": b"GGUF"}
    c = read_card("org/one")
    assert (c.format, c.quantization, c.weights_bytes) == ("gguf", "Q8_0", BIG + sum(t[3] for t in TENSORS))
    assert hub.sent_bytes < BIG // 2


def test_several_gguf_models_ask_which(hub: Hub) -> None:
    hub.repositories["org/many"] = {"a-Q4_0.gguf": gguf(), "a-Q8_0.gguf": gguf()}
    e = refusal(model_store.pull, "org/many")
    assert e.code == "model_ambiguous"
    assert "--file a-Q4_0.gguf" in e.remedy
    assert model_store.pull("org/many", file="a-Q8_0.gguf").path.endswith("/a-Q8_0.gguf")
    assert hub.fetched("a-Q4_0.gguf") == []


def test_a_pulled_model_has_its_weights_and_the_small_files_and_works_offline(
    tiny: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    got = model_store.pull("org/tiny")
    names = {p.name for p in Path(got.folder).iterdir()}
    assert names == {
        "config.json",
        "tokenizer_config.json",
        "tokenizer.json",
        "model.safetensors",
        ".llmserve-model.json",
    }
    assert (got.name, got.path, got.origin) == ("org/tiny", got.folder, "hub:org/tiny")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    r = model_store.resolve("org/tiny")
    assert (r.name, r.path, r.card.name, r.card.source) == ("org/tiny", got.folder, "org/tiny", "org/tiny")


def test_a_dropped_connection_goes_on_inside_one_pull(tiny: Hub) -> None:
    tiny.cut["model.safetensors"] = 1 << 20
    got = model_store.pull("org/tiny")
    assert (Path(got.path) / "model.safetensors").read_bytes() == WEIGHTS
    assert tiny.fetched("model.safetensors")[1:] == [f"bytes={1 << 20}-"]


def test_a_pull_cut_in_the_middle_resumes_where_it_stopped(tiny: Hub, home: Path) -> None:
    tiny.cut["model.safetensors"] = 1 << 20
    tiny.ill_after_cut = True
    e = refusal(model_store.pull, "org/tiny")
    assert e.code == "hub_unreachable"
    assert model_store.stored() == []
    assert refusal(model_store.resolve, "org/tiny", fetch=False).code == "model_not_found"
    tiny.requests.clear()
    tiny.ill_after_cut, tiny.broken, tiny.sent_bytes = False, set(), 0
    got = model_store.pull("org/tiny")
    assert (Path(got.path) / "model.safetensors").read_bytes() == WEIGHTS
    assert tiny.fetched("model.safetensors") == [f"bytes={1 << 20}-"]
    assert tiny.sent_bytes < BIG
    assert not (home / ".partial" / "org--tiny").exists()


def test_pulling_again_fetches_nothing_and_mends_what_is_damaged(tiny: Hub) -> None:
    got = model_store.pull("org/tiny")
    tiny.requests.clear()
    again = model_store.pull("org/tiny")
    assert (got.fetched, again) == (True, dataclasses.replace(got, fetched=False))
    assert [p for m, p, _ in tiny.requests if "/resolve/" in p] == []
    weights = Path(got.path) / "model.safetensors"
    weights.write_bytes(WEIGHTS[:-1000])
    e = refusal(model_store.resolve, "org/tiny")
    assert e.code == "model_unreadable"
    assert "models pull org/tiny" in e.remedy
    assert model_store.pull("org/tiny") == got
    assert weights.read_bytes() == WEIGHTS
    assert tiny.fetched("tokenizer.json") == []


def test_damage_that_keeps_size_and_time_is_found_by_a_full_verification(tiny: Hub) -> None:
    import os

    got = model_store.pull("org/tiny")
    weights = Path(got.path) / "model.safetensors"
    was = weights.stat()
    weights.write_bytes(WEIGHTS[:-1] + b"\1")
    os.utime(weights, ns=(was.st_atime_ns, was.st_mtime_ns))
    assert model_store.verify(got) == ["model.safetensors has other content than what was fetched"]
    model_store.pull("org/tiny")
    assert weights.read_bytes() == WEIGHTS


def test_a_new_commit_replaces_the_old_copy(tiny: Hub) -> None:
    model_store.pull("org/tiny")
    tiny.commit = "d00d" + "0" * 36
    tiny.repositories["org/tiny"]["tokenizer.json"] = b'{"new": 1}'
    got = model_store.pull("org/tiny")
    assert got.commit == tiny.commit
    assert (Path(got.path) / "tokenizer.json").read_bytes() == b'{"new": 1}'


def test_patterns_choose_files(tiny: Hub) -> None:
    got = model_store.pull("org/tiny", include=("*.json",))
    assert read_card(got.path).format == "config"
    e = refusal(model_store.pull, "org/tiny", include=("*.nothing",))
    assert "matches *.nothing" in e.message


def test_a_split_gguf_is_pulled_whole(hub: Hub) -> None:
    hub.repositories["org/split"] = {
        "q/m-00001-of-00002.gguf": gguf(LLAMA | {"split.count": ("H", 2)}),
        "q/m-00002-of-00002.gguf": gguf({}, [("x", (32,), 0, 128)]),
    }
    got = model_store.pull("org/split", file="q/m-00002-of-00002.gguf")
    assert got.path.endswith("/q/m-00001-of-00002.gguf")
    assert model_store.resolve("org/split").card.name == "org/split"


def test_progress_speaks_of_bytes_done_and_in_all(tiny: Hub) -> None:
    seen: list[tuple[int, int | None]] = []
    looked = threading.Event()
    tiny.hold["model.safetensors"] = looked

    def look(done: int, total: int | None) -> None:
        seen.append((done, total))
        looked.set()

    model_store.pull("org/tiny", progress=look)
    assert seen
    assert all(total is not None and 0 <= done <= total for done, total in seen)


def test_wrong_content_is_never_believed(tiny: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    from orchestrator.model_card import hub as hub_module

    true = hub_module.look_up("org/tiny")
    lying = dict(true.files)
    lying["model.safetensors"] = hub_module.RemoteFile("model.safetensors", len(WEIGHTS), "0" * 64)
    monkeypatch.setattr(hub_module, "look_up", lambda *a: hub_module.Repository(true.id, true.commit, lying))
    e = refusal(model_store.pull, "org/tiny")
    assert e.code == "model_fetch_failed"
    assert "model.safetensors" in e.message
    assert model_store.stored() == []


def test_a_hub_cannot_name_a_file_outside_the_folder(tiny: Hub, home: Path) -> None:
    tiny.repositories["org/tiny"]["../../evil.json"] = b"{}"
    model_store.pull("org/tiny", include=("*.json", "*.safetensors"))
    assert not list(home.parent.rglob("evil.json"))


def test_gated_missing_and_unreachable_each_say_what_to_do(
    tiny: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny.gated.add("org/tiny")
    e = refusal(model_store.pull, "org/tiny")
    assert (e.code, "HF_TOKEN" in e.remedy) == ("model_gated", True)
    assert refusal(model_store.pull, "org/none").code == "model_not_found"
    tiny.private.add("org/secret")
    assert refusal(model_store.pull, "org/secret").code == "model_not_found"
    assert refusal(model_store.pull, "org/tiny", revision="v9").code == "model_not_found"
    assert "has no file no.gguf" in refusal(model_store.pull, "org/tiny", file="no.gguf").message
    assert refusal(model_store.pull, "nonsense").code == "model_not_found"
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert refusal(model_store.pull, "org/tiny").code == "hub_unreachable"
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert refusal(model_store.pull, "org/tiny").code == "hub_offline"


def test_a_token_comes_from_the_environment_and_is_never_shown(
    tiny: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "token").write_text("hf_from_a_file")
    tiny.gated.add("org/tiny")
    refusal(model_store.pull, "org/tiny")
    assert tiny.tokens == {None}
    monkeypatch.setenv("HF_TOKEN", "hf_secret_of_mine")
    e = refusal(model_store.pull, "org/tiny")
    assert "Bearer hf_secret_of_mine" in tiny.tokens
    assert "hf_secret" not in e.message + e.remedy
