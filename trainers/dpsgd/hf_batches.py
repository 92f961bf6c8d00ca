"""The loader behind ``DPTrainer``: logical Poisson batches, collated in micro-batches."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch

from trainers.dpsgd.training import PrivateTraining


class PoissonBatches:
    """The record numbers of an epoch's batches; ``skip`` empty lists stand for those before."""

    def __init__(self, training: PrivateTraining, length: int, skip: int) -> None:
        self._training, self._length, self._skip = training, length, skip

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[list[int]]:
        # a resumed Trainer reads past the epoch's first batches; they were drawn in another life
        skip, self._skip = self._skip, 0
        yield from ([] for _ in range(skip))
        for batch in islice(self._training, self._length - skip):
            yield batch.tolist()


@dataclass(frozen=True)
class MicroBatches:
    """Collates a logical batch in pieces of at most ``size`` records; none for an empty batch."""

    collate: Callable[[Sequence[Any]], Mapping[str, Any]]
    size: int

    def __call__(self, records: Sequence[Any]) -> list[Mapping[str, Any]]:
        pieces = []
        for start in range(0, len(records), self.size):
            some = records[start : start + self.size]
            piece = self.collate(some)
            for name, x in piece.items():
                if isinstance(x, torch.Tensor) and x.dim() and len(x) != len(some):
                    raise ValueError(
                        f"data_collator: made {len(x)} rows of {name} from {len(some)} records; "
                        "a packed row mixes records: pad them instead"
                    )
            pieces.append(piece)
        return pieces


def rows(piece: Mapping[str, Any]) -> int:
    """How many records a collated micro-batch has."""
    return next(len(x) for x in piece.values() if isinstance(x, torch.Tensor) and x.dim())


def taken(piece: Mapping[str, Any], some: torch.Tensor) -> dict[str, Any]:
    """These rows (b,) of a collated micro-batch."""
    if len(some) == rows(piece):
        return dict(piece)
    return {
        name: x[some.to(x.device)] if isinstance(x, torch.Tensor) and x.dim() else x
        for name, x in piece.items()
    }


def fingerprint(records: Iterable[Mapping[str, Any]]) -> str:
    """The SHA-256 of a set of tokenised records, whatever their order.

    A record's bytes are its fields as JSON, names sorted, tensors and arrays as nested lists. The
    records' digests, sorted and joined, are hashed again.

    Raises:
        ValueError: if a field is no text, number, list, array or tensor.
    """
    digests = sorted(
        hashlib.sha256(json.dumps(dict(r), sort_keys=True, default=_listed).encode()).digest()
        for r in records
    )
    return hashlib.sha256(b"".join(digests)).hexdigest()


def _listed(value: Any) -> Any:
    if not hasattr(value, "tolist"):
        raise ValueError(
            f"train_dataset: a record holds a {type(value).__name__}, which has no fingerprint; "
            "encode it as numbers or text"
        )
    return value.tolist()
