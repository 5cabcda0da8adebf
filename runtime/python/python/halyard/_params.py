"""What a request asks for: vLLM's fields and defaults, written as the engine reads them."""

from __future__ import annotations

import dataclasses
import enum
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


class RequestOutputKind(enum.Enum):
    """What each output of a stream holds: all so far, what is new, or only the finished whole."""

    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


@dataclass(frozen=True)
class LoRARequest:
    """An adapter by name, and the folder that it is read from when it is first used."""

    lora_name: str
    lora_int_id: int
    lora_path: str = ""


@dataclass
class StructuredOutputsParams:
    """What the text must be: exactly one of the first six fields."""

    json: str | Mapping[str, Any] | None = None
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None

    def _wire(self) -> dict[str, Any]:
        constraints: list[Any] = []
        if self.json is not None:
            constraints.append({"json": self.json if isinstance(self.json, str) else json.dumps(self.json)})
        for name in ("regex", "grammar", "structural_tag"):
            if (text := getattr(self, name)) is not None:
                constraints.append({name: text})
        if self.choice is not None:
            constraints.append({"choice": list(self.choice)})
        if self.json_object:
            constraints.append("json_object")
        if len(constraints) != 1:
            raise ValueError(
                f"StructuredOutputsParams has {len(constraints)} constraints; set exactly one of json, regex, choice, "
                "grammar, json_object, structural_tag"
            )
        return {
            "constraint": constraints[0],
            "disable_any_whitespace": self.disable_any_whitespace,
            "disable_additional_properties": self.disable_additional_properties,
            "whitespace_pattern": self.whitespace_pattern,
        }


@dataclass
class SamplingParams:
    """Sampling parameters. The engine checks ranges when the request is submitted."""

    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """0 and -1: all."""
    min_p: float = 0.0
    seed: int | None = None
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    ignore_eos: bool = False
    max_tokens: int | None = 16
    """None: as many as the context holds."""
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    structured_outputs: StructuredOutputsParams | None = None
    logit_bias: Mapping[int, float] | Mapping[str, float] | None = None
    allowed_token_ids: Sequence[int] | None = None
    bad_words: Sequence[str] | None = None

    def __post_init__(self) -> None:
        if not self.detokenize or not self.spaces_between_special_tokens:
            raise ValueError(
                "detokenize and spaces_between_special_tokens are always true here: the engine makes the text"
            )
        if isinstance(self.stop, str):
            self.stop = [self.stop]

    def clone(self) -> SamplingParams:
        """A copy."""
        return dataclasses.replace(self)

    def _wire(self, encode: Callable[[str, bool], list[int]]) -> str:
        """As the engine reads it."""
        if self.logprobs == -1 or self.prompt_logprobs == -1:
            raise ValueError("logprobs=-1, the whole vocabulary, is not offered; ask for a number of the likeliest")
        fields = {
            "n": self.n,
            "temperature": self.temperature,
            "top_k": max(self.top_k, 0) if self.top_k >= -1 else self.top_k,
            "top_p": self.top_p,
            "min_p": self.min_p,
            "seed": None if self.seed is None or self.seed == -1 else self.seed,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
            "repetition_penalty": self.repetition_penalty,
            "logit_bias": [[int(token), bias] for token, bias in (self.logit_bias or {}).items()],
            "allowed_token_ids": _list(self.allowed_token_ids),
            "bad_words_token_ids": _bad_words(self.bad_words or (), encode),
            "min_tokens": self.min_tokens,
            "max_tokens": self.max_tokens,
            "stop": list(self.stop or ()),
            "stop_token_ids": list(self.stop_token_ids or ()),
            "include_stop_str_in_output": self.include_stop_str_in_output,
            "ignore_eos": self.ignore_eos,
            "skip_special_tokens": self.skip_special_tokens,
            "structured_outputs": self.structured_outputs._wire() if self.structured_outputs else None,
            "logprobs": self.logprobs,
            "prompt_logprobs": self.prompt_logprobs,
        }
        return json.dumps(fields)


def _list(values: Sequence[int] | None) -> list[int] | None:
    return None if values is None else list(values)


def _bad_words(words: Sequence[str], encode: Callable[[str, bool], list[int]]) -> list[list[int]]:
    """Each word as written, and with a space before where that is as long and begins with another token (vLLM)."""
    sequences = []
    for word in words:
        bare = word.lstrip()
        if not bare:
            raise ValueError("bad_words holds an empty word; leave it out")
        plain, spaced = encode(bare, False), encode(f" {bare}", False)
        sequences.append(plain)
        if len(spaced) == len(plain) and spaced[0] != plain[0]:
            sequences.append(spaced)
    return sequences
