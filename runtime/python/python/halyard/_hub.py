"""Models by name: what exists on the disk is taken as it is, `org/repo` comes from the Hugging Face hub through its own
client, which also keeps it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

_FILES = ["*.json", "*.safetensors", "*.jinja", "tokenizer.model"]
_TEXT = ["tokenizer*", "special_tokens_map.json", "*.jinja", "config.json"]


def resolve(model: str | os.PathLike[str], revision: str | None, folder: str | None, token: Any) -> str:
    """The path of a model: a folder or a GGUF file."""
    name = os.fspath(model)
    if Path(name).exists():
        return name
    repo, _, quantization = name.partition(":")
    _check(repo, name)
    if not quantization:
        return _snapshot(repo, _FILES, revision, folder, token)
    pattern = f"*{quantization}*.gguf"
    found = sorted(Path(_snapshot(repo, [pattern], revision, folder, token)).rglob(pattern))
    if len(found) != 1:
        names = ", ".join(str(file.name) for file in found) or "none"
        raise ValueError(f"{repo} has {len(found)} files {pattern} ({names}); name the one as a file")
    return str(found[0])


def resolve_tokenizer(name: str | os.PathLike[str], revision: str | None, folder: str | None, token: Any) -> str:
    """The path of a tokenizer."""
    text = os.fspath(name)
    if Path(text).exists():
        return text
    _check(text, text)
    return _snapshot(text, _TEXT, revision, folder, token)


def _check(repo: str, name: str) -> None:
    parts = repo.split("/")
    if len(parts) != 2 or not all(parts) or name.startswith((".", "/", "~")):
        raise FileNotFoundError(f"no such file or folder: {name} (a model of the hub is org/repo or org/repo:QUANT)")


def _snapshot(repo: str, patterns: list[str], revision: str | None, folder: str | None, token: Any) -> str:
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise ImportError(
            f"{repo} is a model of the Hugging Face hub, whose client is not installed: pip install 'halyard[hub]', "
            "or give a folder or a .gguf file"
        ) from error
    return str(snapshot_download(repo, revision=revision, cache_dir=folder, token=token, allow_patterns=patterns))
