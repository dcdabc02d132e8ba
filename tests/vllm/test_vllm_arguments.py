"""Our reading of an argument list against what the real parser of vLLM 0.32.0 said to the same list.

parser-0.32.0.jsonl: each list behind `vllm serve MODEL`, whether its own parser took it, and what that set
(real_parser.py asks; values that stand for objects were left out).
"""

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.engines.base import Flag, Installation
from orchestrator.engines.command_line import negates, parse, size
from orchestrator.engines.vllm import arguments
from orchestrator.engines.vllm.captured import captured

VERDICTS = [
    json.loads(line)
    for line in (Path(__file__).parent / "parser-0.32.0.jsonl").read_text(encoding="utf-8").splitlines()
]
REAL = captured("0.32.0", "cpu")


def read(*argv: str) -> dict[str, Any]:
    return arguments.parse(argv, REAL).values


@pytest.mark.parametrize("verdict", VERDICTS, ids=lambda v: " ".join(v["argv"]))
def test_we_take_and_refuse_what_the_real_parser_takes_and_refuses(verdict: dict[str, Any]) -> None:
    parsed = arguments.parse(verdict["argv"], REAL)
    assert (parsed.ok and not parsed.positionals) == verdict["ok"]
    if verdict["ok"]:
        ours = {name[2:].replace("-", "_"): value for name, value in parsed.values.items()}
        assert verdict["set"].items() <= ours.items()


def test_the_verdicts_are_of_both_kinds() -> None:
    assert sum(v["ok"] for v in VERDICTS) > 80
    assert sum(not v["ok"] for v in VERDICTS) > 40


def test_dotted_keys_grow_one_object_and_lists_in_it() -> None:
    argv = [
        "--speculative-config.method",
        "ngram",
        "-sc.num_speculative_tokens=4",
        "-cc.a.b+",
        "1,2",
        "-cc.a.b+=3",
    ]
    assert read(*argv) == {
        "--speculative-config": {"method": "ngram", "num_speculative_tokens": 4},
        "--compilation-config": {"a": {"b": ["1", "2", "3"]}},
    }


def test_the_last_one_given_counts() -> None:
    assert read("--max-num-seqs", "4", "--max_num_seqs=8") == {"--max-num-seqs": 8}
    assert read("--enforce-eager", "--no-enforce-eager") == {"--enforce-eager": False}


def test_the_optimization_level_is_spelled_out_by_version() -> None:
    assert read("-O1") == read("-O", "1") == read("-O=1") == {"--optimization-level": "1"}
    old = captured("0.10.0")
    assert arguments.parse(["-O3"], old).values == {"--compilation-config": {"level": 3}}


def test_the_words_of_a_refusal_are_kept_by_kind() -> None:
    parsed = arguments.parse(
        ["--nope", "3", "--enable", "--seed", "--max-num-seqs", "x", "stray", "--block-size"], REAL
    )
    assert parsed.unknown == ("--nope",)
    assert set(parsed.ambiguous) == {"--enable"}
    assert parsed.incomplete == ("--seed", "--block-size")
    assert parsed.bad == (("--max-num-seqs", "x"),)
    assert parsed.positionals == ("stray",)


def test_nothing_is_shortened_or_rewritten_unless_the_engine_does() -> None:
    assert parse(["--max-num-s", "4"], REAL).unknown == ("--max-num-s",)
    assert parse(["--max_num_seqs", "4"], REAL).unknown == ("--max_num_seqs",)
    assert parse(["-cc.mode", "3"], REAL).unknown == ("-cc.mode",)


def test_a_switch_is_negated_by_either_word() -> None:
    flag = Flag(("--enable-x", "--disable-x", "--no-enable-x"), False, type="bool")
    assert [negates(flag, s) for s in flag.spellings] == [False, True, True]
    away = Flag(("--disable-y", "--no-disable-y", "--enable-y", "-y"), False, type="bool")
    assert [negates(away, s) for s in away.spellings] == [False, True, True, False]


def test_sizes_have_two_kinds_of_thousand() -> None:
    assert [size(t) for t in ("2k", "2K", "1.5k", "7")] == [2000, 2048, 1500, 7]
    with pytest.raises(ValueError, match=r"1\.5"):
        size("1.5K")


def test_another_table_under_the_same_names_is_not_mixed_up() -> None:
    for n in range(200):
        flag = Flag((f"--flag-{n}",), True, type="int")
        one = Installation("x", "x", "1", ("x",), (flag,))
        assert parse([f"--flag-{n}", "1"], one).values == {f"--flag-{n}": 1}
