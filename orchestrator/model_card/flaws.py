"""What is wrong with a checkpoint beside its figures: names that contradict, small files that are damaged. Of
a tokenizer, which may have many megabytes, only the ends are read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from orchestrator.errors import LlmserveError
from orchestrator.model_card.card import Flaw
from orchestrator.model_card.config import Config, classes
from orchestrator.model_card.reading import Damaged, LocalFile, read_json, reject_placeholder

_GENERATION = "generation_config.json"
_MAX_GENERATION_BYTES = 1 << 20
_END_BYTES = 256
_VOCABULARY = re.compile(
    r".*(tokeniz|vocab|merges|spiece|sentencepiece|bpe|tekken).*|.*\.(model|tiktoken)", re.IGNORECASE
)
_NOT_VOCABULARY = {"tokenizer_config.json", "tokenizer_config.yaml"}
_PLAIN = {"F64", "F32", "F16", "BF16"}
_STORED = ("fp8", "gptq", "awq")
"""Methods whose weights always are stored in a type of their own."""
_CALLED = re.compile(
    r"(?:.*[-_.])?(fp8|nvfp4|mxfp4|fp4|int4|int8|awq|gptq|w4a16|w8a8|w8a16)(?:[-_.].*)?", re.IGNORECASE
)


def of_config(
    c: Config, name: str, quantization: str | None, elements: Mapping[str, int] | None
) -> tuple[Flaw, ...]:
    """Of a config.json; `elements` are the stored tensors' by type, None where there are none."""
    return (*_class(c), *_quantized(c, name, quantization, elements))


def _class(c: Config) -> Iterator[Flaw]:
    """Engines choose their code by the class, whatever the model type."""
    named = c.get("architectures")
    mine = [str(n)[:128] for n in named[:8]] if isinstance(named, list) else []
    known = classes()["generators"] | classes()["transformers"]
    if mine and not known & set(mine) and not isinstance(c.outer.get("auto_map"), dict):
        what = f"names the class {mine[0]}, which is not known here: an engine that does not know it either"
        yield Flaw("unknown_class", f"{what} ends at start", False)


def _quantized(
    c: Config, name: str, quantization: str | None, elements: Mapping[str, int] | None
) -> Iterator[Flaw]:
    """vLLM 0.32.0 loads plain tensors as if they were fp8, and answers nonsense."""
    if elements is None:
        called = _CALLED.fullmatch(name.rpartition("/")[2])
        if called is not None and quantization is None:
            what = f"is called {called[1]}, and its config.json has no quantization_config: planned as it is"
            yield Flaw(
                "called_quantized",
                f"{what} there, not quantized (NVIDIA ModelOpt writes it into hf_quant_config.json, which is "
                "not beside it)",
                False,
            )
        return
    method = str(c.table("quantization_config").get("quant_method")).lower()
    if method in _STORED and set(elements) <= _PLAIN:
        what = f"says in its config.json that it is {method}, and all its tensors are {', '.join(elements)}"
        yield Flaw("weights_not_quantized", f"{what}: it would not load, or answer nonsense", True)


def of_folder(
    folder: Path, names: list[str], tokenizer_config: Mapping[str, Any], *, template: bool
) -> tuple[Flaw, ...]:
    """Of a folder with weights: `names` are its entries, `tokenizer_config` the file of that name, `template`
    whether it has a chat template."""
    found = [*_tokenizer(folder, names, tokenizer_config), *_generation(folder, names)]
    # Mistral's own tokenizer has a template of its own
    if not template and "tekken.json" not in names:
        what = "has no chat template: unless the engine brings one for it, requests to chat are refused"
        found.append(Flaw("no_chat_template", what, False))
    return tuple(found)


def _tokenizer(folder: Path, names: list[str], config: Mapping[str, Any]) -> Iterator[Flaw]:
    """transformers 5.19.0 models/auto/tokenization_auto.py: tokenizer.json first, else what its class needs;
    code of the repository may read anything. Mistral's own tokenizer.json is not read beside tekken.json."""
    files = [n for n in names if _VOCABULARY.fullmatch(n) and n not in _NOT_VOCABULARY]
    if not files:
        if not config.get("auto_map"):
            yield Flaw(
                "no_tokenizer", "holds no tokenizer (tokenizer.json, tokenizer.model or another)", True
            )
        return
    if "tekken.json" in files:
        files = ["tekken.json"]
    elif "tokenizer.json" in files:
        files = ["tokenizer.json"]
    for name in files:
        what = _damage(folder / name)
        if what is not None:
            yield Flaw("tokenizer_damaged", f"has a {name} that {what}", True)


def _damage(path: Path) -> str | None:
    """What is wrong with the ends of a tokenizer's file, None where nothing is."""
    try:
        with LocalFile(path) as f:
            reject_placeholder(f)
            head = f.read_at(0, _END_BYTES).lstrip(b"\xef\xbb\xbf \t\r\n")
            tail = f.read_at(max(0, f.size - _END_BYTES), _END_BYTES).rstrip()
    except Damaged as e:
        return str(e)
    except LlmserveError:
        # a folder, or not readable for this user: the engine may be started by another
        return None
    if path.suffix != ".json" or (head[:1] == b"{" and tail[-1:] == b"}"):
        return None
    return "is not JSON" if head[:1] != b"{" else "is cut: its end is missing"


def _generation(folder: Path, names: list[str]) -> Iterator[Flaw]:
    if _GENERATION not in names:
        return
    try:
        read_json(folder / _GENERATION, _MAX_GENERATION_BYTES)
    except LlmserveError as e:
        what = e.message.removeprefix(str(folder / _GENERATION)).strip()
        lost = "engines start without it, and its stop tokens and sampling are lost"
        yield Flaw("generation_config", f"has a {_GENERATION} that {what}: {lost}", False)
