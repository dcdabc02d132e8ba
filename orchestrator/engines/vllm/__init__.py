"""vLLM: a Python environment that holds the package `vllm`, asked through its own parser."""
