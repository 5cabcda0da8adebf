"""Halyard in Python: `LLM` for lists of prompts, `AsyncLLM` for streams, with vLLM's names."""

from halyard._async_llm import AsyncEngineArgs, AsyncLLM
from halyard._halyard import EngineDeadError, QueueFullError, __version__
from halyard._llm import LLM
from halyard._outputs import CompletionOutput, GenerationError, Logprob, RequestOutput
from halyard._params import (
    LoRARequest,
    RequestOutputKind,
    SamplingParams,
    StructuredOutputsParams,
)
from halyard._prompts import TextPrompt, TokensPrompt

AsyncLLMEngine = AsyncLLM
EngineArgs = AsyncEngineArgs

__all__ = [
    "LLM",
    "AsyncEngineArgs",
    "AsyncLLM",
    "AsyncLLMEngine",
    "CompletionOutput",
    "EngineArgs",
    "EngineDeadError",
    "GenerationError",
    "LoRARequest",
    "Logprob",
    "QueueFullError",
    "RequestOutput",
    "RequestOutputKind",
    "SamplingParams",
    "StructuredOutputsParams",
    "TextPrompt",
    "TokensPrompt",
    "__version__",
]
