import re

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.engines.base import Installation
from orchestrator.engines.llamacpp.help_text import parse_help


def test_every_flag_line_of_the_real_help_is_read(help_text: str) -> None:
    told = parse_help(help_text)
    lines = [line for line in help_text.splitlines() if re.match(r"-{1,2}\w", line)]
    removed = help_text.count("the argument has been removed")
    assert len(told.flags) + removed == len(lines)
    assert len(set(told.env)) == help_text.count("(env: ") - 2  # two of the removed ones have a variable


def test_spellings_values_choices_and_defaults_are_what_the_help_says(binary: Installation) -> None:
    context = binary.flag("-c")
    assert context is not None
    assert (context.spellings, context.takes_value, context.default) == (("-c", "--ctx-size"), True, "0")
    unified = binary.flag("--no-kv-unified")
    assert unified is not None
    assert not unified.takes_value
    assert "-kvu" in unified.spellings
    kinds = binary.flag("--cache-type-v")
    assert kinds is not None
    assert kinds.choices == ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
    for spelling, choices in {
        "--flash-attn": ("on", "off", "auto"),
        "--split-mode": ("none", "layer", "row", "tensor"),
        "--load-mode": ("auto", "none", "mmap", "mlock", "mmap+mlock", "dio"),
        "--cpu-strict": ("0", "1"),
        "--tensor-split": (),
        "--poll": (),
    }.items():
        flag = binary.flag(spelling)
        assert flag is not None, spelling
        assert flag.choices == choices
    speculation = binary.flag("--spec-type")
    assert speculation is not None
    assert "ngram-map-k4v" in speculation.choices
    assert speculation.default == "none"


def test_variables_lead_to_their_flags(binary: Installation) -> None:
    assert binary.extras["variables"]["LLAMA_ARG_CTX_SIZE"] == "-c"
    assert binary.extras["variables"]["LLAMA_API_KEY"] == "--api-key"


def test_removed_flags_are_no_flags_and_keep_their_advice(binary: Installation) -> None:
    assert binary.flag("--draft-max") is None
    assert binary.extras["removed"]["--draft-max"] == "use --spec-draft-n-max or --spec-ngram-mod-n-max"


def test_an_older_help_with_a_bare_flash_attention_switch_is_read() -> None:
    old = (
        "-fa,   --flash-attn                     enable Flash Attention (default: disabled)\n"
        "                                        (env: LLAMA_ARG_FLASH_ATTN)\n"
        "--mlock                                 force system to keep model in RAM\n"
    )
    told = parse_help(old)
    assert [(f.spellings, f.takes_value, f.default) for f in told.flags] == [
        (("-fa", "--flash-attn"), False, "disabled"),
        (("--mlock",), False, None),
    ]


@given(st.text(alphabet=st.sampled_from("-ab ,:<>{}|[]()\n.=N'\x00é"), max_size=400))
def test_any_text_is_survived(text: str) -> None:
    told = parse_help(text)
    assert all(s.startswith("-") for f in told.flags for s in f.spellings)
