"""Keywords of `LLM` and `AsyncLLM`: vLLM's names, what they do not mean here, and what this process's environment adds.

The environment is read here and nowhere below, as `halyard serve` reads it for the engine."""

from __future__ import annotations

import importlib.metadata
import json
import os
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from halyard import _hub

# Read by the engine (src/options.rs).
_ENGINE = {
    "allow_quantized_act",
    "attention_backend",
    "block_size",
    "chat_template",
    "device",
    "dtype",
    "enable_expert_parallel",
    "enable_lora",
    "enable_prefix_caching",
    "enable_sleep_mode",
    "enforce_eager",
    "generation_config",
    "gpu_memory_utilization",
    "hf_overrides",
    "kv_cache_dtype",
    "kv_cache_memory_bytes",
    "kv_offloading_size",
    "load_format",
    "max_cpu_loras",
    "max_lora_rank",
    "max_loras",
    "max_model_len",
    "max_num_batched_tokens",
    "max_num_seqs",
    "num_gpu_blocks_override",
    "override_generation_config",
    "platform",
    "platform_cache_dir",
    "platform_options",
    "plugin_dirs",
    "quantization",
    "seed",
    "tensor_parallel_size",
    "tokenizer",
}
# vLLM's keywords with the values that mean what happens here anyway.
_ACCEPTED: dict[str, tuple[Any, ...]] = {
    "trust_remote_code": (True, False),  # No code of a model ever runs.
    "disable_log_stats": (True, False),
    "disable_log_requests": (True, False),
    "enable_log_requests": (True, False),
    "disable_custom_all_reduce": (True, False),
    "enable_chunked_prefill": (True,),
    "kv_offloading_backend": ("native",),
    "tokenizer_mode": ("auto",),
    "task": ("auto", "generate"),
    "runner": ("auto", "generate"),
    "swap_space": (0, 4),
    "cpu_offload_gb": (0,),
    "pipeline_parallel_size": (1,),
    "data_parallel_size": (1,),
    "skip_tokenizer_init": (False,),
    "distributed_executor_backend": (None, "mp", "uni"),
    "max_logprobs": tuple(range(21)),
    "config_format": ("auto", "hf"),
}


def engine_options(model: str, keywords: Mapping[str, Any]) -> str:
    """The engine's options, as JSON. Raises TypeError for a keyword that nothing here reads."""
    given = {name: value for name, value in keywords.items() if value is not None}
    revisions = {name: given.pop(name, None) for name in ("revision", "tokenizer_revision")}
    download_dir, token = given.pop("download_dir", None), given.pop("hf_token", None)
    for name, values in _ACCEPTED.items():
        if name in given and given.pop(name) not in values:
            known = ", ".join(map(repr, values))
            raise ValueError(f"{name}={keywords[name]!r} is not offered here; values without effect are {known}")
    if unknown := sorted(set(given) - _ENGINE):
        known = ", ".join(sorted(_ENGINE))
        raise TypeError(f"unknown keyword {', '.join(unknown)}; known are {known}")
    options: dict[str, Any] = dict(given)
    options["model"] = _hub.resolve(model, revisions["revision"], download_dir, token)
    if tokenizer := options.get("tokenizer"):
        options["tokenizer"] = _hub.resolve_tokenizer(tokenizer, revisions["tokenizer_revision"], download_dir, token)
    if "dtype" in options:
        # PyTorch's types print as torch.bfloat16.
        options["dtype"] = str(options["dtype"])
    if isinstance(platform_options := options.get("platform_options"), Mapping):
        options["platform_options"] = [f"{key}={value}" for key, value in platform_options.items()]
    for name in ("platform_cache_dir", "generation_config"):
        if name in options:
            options[name] = os.fspath(options[name])
    options["plugin_dirs"] = [os.fspath(folder) for folder in options.get("plugin_dirs", ())]
    options.setdefault("platform", os.environ.get("HALYARD_PLATFORM") or None)
    options["plugin_path"] = os.environ.get("HALYARD_PLUGIN_PATH")
    if shipped := shipped_plugins():
        options["shipped_plugins"] = str(shipped)
    data = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    options["user_plugins"] = str(Path(data) / "halyard" / "plugins")
    return json.dumps(options)


def log_level() -> str:
    """The engine's log level, on standard error."""
    return os.environ.get("HALYARD_LOG_LEVEL", "warn")


def shipped_plugins() -> Path | None:
    """The folder of the platforms and plugins that came with this package."""
    name = "libhalyard_reference.so"
    try:
        files = importlib.metadata.files("halyard") or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    found = [Path(str(file.locate())).resolve() for file in files if file.name == name]
    # `pip install --target` moves them after it has written its list.
    package = Path(__file__).resolve().parent
    found.append(package.parent / "lib" / "halyard" / name)
    found.append(Path(sysconfig.get_path("data")) / "lib" / "halyard" / name)
    return next((file.parent for file in found if file.is_file()), None)
