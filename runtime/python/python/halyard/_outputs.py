"""Outputs with vLLM's fields, and how a stream's parts become one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from halyard._params import LoRARequest, RequestOutputKind

if TYPE_CHECKING:
    from halyard._halyard import Stream

# What the native module hands over.
TokenScore = tuple[int, float, int, str]
"""Token id, log-probability, rank, text."""
Part = tuple[int, str, list[int], list[list[TokenScore]] | None, str | None, int | str | None]
"""Sample index, new text, new token ids, their scores, finish reason, stop reason."""
PromptScores = list[list[TokenScore] | None]


@dataclass
class Logprob:
    """The log-probability of a token, its rank (1: the likeliest) and its text."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


@dataclass
class CompletionOutput:
    """One sample of a request."""

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: list[dict[int, Logprob]] | None = None
    finish_reason: str | None = None
    """stop, length, abort or error; None while it runs."""
    stop_reason: int | str | None = None
    """The token id or string that stopped it, or the words of an error."""
    lora_request: LoRARequest | None = None

    def finished(self) -> bool:
        """Whether nothing follows."""
        return self.finish_reason is not None


@dataclass
class RequestOutput:
    """The output of a request."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    prompt_logprobs: list[dict[int, Logprob] | None] | None
    outputs: list[CompletionOutput]
    finished: bool
    metrics: Any = None
    """Always None: a server's figures are at /metrics."""
    lora_request: LoRARequest | None = None
    num_cached_tokens: int | None = None


class GenerationError(RuntimeError):
    """Requests that the engine could not finish. `outputs` holds all of the call, finished ones included."""

    def __init__(self, message: str, outputs: Sequence[RequestOutput]) -> None:
        super().__init__(message)
        self.outputs = list(outputs)


def check_outputs(outputs: Sequence[RequestOutput]) -> None:
    """Raises when a sample ended with an error: half a text is no answer."""
    failed = [
        f"request {output.request_id}: {sample.stop_reason}"
        for output in outputs
        for sample in output.outputs
        if sample.finish_reason == "error"
    ]
    if failed:
        raise GenerationError(f"{len(failed)} sample(s) ended with an error; the first: {failed[0]}", outputs)


def _scores(position: list[TokenScore]) -> dict[int, Logprob]:
    # The token itself stands first and may be among the likeliest again.
    return {token: Logprob(logprob, rank, text) for token, logprob, rank, text in reversed(position)}


@dataclass
class Request:
    """A submitted request and what has come of it."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    stream: Stream
    lora: LoRARequest | None
    kind: RequestOutputKind
    num_samples: int
    samples: list[CompletionOutput] = field(default_factory=list)
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    num_cached_tokens: int = 0
    finished: bool = False

    def __post_init__(self) -> None:
        self.samples = [self._empty(index) for index in range(self.num_samples)]

    def _empty(self, index: int) -> CompletionOutput:
        return CompletionOutput(index, "", [], lora_request=self.lora)

    def take(self) -> RequestOutput | None:
        """What is there now, in the shape that was asked for; None when that is nothing."""
        parts, prompt, self.num_cached_tokens, self.finished = self.stream.take()
        if prompt is not None:
            self._take_prompt(prompt)
        if self.kind is RequestOutputKind.DELTA:
            new = [self._empty(index) for index, *_ in parts]
            for sample, part in zip(new, parts, strict=True):
                _append(sample, part)
            self._end(new)
            return self._output(new) if new or self.finished else None
        for part in parts:
            _append(self.samples[part[0]], part)
        self._end(self.samples)
        if not self.finished and (self.kind is RequestOutputKind.FINAL_ONLY or not parts):
            return None
        return self._output([_copy(sample) for sample in self.samples])

    def _end(self, samples: list[CompletionOutput]) -> None:
        # A request that was aborted says nothing more.
        if self.finished and self.kind is not RequestOutputKind.DELTA:
            for sample in samples:
                sample.finish_reason = sample.finish_reason or "abort"

    def _take_prompt(self, prompt: PromptScores) -> None:
        self.prompt_logprobs = [None if position is None else _scores(position) for position in prompt]

    def _output(self, samples: list[CompletionOutput]) -> RequestOutput:
        return RequestOutput(
            self.request_id,
            self.prompt,
            self.prompt_token_ids,
            self.prompt_logprobs,
            samples,
            self.finished,
            lora_request=self.lora,
            num_cached_tokens=self.num_cached_tokens,
        )


def _append(sample: CompletionOutput, part: Part) -> None:
    _, text, token_ids, scores, finish_reason, stop_reason = part
    sample.text += text
    sample.token_ids += token_ids
    if scores is not None:
        sample.logprobs = (sample.logprobs or []) + [_scores(position) for position in scores]
        new = sum(position[0][1] for position in scores)
        sample.cumulative_logprob = (sample.cumulative_logprob or 0.0) + new
    sample.finish_reason = finish_reason
    sample.stop_reason = stop_reason


def _copy(sample: CompletionOutput) -> CompletionOutput:
    return CompletionOutput(
        sample.index,
        sample.text,
        list(sample.token_ids),
        sample.cumulative_logprob,
        None if sample.logprobs is None else list(sample.logprobs),
        sample.finish_reason,
        sample.stop_reason,
        sample.lora_request,
    )
