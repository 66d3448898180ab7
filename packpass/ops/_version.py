"""A version of the ops' code inside torch.compile's cache keys.

AOTAutograd's cache keys a graph by the *names* of its ops, not by the body of their decompositions: after an upgrade of
packpass it would hand out code generated from the old body. The version below is a digest of this package's sources, so
it cannot be forgotten when a body changes.
"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib import resources

import torch.compiler.config as compiler_config

TAG_PREFIX = "packpass-ops="


@cache
def ops_version() -> str:
    """Digest (16 hex digits) of the sources of ``packpass.ops``, also when the package is imported from a zip file."""
    digest = hashlib.sha256()
    sources = [
        f for f in resources.files(__package__ or "packpass.ops").iterdir() if f.name.endswith((".py", ".cpp", ".h"))
    ]
    for source in sorted(sources, key=lambda f: f.name):
        digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def tag_compile_caches() -> None:
    """Append the version to ``torch.compiler.config.cache_key_tag``; a tag of the user's own is kept."""
    tag = TAG_PREFIX + ops_version()
    present = compiler_config.cache_key_tag
    if tag not in present.split(";"):
        compiler_config.cache_key_tag = f"{present};{tag}" if present else tag
