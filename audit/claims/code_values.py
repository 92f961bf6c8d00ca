"""What the reader of code.py knows of a value, and the algebra of it; None is "not known".

The algebra is strict: an operation that is not understood gives None, and None supports nothing.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace
from typing import Literal

BATCH = "batch size"
FIRST = frozenset({0})
ALONG = (frozenset({1}), frozenset({-1}))  # of a flat gradient
WEIGHTS = {"p", "param", "params", "parameter", "parameters", "w", "weight", "weights", "theta"}


@dataclass(frozen=True)
class Product:
    """A number times powers of names: C·σ/batch size."""

    coefficient: float = 1.0
    powers: frozenset[tuple[str, float]] = frozenset()

    def times(self, other: Product, power: float = 1) -> Product | None:
        """self · other^power; None for a division by zero."""
        total = dict(self.powers)
        for name, exponent in other.powers:
            total[name] = total.get(name, 0) + power * exponent
        try:
            coefficient = self.coefficient * other.coefficient**power
        except (ZeroDivisionError, OverflowError):
            return None
        if isinstance(coefficient, complex):
            return None
        return Product(coefficient, frozenset((n, e) for n, e in total.items() if e))

    def power(self, name: str) -> float:
        """The exponent of a name; 0 where it does not occur."""
        return dict(self.powers).get(name, 0)


ONE = Product()
RECORDS = Product(1.0, frozenset({(BATCH, 1.0)}))  # how many there are in the batch


@dataclass(frozen=True)
class Zero:
    """An accumulator before anything is added to it, made inside so many loops over data."""

    depth: int = 0


@dataclass(frozen=True)
class Mask:
    """Zeroes and ones: it lengthens no vector."""


@dataclass(frozen=True)
class Parameters:
    """The layers of a model, or one of them; ``text`` says which model."""

    text: str
    element: bool = False


@dataclass(frozen=True)
class Gradient:
    """A gradient: of every ``record`` (a leading axis), of ``one`` record, or their ``sum``.

    Attributes:
        origin: which gradient it is: a norm bounds the gradient that it was taken of.
        partial: of one layer only, whose norm is not that of the whole gradient.
        flat: one vector for every record, so that a norm along an axis is that of a record.
        bound: the norm that it was clipped to, with all that ``scale`` does not hold.
    """

    of: Literal["records", "one", "sum"]
    origin: str
    partial: bool = False
    flat: bool = False
    clipped: Literal["per_record", "aggregate"] | None = None
    bound: Product = ONE
    scale: Product = ONE
    masked: bool = False


@dataclass(frozen=True)
class Square:
    """A gradient squared, entry by entry."""

    gradient: Gradient


@dataclass(frozen=True)
class Norms:
    """The L2 norms of a gradient: of ``one`` layer, ``listed`` layer by layer, or of ``all``.

    ``batch``: one norm for all records together.
    """

    origin: str
    layers: Literal["one", "listed", "all"]
    squared: bool = False
    batch: bool = False


@dataclass(frozen=True)
class Factor:
    """What a gradient is multiplied with to have at most the norm ``bound``.

    Kinds: ``ratio`` C/norm; ``capped`` min(1, C/norm); ``over`` norm/C; ``divisor``
    max(1, norm/C); ``floor`` max(C, norm).
    """

    kind: Literal["ratio", "capped", "over", "divisor", "floor"]
    bound: Product
    norms: Norms


@dataclass(frozen=True)
class Noise:
    """Noise drawn at ``origin``, and its standard deviation if it is Gaussian and that is known.

    ``depth`` counts the loops over data around it: noise from outside a loop is the same each turn.
    """

    scale: Product | None
    origin: str
    depth: int = 0


@dataclass(frozen=True)
class Released:
    """A sum over records with noise on it."""

    signal: Gradient
    noise: Noise


Value = (
    Product
    | Zero
    | Mask
    | Parameters
    | Gradient
    | Square
    | Norms
    | Factor
    | Noise
    | Released
    | None
)


def multiply(left: Value, right: Value) -> Value:
    """left · right, entry by entry."""
    for a, b in ((left, right), (right, left)):
        match a, b:
            case Product(), Product():
                return a.times(b)
            case Gradient(), Product():
                return _scaled(a, b)
            case Gradient(), Mask():
                if a.clipped:
                    return replace(a, masked=True)
                return replace(a, origin=f"{a.origin}, masked")  # whose norm is another one
            case Gradient(), Factor(kind="ratio" | "capped"):
                return _clipped(a, b)
            case Noise(), Product():
                return replace(a, scale=a.scale.times(b) if a.scale else None)
            case Released(), Product() | Mask():
                return a
            case Factor(kind="ratio"), Product():
                bound = a.bound.times(b)
                return replace(a, bound=bound) if bound else None
    return None


def divide(left: Value, right: Value) -> Value:
    """left / right."""
    match left, right:
        case Product(), Product():
            return left.times(right, -1)
        case Gradient(), Product():
            return _scaled(left, right, -1)
        case Noise(), Product():
            return replace(left, scale=left.scale.times(right, -1) if left.scale else None)
        case Released(), Product():
            return left
        case Product(), Norms(squared=False):
            return Factor("ratio", left, right)
        case Norms(squared=False), Product():
            return Factor("over", right, left)
        case Product(), Factor(kind="floor") if left == right.bound:
            return replace(right, kind="capped")
        case Product(), Factor(kind="divisor") if left == ONE:
            return replace(right, kind="capped")
        case Product(), Factor(kind="over") if left == ONE:
            return replace(right, kind="ratio")
        case Gradient(), Factor(kind="divisor"):
            return _clipped(left, right)
        case Gradient(), Norms(squared=False):
            return _clipped(left, Factor("ratio", ONE, right))
    return None


def add(left: Value, right: Value, names: tuple[str, str] = ("", "")) -> Value:
    """left ± right; ``names`` are theirs: weights may be moved by a gradient."""
    for a, b, name in ((left, right, names[1]), (right, left, names[0])):
        match a, b:
            case Zero(), _:
                return b
            case Product(), Product():
                return None
            case Gradient() | Released() | Noise(), Product() if _weights(name):
                return a
            case Gradient() | Released() | Noise(), Parameters():
                return a
            case Gradient(of="sum"), Noise():
                return Released(a, b)
            case Norms(squared=False), Product():
                small = b.coefficient >= 0 and all("eps" in n.lower() for n, _ in b.powers)
                return a if small else None
    return None


def raised(base: Value, exponent: Value) -> Value:
    """base ** exponent."""
    if not isinstance(exponent, Product) or exponent.powers:
        return None
    match base, exponent.coefficient:
        case Product(), power:
            return ONE.times(base, power)
        case Gradient(), 2:
            return Square(base)
        case Norms(squared=False), 2:
            return replace(base, squared=True)
        case Norms(squared=True), 0.5:
            return replace(base, squared=False)
    return None


def summed(value: Value, axis: frozenset[int] | None, average: bool = False) -> Value:
    """The sum or the mean along axes; None stands for all of them at once."""
    match value:
        case Gradient(of="records") if axis == FIRST:
            total = replace(value, of="sum")
            return _scaled(total, RECORDS, -1) if average else total
        case Square(gradient) if not average:
            layers: Literal["one", "all"] = "one" if gradient.partial else "all"
            if gradient.of != "records":
                return Norms(gradient.origin, layers, squared=True) if axis is None else None
            if gradient.flat and axis in ALONG:
                return Norms(gradient.origin, layers, squared=True)
        case Norms(layers="listed", squared=True) if axis in (None, FIRST) and not average:
            return replace(value, layers="all")
        case Released():
            return None
    return None


def norm(value: Value, axis: frozenset[int] | None) -> Value:
    """The L2 norm along axes; None stands for all of them at once."""
    if isinstance(value, Norms) and value.layers == "listed" and not value.squared:
        return replace(value, layers="all") if axis == FIRST else None
    if not isinstance(value, Gradient) or value.clipped or value.scale != ONE:
        return None
    layers: Literal["one", "all"] = "one" if value.partial else "all"
    if value.of != "records":
        return Norms(value.origin, layers) if axis is None else None
    if axis is None:
        return None if value.partial else Norms(value.origin, "all", batch=True)
    return Norms(value.origin, layers) if value.flat and axis in ALONG else None


def capped(value: Value, limit: Value, upper: bool) -> Value:
    """min(value, limit) if ``upper``, else max(value, limit)."""
    for a, b in ((value, limit), (limit, value)):
        match a, b:
            case Factor(kind="ratio"), Product(c, powers) if upper and not powers and c <= 1:
                return replace(a, kind="capped")
            case Factor(kind="over"), Product(c, powers) if not upper and not powers and c >= 1:
                return replace(a, kind="divisor")
            case Norms(squared=False), Product() if not upper:
                return Factor("floor", b, a)
    return None


def listed(value: Value, layers: bool) -> Value:
    """A list of such values: over the layers of a model, or over records."""
    match value:
        case Norms(layers="one") if layers:
            return replace(value, layers="listed")
        case Gradient() if layers:
            return replace(value, partial=False)
        case Gradient(of="one"):
            return replace(value, of="records")
        case Noise() | Released() | Zero() | Factor(kind="capped"):
            return value
    return None


def _scaled(gradient: Gradient, by: Product, power: int = 1) -> Value:
    scale = gradient.scale.times(by, power)
    return replace(gradient, scale=scale) if scale else None


def _clipped(gradient: Gradient, factor: Factor) -> Value:
    norms = factor.norms
    whole = norms.layers == "all" and norms.origin == gradient.origin
    if not whole or gradient.clipped or gradient.scale != ONE:
        return None
    aggregate = norms.batch or gradient.of == "sum"
    clipped: Literal["per_record", "aggregate"] = "aggregate" if aggregate else "per_record"
    return replace(gradient, clipped=clipped, bound=factor.bound)


def _weights(name: str) -> bool:
    return name.rpartition(".")[2].lower().rstrip("0123456789") in WEIGHTS


def dotted(node: ast.expr) -> str:
    """A name without subscripts: ``grads[k]`` -> grads, ``p.grad`` -> p.grad; "" for no name."""
    match node:
        case ast.Name(name):
            return name
        case ast.Attribute(base, attribute):
            return f"{dotted(base)}.{attribute}"
        case ast.Subscript(base) | ast.Starred(base):
            return dotted(base)
    return ""
