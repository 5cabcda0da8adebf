"""Prompts in vLLM's forms: a text, a dictionary with a text or token ids, or token ids."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypedDict


class _Salted(TypedDict, total=False):
    cache_salt: str


class TextPrompt(_Salted):
    """A text."""

    prompt: str


class _Tokens(_Salted):
    prompt_token_ids: list[int]


class TokensPrompt(_Tokens, total=False):
    """Token ids, and the text that they came from where the caller wants it in the output."""

    prompt: str


Prompt: TypeAlias = "str | TextPrompt | TokensPrompt | list[int]"

_KEYS = {"prompt", "prompt_token_ids", "cache_salt"}


def read(prompt: Prompt, encode: Callable[[str, bool], list[int]]) -> tuple[str | None, list[int], str | None]:
    """Text, token ids and cache salt of a prompt."""
    if isinstance(prompt, str):
        return prompt, encode(prompt, True), None
    if isinstance(prompt, dict):
        if unknown := sorted(set(prompt) - _KEYS):
            raise ValueError(f"a prompt with {', '.join(unknown)}: known are {', '.join(sorted(_KEYS))} (text only)")
        fields: dict[str, Any] = dict(prompt)
        text, ids, salt = fields.get("prompt"), fields.get("prompt_token_ids"), fields.get("cache_salt")
        if ids is None and text is None:
            raise ValueError("a prompt without prompt and prompt_token_ids: give one of them")
        return text, list(ids) if ids is not None else encode(str(text), True), salt
    if isinstance(prompt, (list, tuple)) and all(isinstance(token, int) for token in prompt):
        return None, list(prompt), None
    raise TypeError(f"a prompt is a str, a dict or a list of token ids, not {type(prompt).__name__}")


def as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt or several, as a list."""
    if isinstance(prompts, (str, dict)):
        return [prompts]
    if not isinstance(prompts, Sequence):
        raise TypeError(f"prompts is a str, a dict or a list of them, not {type(prompts).__name__}")
    if prompts and all(isinstance(token, int) for token in prompts):
        return [list(prompts)]  # type: ignore[arg-type]
    return list(prompts)  # type: ignore[arg-type]
