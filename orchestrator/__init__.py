"""llmserve: a goal goes in, a running, verified, supervised LLM server comes out."""

__version__ = "0.1.0"
