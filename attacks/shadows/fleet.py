"""Trains the shadow models of a plan and keeps what each of them says of every record."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from attacks.files import whole_file
from attacks.membership.signals import WIDTH, observe
from attacks.records import Bools, Pool, content_digest
from attacks.shadows.plan import halves
from attacks.shadows.workers import Workers, spread
from attacks.targets import Array, Target, positions

Fit = Callable[[Array, Array, int], Target]
FitMany = Callable[[Array, Array, Bools, list[int]], Iterator[Target]]
FORMAT = "2"  # of the files in the folder; part of every name
GROUP = 16  # models of fit_many in one task of a cluster


@dataclass(frozen=True, eq=False)
class Observations:
    """What M shadow models say of R records: values (M, R, 4), and who was trained on whom (M, R).

    The columns are those of ``signals.observe``. ``learned`` are the records that the plan split,
    ``judged`` those whose membership in the target is asked; both are all of them where there are
    no auxiliary records.
    """

    values: NDArray[np.float32]
    inside: Bools
    labels: Array
    learned: slice
    judged: slice


@dataclass(eq=False)
class Shadows:
    """A fleet of shadow models, trained when first asked for and shared by every attack after.

    The models split the pool's auxiliary records if it has any, else the audited records
    themselves, blind to which of them are members.

    Attributes:
        fit: (features, labels, seed) to a Target like the audited one: same recipe, same access.
        models: how many; even.
        folder: keeps each finished model's answers, so that an interrupted fleet resumes. Answers
            of another recipe, seed, plan or data have another name and are never picked up.
        recipe: says what ``fit`` does (name and settings); needed with a folder, where it is all
            that tells one fit function from another.
        workers: how many processes to train in, -1 for one a core, or ``ray`` for the Ray cluster;
            see ``attacks.shadows.workers``. ``fit`` must then be picklable by cloudpickle.
        fit_many: trains all models of a plan at once by the same recipe, see
            ``attacks.shadows.torch_fleet``; where it is given, ``fit`` is not called.

    Raises:
        ValueError: if a folder comes without a recipe, or neither fit nor fit_many is given.
    """

    fit: Fit | None
    models: int = 16
    seed: int = 0
    folder: Path | None = None
    recipe: str = ""
    workers: Workers = 1
    fit_many: FitMany | None = None
    _seen: dict[str, Observations] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if self.folder is not None and not self.recipe:
            raise ValueError("recipe: missing; a shadow folder needs to know what fit does")
        if self.fit is None and self.fit_many is None:
            raise ValueError("shadows: give fit or fit_many")

    def observations(
        self, pool: Pool, progress: Callable[[int, int], None] | None = None
    ) -> Observations:
        """What every shadow model says of the pool's records; trains those not yet trained.

        ``progress(done, total)`` is called after each model.

        Raises:
            ValueError: if the plan cannot be made (see ``plan.halves``), or what ``fit`` raises.
        """
        X, y, learned, judged = _rows(pool)
        users = pool.auxiliary.users if pool.auxiliary is not None else pool.users
        inside = np.zeros((self.models, len(y)), dtype=np.bool_)
        inside[:, learned] = halves(len(y[learned]), self.models, self.seed, users)
        name = self._name(X, y, inside)
        if name not in self._seen:
            values = self._values(name, X, y, inside, progress or _silent)
            self._seen[name] = Observations(values, inside, y, learned, judged)
        return self._seen[name]

    def _name(self, X: Array, y: Array, inside: Bools) -> str:
        kinds = [list(X.shape[1:]), X.dtype.str, y.dtype.str]  # the digest is of values alone
        parts = [FORMAT, self.recipe, str(self.seed), content_digest(X, y), kinds]
        whole = hashlib.sha256(json.dumps(parts).encode())
        whole.update(np.packbits(inside, axis=1).tobytes())
        return whole.hexdigest()[:16]

    def _values(
        self, name: str, X: Array, y: Array, inside: Bools, progress: Callable[[int, int], None]
    ) -> NDArray[np.float32]:
        store = _Store(self.folder, name, (self.models, len(y), WIDTH))
        missing = [k for k in range(self.models) if not store.has(k)]
        done = self.models - len(missing)
        progress(done, self.models)
        for k, values in self._train(X, y, inside, missing):
            store.put(k, values)
            done += 1
            progress(done, self.models)
        return store.values

    def _train(
        self, X: Array, y: Array, inside: Bools, missing: list[int]
    ) -> Iterator[tuple[int, NDArray[np.float32]]]:
        seeds = [int(np.random.SeedSequence([self.seed, k]).generate_state(1)[0]) for k in missing]
        if self.fit_many is None:
            parts = [slice(i, i + 1) for i in range(len(missing))]
            work = [(self.fit, X, y, inside, missing[p], seeds[p]) for p in parts]
            for answers in spread(_train_one, work, self.workers):
                yield from answers
        elif self.workers == "ray":
            parts = [slice(i, i + GROUP) for i in range(0, len(missing), GROUP)]
            groups = [(self.fit_many, X, y, inside, missing[p], seeds[p]) for p in parts]
            for answers in spread(_train_group, groups, self.workers):
                yield from answers
        else:
            yield from _stream(self.fit_many, X, y, inside, missing, seeds)


def _rows(pool: Pool) -> tuple[Array, Array, slice, slice]:
    """Features and labels of all records, which of them are learned from, and which are judged."""
    extra = pool.auxiliary
    if extra is None:
        return pool.features, pool.labels, slice(None), slice(None)
    X = np.concatenate([extra.features, pool.features])
    y = np.concatenate([extra.labels, pool.labels])
    return X, y, slice(0, len(extra)), slice(len(extra), None)


class _Store:
    """The matrix of answers, in memory or mapped from a file, and which of its rows are whole."""

    def __init__(self, folder: Path | None, name: str, shape: tuple[int, ...]) -> None:
        self._folder, self._name = folder, name
        if folder is None:
            self.values: NDArray[np.float32] = np.empty(shape, dtype=np.float32)
            return
        path = folder / f"answers-{name}.npy"
        try:
            found = _opened(path, shape)
            if found is None:  # the marks of a damaged file fit nothing in a new one
                with whole_file(path) as temporary:
                    np.lib.format.open_memmap(temporary, "w+", np.float32, shape).flush()
                found = np.lib.format.open_memmap(path, "r+")
        except OSError as error:
            raise ValueError(f"{path}: cannot be used ({error.strerror}); delete it") from None
        self.values = found

    def has(self, k: int) -> bool:
        """Whether model k's answers are there and are those that were written."""
        if self._folder is None or not (path := self._mark(self._folder, k)).exists():
            return False
        return path.read_bytes() == self._checksum(k).encode()

    def put(self, k: int, values: NDArray[np.float32]) -> None:
        """Keep model k's answers; the mark comes last, so that a torn row is never taken."""
        self.values[k] = values
        if self._folder is None:
            return
        self.values.flush()  # type: ignore[attr-defined]
        with whole_file(self._mark(self._folder, k)) as temporary:
            temporary.write_text(self._checksum(k))

    def _mark(self, folder: Path, k: int) -> Path:
        return folder / f"answers-{self._name}.{k:04d}.done"

    def _checksum(self, k: int) -> str:
        return f"{zlib.crc32(np.ascontiguousarray(self.values[k]).tobytes()):08x}"


def _opened(path: Path, shape: tuple[int, ...]) -> NDArray[np.float32] | None:
    """The matrix in the file; None if there is no such file, or none that can be read."""
    if not path.exists():
        return None
    try:
        found = np.lib.format.open_memmap(path, "r+")
    except (ValueError, EOFError, OverflowError):
        return None
    return found if found.shape == shape and found.dtype == np.float32 else None


def _train_one(
    fit: Fit, X: Array, y: Array, inside: Bools, models: list[int], seeds: list[int]
) -> list[tuple[int, NDArray[np.float32]]]:
    (k,), (seed,) = models, seeds
    try:
        target = fit(X[inside[k]], y[inside[k]], seed)
    except ValueError as error:
        raise ValueError(f"shadow model {k}: {error}") from error
    return [(k, _answers(target, X, y, inside[k], k))]


def _train_group(
    fit_many: FitMany, X: Array, y: Array, inside: Bools, models: list[int], seeds: list[int]
) -> list[tuple[int, NDArray[np.float32]]]:
    return list(_stream(fit_many, X, y, inside, models, seeds))


def _stream(
    fit_many: FitMany, X: Array, y: Array, inside: Bools, models: list[int], seeds: list[int]
) -> Iterator[tuple[int, NDArray[np.float32]]]:
    targets = fit_many(X, y, inside[models], seeds) if models else iter(())
    for k, target in zip(models, targets, strict=True):
        yield k, _answers(target, X, y, inside[k], k)


def _answers(target: Target, X: Array, y: Array, inside: Bools, k: int) -> NDArray[np.float32]:
    """What model k says of all records; it must know the labels that it was trained on."""
    try:
        positions(y[inside], target.classes)
        return observe(target, X, y).astype(np.float32)
    except ValueError as error:  # one that diverged answers with NaN
        raise ValueError(f"shadow model {k}: {error}") from error


def _silent(done: int, total: int) -> None:
    """Progress that nobody watches."""
