"""Each record's gradient of one weight: its squared norm, and the sum weighted by record.

A weight may be used in many places, in one module or several (an embedding and the head that shares
its matrix); all its parts belong to one gradient and the cross terms count.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from trainers.dpsgd.layers import Each, Outer, Part

_FEW_PLACES = 32  # below it, halves of a Gram matrix cost as much as the whole
# Where places' gradients cancel, rounding hides what is left of them, from the norm and from the
# sum alike. So a squared norm that is below a thousandth of the square of their norms' sum (or of
# what as many places at random leave) is raised by as much: the record counts for less.
_CANCELS = 1024


class WeightGradients:
    """All records' gradients of one weight, from every use that the forward pass made of it.

    Args:
        parts: one for each use; at least one.
        shape: of the weight.
    """

    def __init__(self, parts: Sequence[Part], shape: torch.Size) -> None:
        self._shape = shape
        outers = _joined([part for part in parts if isinstance(part, Outer)])
        self._outers: list[Outer] = outers
        self._each: torch.Tensor | None = None
        singles = [part.gradients for part in parts if isinstance(part, Each)]
        if singles:
            self._each = sum(singles[1:], singles[0])
        if outers and (singles or _matrix_is_smaller(outers, shape)):
            for outer in outers:
                found = _instantiated(outer, shape)
                self._each = found if self._each is None else self._each + found
            self._outers = []

    def squared_norms(self) -> torch.Tensor:
        """(B,) in float32: each record's squared L2 norm."""
        if self._each is not None:
            return _squares(self._each)
        total, reach = _square(self._outers[0])
        for i, one in enumerate(self._outers[1:], start=1):
            square, far = _square(one)
            total, reach = total + square, reach + far
            for other in self._outers[:i]:
                total += 2 * _inner(other, one)
        total = total.clamp(min=0)  # rounding may leave a zero below zero
        places = sum(outer.right.shape[1] for outer in self._outers)
        cancels = reach.square() > max(_CANCELS, 8 * places) * total
        return torch.where(cancels, total + reach.square() / _CANCELS, total)

    def weighted_sum(self, factors: torch.Tensor, out: torch.Tensor) -> None:
        """Add the sum over records of factor (B,) times gradient to ``out``, of that shape."""
        if self._each is not None:
            rows = self._each.flatten(1).to(out.dtype)
            out += (factors.to(out.dtype) @ rows).view(self._shape)
            return
        for outer in self._outers:
            # factors that were rounded to half precision would let a record count for more than C
            left, right = outer.left, outer.right.to(out.dtype)
            scale = factors[:, None, None].to(out.dtype)
            if outer.one_hot:
                out.index_add_(0, left.flatten(), (right * scale).flatten(0, 1))
                continue
            left = left.to(out.dtype)
            if left.shape[2] < right.shape[2]:
                left = left * scale
            else:
                right = right * scale
            out.addmm_(left.flatten(0, 1).t(), right.flatten(0, 1))

    def zero(self, bad: torch.Tensor) -> None:
        """Take these records (B,) out: what they hold is not finite, and 0 times it is not 0."""
        if self._each is not None:
            self._each = self._each.clone()
            self._each[bad] = 0
        self._outers = [
            Outer(
                outer.left if outer.one_hot else _emptied(outer.left, bad),
                _emptied(outer.right, bad),
            )
            for outer in self._outers
        ]


def _emptied(x: torch.Tensor, bad: torch.Tensor) -> torch.Tensor:
    x = x.clone()
    x[bad] = 0
    return x


def _joined(outers: list[Outer]) -> list[Outer]:
    """At most two: all uses with vectors one after another, and all that name rows."""
    kinds = [[o for o in outers if o.one_hot is kind] for kind in (False, True)]
    return [
        kind[0]
        if len(kind) == 1
        else Outer(torch.cat([o.left for o in kind], 1), torch.cat([o.right for o in kind], 1))
        for kind in kinds
        if kind
    ]


def _matrix_is_smaller(outers: list[Outer], shape: torch.Size) -> bool:
    """Whether instantiating (p·d numbers a record) costs less than Gram matrices over T places."""
    if any(outer.one_hot for outer in outers):
        return False
    places = sum(outer.right.shape[1] for outer in outers)
    if places == 1:
        return False  # the norm is a product of two norms
    return places * (shape[0] + shape[1]) > 2 * shape[0] * shape[1]


def _instantiated(outer: Outer, shape: torch.Size) -> torch.Tensor:
    if not outer.one_hot:
        # under autocast a layer may take float32 in and give half precision out
        kind = torch.promote_types(outer.left.dtype, outer.right.dtype)
        return outer.left.to(kind).transpose(1, 2) @ outer.right.to(kind)
    size = len(outer.right)
    found = outer.right.new_zeros(size * shape[0], shape[1])
    start = torch.arange(size, device=found.device)[:, None] * shape[0]
    found.index_add_(0, (outer.left + start).flatten(), outer.right.flatten(0, 1))
    return found.view(size, *shape)


def _square(one: Outer) -> tuple[torch.Tensor, torch.Tensor]:
    """Squared norms (B,) of parts of the records' gradients, and sums of places' norms (B,)."""
    places = one.right.shape[1]
    if places == 1 and not one.one_hot:
        square = _squares(one.left) * _squares(one.right)
        return square, square.sqrt()
    if one.one_hot or places < 2 * _FEW_PLACES:
        left, right = _grams(one, one)
        norms = (left * right).diagonal(dim1=1, dim2=2).clamp(min=0).sqrt()
        return (left * right).sum((1, 2)), norms.sum(1)
    # Gram matrices are symmetric: what is off the diagonal's blocks is worked out once, not twice
    half = places // 2
    first = Outer(one.left[:, :half], one.right[:, :half])
    second = Outer(one.left[:, half:], one.right[:, half:])
    (one_square, one_reach), (two_square, two_reach) = _square(first), _square(second)
    return one_square + two_square + 2 * _inner(first, second), one_reach + two_reach


def _inner(one: Outer, other: Outer) -> torch.Tensor:
    """The inner products (B,) of two parts of the same records' gradients."""
    left, right = _grams(one, other)
    return (left * right).sum((1, 2))


def _grams(one: Outer, other: Outer) -> tuple[torch.Tensor, torch.Tensor]:
    """Inner products of left and of right vectors, of every two places (B, T, T')."""
    right = one.right.float() @ other.right.float().transpose(1, 2)
    if one.one_hot and other.one_hot:
        left = one.left[:, :, None] == other.left[:, None, :]
    elif other.one_hot:  # vectors, then rows: pick each row's entry of each vector
        ids = other.left[:, None, :].expand(-1, one.left.shape[1], -1)
        left = one.left.float().gather(2, ids)
    else:
        left = one.left.float() @ other.left.float().transpose(1, 2)
    return left, right


def _squares(x: torch.Tensor) -> torch.Tensor:
    """Each record's sum of squares (B,), without a copy of its squares."""
    kind = torch.promote_types(x.dtype, torch.float32)
    norms: torch.Tensor = torch.linalg.vector_norm(x.flatten(1), dim=1, dtype=kind)
    return norms.square().float()
