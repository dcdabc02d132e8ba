"""An error is broken at blanks to the terminal's width; what is to be typed stays whole."""

import pytest

from orchestrator.cli.refusal import lines
from orchestrator.errors import Exit, LlmserveError

LONG = "the weights of this model take 131 GiB, and each of these devices gives 21.2 GiB of its 24, " * 2
COMMAND = "`llmserve engines install vllm --version 0.27.1`"


def refusal(remedy: str = COMMAND) -> LlmserveError:
    violations = [
        {
            "code": "weights_do_not_fit",
            "message": LONG,
            "remedy": f"a remedy of some length, {remedy} makes it",
        },
        {"code": "other", "message": "short", "remedy": "--set max_num_seqs=4"},
    ]
    return LlmserveError("no", LONG + "!", "one\n    two", exit_code=Exit.REFUSED, violations=violations)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_no_line_is_wider_than_the_terminal_and_no_word_is_lost(width: int) -> None:
    shown = lines(refusal(), width)
    assert max(map(len, shown)) <= width
    said = " ".join(" ".join(shown).split())
    for text in ("error: " + LONG, "• weights_do_not_fit: " + LONG, "→ --set max_num_seqs=4", "→ one two"):
        assert " ".join(text.split()) in said
    assert [line for line in shown if line.startswith("  • ")]


@pytest.mark.parametrize("width", [60, 64, 80])
def test_a_command_stays_on_one_line_where_it_fits(width: int) -> None:
    assert sum(COMMAND in line for line in lines(refusal(), width)) == 1


def test_a_word_wider_than_the_terminal_stays_whole() -> None:
    path = "/a" * 60
    assert any(path in line for line in lines(refusal(path), 40))
