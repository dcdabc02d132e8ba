import pytest

from orchestrator.engines.failure_signatures import filled


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"what": "", "why": "libcuda.so.1"}, "a library cannot be loaded: libcuda.so.1"),
        ({"what": "libcuda.so.1", "why": ""}, "a library cannot be loaded: libcuda.so.1"),
        ({"why": "", "what": ""}, "a library cannot be loaded"),
    ],
)
def test_of_alternatives_in_one_row_the_one_that_spoke_is_told(words: dict[str, str], said: str) -> None:
    assert filled("a library cannot be loaded: {what}{why}", words) == said


def test_braces_of_yaml_in_a_remedy_stay() -> None:
    remedy = "use --set 'speculative={method: ngram, num_tokens: 4}' on {port}"
    assert filled(remedy, {"port": "8000"}) == remedy.replace("{port}", "8000")


def test_a_word_that_is_not_said_takes_its_place_along() -> None:
    said = "no memory is left for KV at mem_fraction_static {fraction}, on {gpu}"
    assert filled(said, {"fraction": "", "gpu": "GPU 0"}) == "no memory is left for KV, on GPU 0"
