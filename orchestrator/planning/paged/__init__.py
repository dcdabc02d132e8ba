"""The planner's branch for engines with a paged KV pool: vLLM and SGLang."""
