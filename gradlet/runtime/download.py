"""Files from the network, kept on disk: a file appears there complete or not at all, and is loaded once."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import os
import tempfile
import zlib
from pathlib import Path
from typing import Any

from gradlet.base import settings
from gradlet.base.errors import ArgumentError, DownloadError, FileFormatError
from gradlet.runtime import diskcache

_CHUNK = 1 << 20


def folder() -> Path:
    """Where downloaded files lie: beside the kernel cache."""
    return diskcache.folder().with_name("downloads")


def load(url: str, gunzip: bool = False, sha256: str | None = None, timeout: float = 30.0) -> bytes:
    """The bytes behind a URL, from disk where they were loaded before (with CACHE=0 and for local files always anew).

    Args:
        url: http, https or file.
        gunzip: unpack them.
        sha256: what their hash, before unpacking, has to be, in hexadecimal.
        timeout: seconds to wait for an answer.

    Raises:
        DownloadError: nothing could be loaded, less than announced, or other bytes than `sha256` says.
        ArgumentError: another kind of URL.
        FileFormatError: `gunzip` of data that is no gzip file.
    """
    if not isinstance(url, str):
        raise ArgumentError(f"from_url: url must be text, got {type(url).__name__}")
    scheme = url.partition(":")[0].lower()
    if scheme not in ("http", "https", "file") or "://" not in url:
        raise ArgumentError(f"from_url: {url!r} is no URL that can be loaded; use http://, https:// or file://")
    wanted = None if sha256 is None else _hash_text(sha256)
    path = folder() / hashlib.sha256(url.encode()).hexdigest()
    keep = scheme != "file" and bool(settings.CACHE)
    content = _from_disk(path, wanted) if keep else None
    if content is None:
        content = _from_network(url, timeout)
        found = hashlib.sha256(content).hexdigest()
        if wanted is not None and found != wanted:
            raise DownloadError(
                f"from_url: {url} gave {len(content)} bytes with sha256 {found}, not {wanted}; the file was changed or "
                "damaged on the way, nothing was kept"
            )
        if keep:
            _to_disk(path, content)
    return _unpack(content, url) if gunzip else content


def _hash_text(sha256: Any) -> str:
    text = str(sha256).lower()
    if len(text) != 64 or any(c not in "0123456789abcdef" for c in text):
        raise ArgumentError(f"from_url: sha256 must be 64 hexadecimal digits, got {sha256!r}")
    return text


def _from_disk(path: Path, wanted: str | None) -> bytes | None:
    """What was kept, if it is what is wanted."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    return content if wanted is None or hashlib.sha256(content).hexdigest() == wanted else None


def _from_network(url: str, timeout: float) -> bytes:
    import http.client
    import urllib.error
    import urllib.request

    try:
        with urllib.request.urlopen(url, timeout=timeout) as answer:
            announced = answer.headers.get("Content-Length")
            content = bytearray()
            while chunk := answer.read(_CHUNK):
                content += chunk
    except urllib.error.HTTPError as error:
        raise DownloadError(f"from_url: {url} answers {error.code} {error.reason}; check the address") from None
    except urllib.error.URLError as error:
        raise DownloadError(f"from_url: cannot load {url}: {error.reason}; check the address and the network") from None
    except TimeoutError:
        raise DownloadError(
            f"from_url: {url} did not answer within {timeout} seconds; try again, or a larger timeout"
        ) from None
    except (http.client.HTTPException, OSError, ValueError) as error:
        raise DownloadError(f"from_url: cannot load {url}: {error or type(error).__name__}; try again") from None
    if announced is not None and announced.isdigit() and int(announced) != len(content):
        raise DownloadError(
            f"from_url: {url} announced {announced} bytes and gave {len(content)}: the connection broke; try again"
        )
    return bytes(content)


def _to_disk(path: Path, content: bytes) -> None:
    """Keep a file; where that fails only the next time is lost."""
    name = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".new-", delete=False) as file:
            name = file.name
            file.write(content)
        os.replace(name, path)
    except OSError:
        if name:
            with contextlib.suppress(OSError):
                os.unlink(name)


def _unpack(content: bytes, url: str) -> bytes:
    try:
        return gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise FileFormatError(f"from_url: {url} is no complete gzip file ({error}); leave gunzip out") from None
