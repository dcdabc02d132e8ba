"""What is known of a model family before it runs: parsers, lowest versions, required arguments, drafts."""

from orchestrator.model_families.families import Draft, Family, Requirements, family, gpu_generation

__all__ = ["Draft", "Family", "Requirements", "family", "gpu_generation"]
