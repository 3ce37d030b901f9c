"""Models behind one port: `open_model` gives the adapter for an `LLM` resource."""

from decurion_worker.models.open import open_model
from decurion_worker.models.openai import OpenAIModel
from decurion_worker.models.port import (
    Call,
    ChatModel,
    ChatRequest,
    ChatResponse,
    FinishReason,
    Message,
    ToolDefinition,
    Usage,
)
from decurion_worker.models.retry import call_with_retries, with_retries
from decurion_worker.models.scripted import ScriptedModel
from decurion_worker.models.structured import is_text, parse_output, repair_messages

__all__ = [
    "Call",
    "ChatModel",
    "ChatRequest",
    "ChatResponse",
    "FinishReason",
    "Message",
    "OpenAIModel",
    "ScriptedModel",
    "ToolDefinition",
    "Usage",
    "call_with_retries",
    "is_text",
    "open_model",
    "parse_output",
    "repair_messages",
    "with_retries",
]
