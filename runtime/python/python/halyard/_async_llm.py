"""`AsyncLLM`: one request at a time in, outputs as they come, on an asyncio event loop."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from typing import Any

from halyard import _prompts
from halyard._engine import EngineOwner
from halyard._halyard import Waker
from halyard._outputs import Request, RequestOutput, check_outputs
from halyard._params import LoRARequest, SamplingParams


class AsyncEngineArgs:
    """Keywords of an engine, as vLLM's class of this name."""

    def __init__(self, model: str | os.PathLike[str], **keywords: Any) -> None:
        self.model = model
        self.keywords = keywords


class AsyncLLM(EngineOwner):
    """A model whose outputs are read as they come. Loading blocks; do it before the loop, or in a thread."""

    def __init__(self, model: str | os.PathLike[str], **keywords: Any) -> None:
        """As `LLM`."""
        super().__init__(model, keywords)
        self._waker = Waker()
        self._process = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._running: dict[str, Request] = {}
        self._news: dict[int, asyncio.Event] = {}

    @classmethod
    def from_engine_args(cls, engine_args: AsyncEngineArgs) -> AsyncLLM:
        """The engine of these arguments."""
        return cls(engine_args.model, **engine_args.keywords)

    async def generate(
        self,
        prompt: _prompts.Prompt,
        sampling_params: SamplingParams,
        request_id: str,
        *,
        lora_request: LoRARequest | None = None,
        priority: int = 0,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Completes a prompt; each output holds what `sampling_params.output_kind` says. Leaving the loop early
        cancels the request.

        Raises ValueError for a request that is refused, GenerationError when it ends with an error."""
        # In a fork this raises, before the parent's event loop is touched: the child has the same selector.
        self._engine.check_health()
        if request_id in self._running:
            raise ValueError(f"request_id {request_id!r} is running; give each request its own")
        self._attach(asyncio.get_running_loop())
        # Tokenizing a long text takes time, and so does compiling a grammar.
        request = await asyncio.to_thread(
            self._submit, request_id, prompt, sampling_params, lora_request, priority, waker=self._waker
        )
        news = asyncio.Event()
        # What came before the loop knew the stream rang for nobody.
        news.set()
        self._news[request.stream.number] = news
        self._running[request_id] = request
        try:
            while not request.finished:
                await news.wait()
                news.clear()
                output = request.take()
                if output is not None:
                    check_outputs([output])
                    yield output
        finally:
            request.stream.abort()
            self._running.pop(request_id, None)
            self._news.pop(request.stream.number, None)

    async def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        sampling_params: SamplingParams,
        request_id: str,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        lora_request: LoRARequest | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Answers a conversation."""
        prompt = await asyncio.to_thread(self._chat_prompt, messages, True, tools, chat_template_kwargs)
        async for output in self.generate(prompt, sampling_params, request_id, lora_request=lora_request):
            yield output

    async def abort(self, request_id: str | Iterable[str]) -> None:
        """Cancels requests; their loops end with what has come."""
        for one in [request_id] if isinstance(request_id, str) else request_id:
            if (request := self._running.get(one)) is not None:
                request.stream.abort()

    async def pause_generation(
        self, *, mode: str = "abort", wait_for_inflight_requests: bool | None = None, clear_cache: bool = True
    ) -> None:
        """Holds generation until `resume_generation`. Requests that run end ("abort"), finish first ("wait"), or go on
        later ("keep")."""
        mode = "wait" if wait_for_inflight_requests else mode
        await asyncio.to_thread(self._engine.pause, mode, clear_cache)

    async def resume_generation(self) -> None:
        """Ends a pause."""
        await asyncio.to_thread(self._engine.resume)

    async def is_paused(self) -> bool:
        """Whether generation is held."""
        return self._engine.is_paused()

    async def reset_prefix_cache(self, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
        """As `LLM.reset_prefix_cache`."""
        was_reset = await asyncio.to_thread(self._engine.reset_prefix_cache, reset_running_requests)
        return was_reset and not reset_connector

    async def sleep(self, level: int = 1, mode: str = "abort") -> None:
        """As `LLM.sleep`. Requests that come while the engine sleeps wait for `wake_up`."""
        await asyncio.to_thread(self._engine.sleep, level, mode)

    async def wake_up(self, tags: list[str] | None = None) -> None:
        """As `LLM.wake_up`."""
        await asyncio.to_thread(self._engine.wake_up, tags)

    async def is_sleeping(self) -> bool:
        """Whether the model is off the device."""
        return self._engine.is_sleeping()

    async def collective_rpc(
        self,
        method: str,
        timeout: float | None = None,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """As `LLM.collective_rpc`."""
        return await asyncio.to_thread(self._collective_rpc, method, timeout, args, kwargs)

    async def check_health(self) -> None:
        """Raises EngineDeadError when the engine does not run."""
        self._engine.check_health()

    def shutdown(self, timeout: float = 0.0) -> None:
        """As `LLM.shutdown`."""
        super().shutdown(timeout)
        # A fork leaves the parent's event loop alone.
        if self._loop is not None and not self._loop.is_closed() and os.getpid() == self._process:
            self._loop.remove_reader(self._waker.fileno())
        self._loop = None

    def _attach(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._loop is loop:
            return
        if self._loop is not None and self._running and not self._loop.is_closed():
            raise RuntimeError("this engine has requests on another event loop; use one loop, or an engine for each")
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._waker.fileno())
        self._news.clear()
        self._loop = loop
        loop.add_reader(self._waker.fileno(), self._on_news)

    def _on_news(self) -> None:
        for number in self._waker.take():
            if (news := self._news.get(number)) is not None:
                news.set()
