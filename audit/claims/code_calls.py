"""What calls of torch, numpy and jax give: noise, limits, shapes and sums, by their arguments."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from audit.claims.code_values import (
    ALONG,
    FIRST,
    ONE,
    RECORDS,
    Factor,
    Gradient,
    Noise,
    Norms,
    Product,
    Square,
    Value,
    capped,
    multiply,
    summed,
)

Of = Callable[[ast.expr], Value]
Keywords = Mapping[str, ast.expr]
UNCLEAR = frozenset({-99})  # axes that are not plain numbers
NAMES = {"loc": "mean", "scale": "std", "sigma": "std", "size": "shape"}
OTHER_NOISE = {"laplace", "uniform", "rand", "rand_like", "exponential", "poisson", "gauss",
               "normalvariate", "multivariate_normal", "truncated_normal"}  # fmt: skip


def noise(node: ast.Call, keywords: Keywords, of: Of) -> Noise | None:
    """Noise and its standard deviation; of other than centred Gaussian noise only that it is there.

    One draw for all entries hides nothing, so its shape must be seen not to be a single number's.
    """
    called, origin = call_name(node), f"{node.lineno}:{node.col_offset}"
    unknown = Noise(None, origin)
    if called in OTHER_NOISE:
        return unknown
    if called == "randn_like":
        return Noise(ONE, origin)
    if called in {"randn", "standard_normal"}:
        shape = [*node.args, *(keywords[k] for k in ("size", "shape") if k in keywords)]
        return Noise(ONE, origin) if _many(shape) else unknown
    if called not in {"normal", "normal_"}:
        return None
    text = ast.unparse(node.func)
    if "jax" in text or "jrandom" in text or "jr." in text:
        return Noise(ONE, origin) if _many(node.args[1:2]) else unknown
    given = dict(zip(("mean", "std", "shape"), node.args, strict=False))
    given |= {NAMES.get(name, name): value for name, value in keywords.items()}
    if "mean" in given and of(given["mean"]) != Product(0.0):
        return unknown
    if called == "normal" and not _many([given["shape"]] if "shape" in given else []):
        return unknown
    scale = of(given["std"]) if "std" in given else ONE
    return Noise(scale if isinstance(scale, Product) else None, origin)


def _many(shape: Sequence[ast.expr]) -> bool:
    """Whether a shape is more than written-out numbers."""
    parts = [p for s in shape for p in (s.elts if isinstance(s, ast.Tuple | ast.List) else [s])]
    return any(not isinstance(part, ast.Constant) for part in parts)


def clamp(called: str, value: Value, rest: Sequence[ast.expr], keywords: Keywords, of: Of) -> Value:
    """clamp(x, min, max) in its spellings."""
    low = keywords.get("min") or keywords.get("a_min")
    high = keywords.get("max") or keywords.get("a_max")
    if called == "clamp_max" and rest:
        high = rest[0]
    elif called == "clamp_min" and rest:
        low = rest[0]
    elif rest:
        low, high = rest[0], (rest[1] if len(rest) > 1 else high)
    if low is not None and not (isinstance(low, ast.Constant) and low.value is None):
        bound = of(low)
        if bound != Product(0.0):
            return capped(value, bound, False) if high is None else None
    return capped(value, of(high), True) if high is not None else None


def shaped(
    called: str, value: Value, rest: Sequence[ast.expr], keywords: Keywords, of: Of
) -> Value:
    """A reshaped gradient, if its records stay apart."""
    if not isinstance(value, Gradient | Square) or not _has_records(value):
        return value
    first = of(rest[0]) if rest else of(keywords.get("start_dim", ast.Constant(0)))
    if isinstance(first, Product) and called == "flatten":
        return _flat(value) if first == ONE else None
    keeps = len(rest) == 2 and of(rest[1]) == Product(-1.0)
    batch = first == RECORDS
    return _flat(value) if keeps and batch else None


def einsum(arguments: Sequence[ast.expr], of: Of) -> Value:
    """Weighted sums over records, and the squared norms of records."""
    if len(arguments) != 3 or not isinstance(arguments[0], ast.Constant):
        return None
    inputs, arrow, output = str(arguments[0].value).replace(" ", "").partition("->")
    left, _, right = inputs.partition(",")
    a, b = of(arguments[1]), of(arguments[2])
    if not arrow or not left or not right:
        return None
    if isinstance(a, Gradient) and a == b and left == right and output == left[:1]:
        return summed(Square(replace(a, flat=True)), ALONG[0])
    if isinstance(b, Factor):
        a, b, left, right = b, a, right, left
    if isinstance(a, Factor) and len(left) == 1 and right.startswith(left):
        clipped = multiply(b, a)
        if output == right[1:]:
            return summed(clipped, FIRST)
        return clipped if output == right else None
    return None


def builtin_sum(value: Value) -> Value:
    """sum() over a list: of records, or of the squared norms of layers."""
    if isinstance(value, Norms) and value.squared:
        return replace(value, layers="all") if value.layers == "listed" else None
    return summed(value, FIRST)


def axis_of(rest: Sequence[ast.expr], keywords: Keywords, skip: int) -> frozenset[int] | None:
    """The axes of a reduction: None for all, UNCLEAR where they are not plain numbers."""
    given = (
        keywords.get("dim") or keywords.get("axis") or (rest[skip] if len(rest) > skip else None)
    )
    if given is None:
        return None
    parts = given.elts if isinstance(given, ast.Tuple | ast.List) else [given]
    try:
        axes = [ast.literal_eval(part) for part in parts]
    except (ValueError, TypeError):
        return UNCLEAR
    if not axes or not all(isinstance(a, int) and not isinstance(a, bool) for a in axes):
        return UNCLEAR
    return frozenset(axes)


def is_euclidean(rest: Sequence[ast.expr], keywords: Keywords) -> bool:
    """Whether a norm is the L2 norm, as it is unless stated."""
    given = keywords.get("p") or keywords.get("ord") or (rest[0] if rest else None)
    return given is None or (isinstance(given, ast.Constant) and given.value in (2, None, "fro"))


def call_name(node: ast.AST) -> str:
    """The last part of what is called: ``torch.randn(...)`` -> randn; "" for no call."""
    if not isinstance(node, ast.Call):
        return ""
    function = node.func
    if isinstance(function, ast.Attribute):
        return function.attr
    if isinstance(function, ast.Call):
        return call_name(function)
    return function.id if isinstance(function, ast.Name) else ""


def _flat(value: Gradient | Square) -> Gradient | Square:
    if isinstance(value, Square):
        return Square(replace(value.gradient, flat=True))
    return replace(value, flat=True)


def _has_records(value: Gradient | Square) -> bool:
    return (value.gradient if isinstance(value, Square) else value).of == "records"
