"""What a checkpoint is, from its headers alone: GGUF file, Hugging Face folder, or hub id. Never weights."""

from orchestrator.model_card.card import HybridState, ModelCard

__all__ = ["HybridState", "ModelCard"]
