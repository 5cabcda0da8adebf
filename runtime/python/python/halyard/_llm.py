"""`LLM`: lists of prompts in, finished outputs out."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from halyard import _prompts
from halyard._engine import EngineOwner, refuse
from halyard._halyard import QueueFullError
from halyard._outputs import Request, RequestOutput, check_outputs
from halyard._params import LoRARequest, RequestOutputKind, SamplingParams

# Between two looks at Python's signals.
_SIGNAL_SECONDS = 0.1

Messages = Sequence[Mapping[str, Any]]


class LLM(EngineOwner):
    """A model for batch use, in this process."""

    def __init__(self, model: str | os.PathLike[str], **keywords: Any) -> None:
        """Loads a model: a folder, a .gguf file, or `org/repo` of the hub. Keywords are vLLM's, with `platform`,
        `device`, `platform_options`, `plugin_dirs` and `log_level` besides; an unknown one raises TypeError."""
        super().__init__(model, keywords)
        self._counter = 0

    def generate(
        self,
        prompts: _prompts.Prompt | Sequence[_prompts.Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool | Callable[..., Any] = True,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
        priority: Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        """Completes every prompt, batched; outputs in the order of the prompts. Ctrl-C cancels all of them.

        Raises ValueError for a request that is refused (none runs on then), GenerationError where one ended with an
        error."""
        if self._engine.is_sleeping():
            raise RuntimeError("the engine sleeps, and would never answer; call wake_up() first")
        listed = _prompts.as_list(prompts)
        if sampling_params is None:
            sampling_params = self.get_default_sampling_params()
        params = _each("sampling_params", sampling_params, SamplingParams, len(listed))
        loras = _each("lora_request", lora_request, (LoRARequest, type(None)), len(listed))
        priorities = _each("priority", 0 if priority is None else priority, int, len(listed))
        running: list[Request] = []
        try:
            for prompt, one, lora, rank in zip(listed, params, loras, priorities, strict=True):
                running.append(self._submit_when_free(running, prompt, one, lora, rank))
            outputs = self._collect(running, use_tqdm)
        except BaseException:
            for request in running:
                request.stream.abort()
            raise
        check_outputs(outputs)
        return outputs

    def chat(
        self,
        messages: Messages | Sequence[Messages],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool | Callable[..., Any] = True,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answers one conversation, or each of several."""
        if chat_template is not None or continue_final_message:
            raise NotImplementedError(
                "chat_template and continue_final_message: give chat_template to LLM(...), or continue a message "
                "over HTTP (halyard serve)"
            )
        single = bool(messages) and isinstance(messages[0], Mapping)
        conversations: Any = [messages] if single else messages
        prompts = [
            self._chat_prompt(one, add_generation_prompt, tools, chat_template_kwargs) for one in conversations
        ]
        return self.generate(prompts, sampling_params, use_tqdm, lora_request)

    def sleep(self, level: int = 1, mode: str = "abort") -> None:
        """Gives the device's memory back; needs `enable_sleep_mode=True`. At level 1 the same weights come back from
        host memory, at level 2 the model's folder is loaded as it is then. `mode` is for requests of other threads:
        they end ("abort"), finish first ("wait"), or go on after the wake ("keep")."""
        self._engine.sleep(level, mode)

    def wake_up(self, tags: list[str] | None = None) -> None:
        """Brings the model back: all of it, or "weights" and later "kv_cache"."""
        self._engine.wake_up(tags)

    def reset_prefix_cache(self, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
        """Forgets cached prefixes. False: requests that run use blocks, or an external cache was meant, which is not
        here."""
        return self._engine.reset_prefix_cache(reset_running_requests) and not reset_connector

    def collective_rpc(
        self,
        method: str,
        timeout: float | None = None,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """`collective_rpc("reload_weights", kwargs={"weights_path": folder})` puts the weights of another folder of the
        same architecture in the place of the present ones. Other methods of vLLM's workers raise
        NotImplementedError."""
        return self._collective_rpc(method, timeout, args, kwargs)

    def embed(self, *_: Any, **__: Any) -> NoReturn:
        """Not offered."""
        raise refuse("embed", "embeddings")

    def encode(self, *_: Any, **__: Any) -> NoReturn:
        """Not offered; token ids are `get_tokenizer().encode(text)`."""
        raise refuse("encode", "pooling")

    def classify(self, *_: Any, **__: Any) -> NoReturn:
        """Not offered."""
        raise refuse("classify", "classification")

    def score(self, *_: Any, **__: Any) -> NoReturn:
        """Not offered."""
        raise refuse("score", "scoring")

    def reward(self, *_: Any, **__: Any) -> NoReturn:
        """Not offered."""
        raise refuse("reward", "reward models")

    def beam_search(self, *_: Any, **__: Any) -> NoReturn:
        """Not offered."""
        raise refuse("beam_search", "beam search")

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    def _submit_when_free(
        self,
        running: list[Request],
        prompt: _prompts.Prompt,
        params: SamplingParams,
        lora: LoRARequest | None,
        priority: int,
    ) -> Request:
        request_id = str(self._counter)
        self._counter += 1
        while True:
            try:
                return self._submit(request_id, prompt, params, lora, priority, kind=RequestOutputKind.FINAL_ONLY)
            except QueueFullError:
                # More prompts than may wait: the oldest ones make room.
                oldest = next((request for request in running if not request.stream.wait(0)), None)
                if oldest is None:
                    raise
                oldest.stream.wait(_SIGNAL_SECONDS)

    def _collect(self, running: list[Request], use_tqdm: bool | Callable[..., Any]) -> list[RequestOutput]:
        bar = _bar(use_tqdm, len(running))
        outputs = []
        for request in running:
            while not request.stream.wait(_SIGNAL_SECONDS):
                pass
            output = request.take()
            assert output is not None, "a stream that has ended gives its output"
            outputs.append(output)
            if bar is not None:
                bar.update(1)
        if bar is not None:
            bar.close()
        return outputs


def _bar(use_tqdm: bool | Callable[..., Any], total: int) -> Any:
    if callable(use_tqdm):
        return use_tqdm(total=total, desc="Processed prompts")
    if not use_tqdm:
        return None
    try:
        from tqdm.auto import tqdm
    except ImportError:
        return None
    return tqdm(total=total, desc="Processed prompts", dynamic_ncols=True)


def _each(name: str, given: Any, kind: Any, count: int) -> list[Any]:
    """One value for all prompts, or one for each."""
    if isinstance(given, kind):
        return [given] * count
    if isinstance(given, Sequence) and len(given) == count and all(isinstance(one, kind) for one in given):
        return list(given)
    found = f"{len(given)} values" if isinstance(given, Sequence) else type(given).__name__
    raise ValueError(f"{name}: {found} for {count} prompt(s); give one for all or one for each")
