"""One service at a time works on a state directory."""

from __future__ import annotations

import os
from pathlib import Path

from coheat.service.store import StoreError
from coheat.storage import check_system, lock


def lock_directory(directory: Path) -> list[int]:
    """Hold a state directory against a second service; the system lets go of it however we end.

    The directory itself is locked: nobody can step around that by removing a file. The file `lock` is what
    earlier versions look at.
    """
    check_system()
    handles: list[int] = []
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        handles.append(os.open(directory, os.O_RDONLY | os.O_DIRECTORY))
        handles.append(os.open(directory / "lock", os.O_RDWR | os.O_CREAT, 0o600))
        for handle in handles:
            lock(handle)
    except BlockingIOError:
        release(handles)
        raise StoreError(
            f"{directory}: another service works on it; stop that one, or choose --state"
        ) from None
    except OSError as error:
        release(handles)
        raise StoreError(
            f"{directory}: cannot be written ({error.strerror}); make it writable, or choose --state"
        ) from None
    return handles


def release(handles: list[int]) -> None:
    """Let go of a state directory."""
    for handle in handles:
        os.close(handle)
