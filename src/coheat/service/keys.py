"""Keys that open the service: high-entropy secrets of which only the hash is kept.

A key is shown once, when it is made. Its file (or, with replicas, a table) holds name, scope and SHA-256; a
slow hash would add nothing, since nobody guesses 256 random bits. The file is read again when it changes, so
a revoked key stops working at the next request.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, get_args

from coheat.errors import ArtifactError, ConfigError
from coheat.storage import check_system, lock, read_json, write_json

Scope = Literal["read", "write"]
PREFIX = "coheat_"
HASH = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True)
class Key:
    """A key as it is kept: who it is for, what it may do, and its hash. Write includes read."""

    name: str
    scope: Scope
    sha256: str
    created: str


class Keys:
    """The keys of a service, wherever they are kept."""

    def __init__(self) -> None:
        self._keys: tuple[Key, ...] = ()
        self._closed = False

    def keys(self) -> tuple[Key, ...]:
        """All keys, as they are now."""
        raise NotImplementedError

    def _changing(self) -> AbstractContextManager[list[Key]]:
        """The keys to change, held against a second command at the same time; kept when the block ends."""
        raise NotImplementedError

    def create(self, name: str, scope: Scope) -> str:
        """Make a key and keep its hash; the key itself is returned now and never again."""
        if not name.strip() or len(name) > 100:
            raise ConfigError("a key needs a name of 1 to 100 characters, such as the shop that will use it")
        secret = PREFIX + secrets.token_urlsafe(32)
        with self._changing() as keys:
            if any(key.name == name for key in keys):
                raise ConfigError(f"there is a key named {name!r} already; revoke it or choose another name")
            keys.append(Key(name, scope, _digest(secret), datetime.now(UTC).isoformat(timespec="seconds")))
        return secret

    def revoke(self, name: str) -> None:
        """Forget a key; a running service refuses it from its next request on."""
        with self._changing() as keys:
            remaining = [key for key in keys if key.name != name]
            if len(remaining) == len(keys):
                known = ", ".join(repr(key.name) for key in keys) or "none"
                raise ConfigError(f"there is no key named {name!r} (there are: {known})")
            keys[:] = remaining

    def required(self) -> bool:
        """Whether a request must show a key; once so, it stays so until the process ends."""
        there_are = bool(self.keys())
        self._closed = self._closed or there_are
        return self._closed

    def find(self, secret: str) -> Key | None:
        """The key that this is, or None for a wrong one; in the same time wherever it differs."""
        digest = _digest(secret)
        found: Key | None = None
        for key in self.keys():
            if hmac.compare_digest(key.sha256, digest):
                found = key
        return found

    def scope_of(self, secret: str) -> Scope | None:
        """What a key may do, or None for a wrong one."""
        key = self.find(secret)
        return None if key is None else key.scope


class KeyRing(Keys):
    """The keys in one file, kept private to its owner."""

    def __init__(self, path: Path):
        super().__init__()
        self.path = path
        self._seen: tuple[int, int, int] | None = None

    def keys(self) -> tuple[Key, ...]:
        """All keys, read anew when the file has changed."""
        try:
            status = self.path.stat()
        except FileNotFoundError:
            self._seen, self._keys = None, ()
            return ()
        seen = (status.st_mtime_ns, status.st_ino, status.st_size)
        if seen != self._seen:
            self._keys, self._seen = tuple(self._read()), seen
        return self._keys

    def _read(self) -> list[Key]:
        try:
            return [_checked_key(entry) for entry in read_json(self.path)["keys"]]
        except (KeyError, TypeError, ValueError, ArtifactError):
            raise ConfigError(
                f"{self.path}: not a file of keys; move it away and make keys with coheat keys create"
            ) from None

    @contextmanager
    def _changing(self) -> Iterator[list[Key]]:
        """The keys to change, held against a second command at the same time, then written in one piece."""
        check_system()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        held = os.open(self.path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            lock(held, wait=True)
            keys = self._read() if self.path.exists() else []
            yield keys
            before = os.umask(0o077)
            try:
                write_json(self.path, {"keys": [asdict(key) for key in keys]})
            finally:
                os.umask(before)
        finally:
            os.close(held)


def _checked_key(entry: dict[str, Any]) -> Key:
    """A key as it stands in the file; `TypeError` or `ValueError` where it is none."""
    key = Key(**entry)
    if not all(isinstance(value, str) for value in asdict(key).values()):
        raise TypeError
    if key.scope not in get_args(Scope) or not HASH.fullmatch(key.sha256):
        raise ValueError
    return key


def checked_scope(given: str) -> Scope:
    """A scope as somebody typed it."""
    for scope in get_args(Scope):
        if given == scope:
            found: Scope = scope
            return found
    raise ConfigError(f"scope {given!r}: choose read or write")


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()
