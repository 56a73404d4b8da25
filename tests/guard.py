"""What the mutation guard of the fixtures looks at."""

from __future__ import annotations

import hashlib

from coheat.data.split import Split


def digest(split: Split) -> str:
    """Everything in a split, read anew: the data's own fingerprint is computed once and kept."""
    found = hashlib.sha256()
    for vocabulary in (split.train.users, split.train.bundles, split.train.items):
        found.update("\0".join(vocabulary.ids).encode())
    for matrix in (*split.parts.values(), split.train.user_item, split.train.bundle_item):
        for array in (matrix.indptr, matrix.indices, matrix.data):
            found.update(array.tobytes())
    return found.hexdigest()
