"""What `LLM` and `AsyncLLM` share: the engine, its tokenizer, chats as prompts, submitting."""

from __future__ import annotations

import atexit
import json
import os
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from halyard import _options, _prompts
from halyard._halyard import Engine, Waker
from halyard._outputs import Request
from halyard._params import LoRARequest, RequestOutputKind, SamplingParams

_RUNNING: weakref.WeakSet[EngineOwner] = weakref.WeakSet()


class Tokenizer:
    """The model's tokenizer."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text."""
        return self._engine.encode(text, add_special_tokens)

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """The text of token ids."""
        return self._engine.decode(list(token_ids), skip_special_tokens)

    def apply_chat_template(
        self,
        conversation: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = False,
        documents: Sequence[Mapping[str, Any]] | None = None,
        **template_variables: Any,
    ) -> str:
        """A chat in the words of the model's template."""
        chat = {
            "messages": list(conversation),
            "tools": None if tools is None else list(tools),
            "documents": None if documents is None else list(documents),
            "add_generation_prompt": add_generation_prompt,
            "template_variables": template_variables or None,
        }
        return self._engine.render_chat(json.dumps(chat))


class EngineOwner:
    """An engine and the process's duty to end it."""

    def __init__(self, model: str | os.PathLike[str], keywords: Mapping[str, Any]) -> None:
        log_level = keywords.get("log_level") or _options.log_level()
        rest = {name: value for name, value in keywords.items() if name != "log_level"}
        self._engine = Engine(_options.engine_options(os.fspath(model), rest), log_level)
        self._tokenizer = Tokenizer(self._engine)
        self.model_info: dict[str, Any] = json.loads(self._engine.info())
        """Facts: architecture, max_model_len, dtype, platform and more."""
        _RUNNING.add(self)

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self._tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """What the model's authors recommend."""
        return SamplingParams(**json.loads(self._engine.generation_defaults()))

    def shutdown(self, timeout: float = 0.0) -> None:
        """Ends the engine and gives the device back; requests that run get `timeout` seconds to finish."""
        self._engine.shutdown(timeout)

    def _collective_rpc(
        self, method: str, timeout: float | None, args: Sequence[Any], kwargs: Mapping[str, Any] | None
    ) -> list[Any]:
        if method != "reload_weights":
            raise NotImplementedError(f"collective_rpc: there is no method {method!r} here; reload_weights is there")
        fields = dict(kwargs or {})
        path = fields.pop("weights_path", None)
        if path is None or fields or args or timeout is not None:
            raise ValueError('reload_weights takes kwargs={"weights_path": folder} and nothing else here')
        self._engine.reload_weights(path)
        return [None]

    def _submit(
        self,
        request_id: str,
        prompt: _prompts.Prompt,
        params: SamplingParams,
        lora: LoRARequest | None,
        priority: int,
        *,
        waker: Waker | None = None,
        kind: RequestOutputKind | None = None,
    ) -> Request:
        text, ids, salt = _prompts.read(prompt, self._engine.encode)
        wire = params._wire(self._engine.encode)
        if lora is not None:
            self._engine.ensure_lora(lora.lora_name, lora.lora_path)
        stream = self._engine.submit(
            request_id,
            ids,
            wire,
            lora=None if lora is None else lora.lora_name,
            priority=priority,
            cache_salt=salt,
            waker=waker,
        )
        return Request(request_id, text, ids, stream, lora, kind or params.output_kind, params.n)

    def _chat_prompt(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool,
        tools: Sequence[Mapping[str, Any]] | None,
        template_variables: Mapping[str, Any] | None,
    ) -> _prompts.Prompt:
        text = self._tokenizer.apply_chat_template(
            messages, tools, add_generation_prompt, **(template_variables or {})
        )
        # The template has written the special tokens.
        return {"prompt": text, "prompt_token_ids": self._engine.encode(text, False)}


def refuse(method: str, what: str) -> NotImplementedError:
    """The error of a method of vLLM's that this engine lacks."""
    return NotImplementedError(
        f"{method}: Halyard generates text and does not offer {what} yet (README, \"Not there yet\")"
    )


@atexit.register
def _end_all() -> None:
    # Before the interpreter goes: threads of the engine then have nobody to tell.
    for owner in list(_RUNNING):
        owner.shutdown()
