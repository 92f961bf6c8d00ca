"""Every layer's clipped sum is that of clipping each record's own gradient, whatever the shapes."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opacus.layers import DPGRU, DPLSTM, DPRNN, DPMultiheadAttention
from torch import nn
from torch.nn import functional as F

quick = settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
size = st.integers(1, 6)


def squares(model, x):
    """A loss for each record."""
    out = model(x).flatten(1)
    scale = torch.linspace(0.3, 2.0, out.shape[1])
    return (out * scale).square().mean(1)


@pytest.fixture(scope="session")
def check(same_as_reference):
    def run(model, x):
        # records of uneven size, so that some are clipped and some are not
        scale = torch.linspace(0.2, 2.0, len(x)).view(-1, *(1,) * (x.dim() - 1))
        same_as_reference(model, squares, (x * scale,))

    return run


@quick
@given(batch=st.integers(2, 5), places=st.integers(0, 7), d=size, p=size, bias=st.booleans())
def test_linear(check, batch, places, d, p, bias):
    torch.manual_seed(0)
    shape = (batch, d) if places == 0 else (batch, places, d)
    check(nn.Sequential(nn.Linear(d, p, bias=bias), nn.Tanh(), nn.Linear(p, 3)), torch.randn(shape))


def test_linear_over_two_dimensions_of_places(check):
    torch.manual_seed(0)
    check(nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2)), torch.randn(3, 4, 6, 5))


@quick
@given(
    dims=st.integers(1, 3), batch=st.integers(2, 4), groups=st.integers(1, 2),
    ins=st.integers(1, 2), outs=st.integers(1, 2), kernel=st.integers(1, 3),
    stride=st.integers(1, 3), padding=st.integers(0, 2), dilation=st.integers(1, 2),
    bias=st.booleans(), extra=st.integers(0, 4),
)  # fmt: skip
def test_convolutions(
    check, dims, batch, groups, ins, outs, kernel, stride, padding, dilation, bias, extra
):
    torch.manual_seed(0)
    kind = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dims - 1]
    layer = kind(
        groups * ins, groups * outs, kernel, stride=stride, padding=padding, dilation=dilation,
        groups=groups, bias=bias,
    )  # fmt: skip
    length = max(1, dilation * (kernel - 1) + 1 - 2 * padding) + extra
    check(layer, torch.randn(batch, groups * ins, *(length + i for i in range(dims))))


@pytest.mark.parametrize("mode", ["zeros", "reflect", "replicate", "circular"])
def test_convolutions_pad_as_they_say(check, mode):
    torch.manual_seed(0)
    layer = nn.Conv2d(2, 4, (3, 2), padding="same", padding_mode=mode, dilation=(1, 2))
    check(layer, torch.randn(3, 2, 6, 7))


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.LayerNorm(5), (4, 5)),
        (nn.LayerNorm((3, 5)), (4, 2, 3, 5)),
        (nn.LayerNorm(5, bias=False), (4, 6, 5)),
        (nn.RMSNorm(5), (4, 6, 5)),
        (nn.RMSNorm((3, 5), eps=1e-3), (4, 3, 5)),
        (nn.GroupNorm(2, 6), (4, 6, 5, 3)),
        (nn.GroupNorm(3, 6), (4, 6)),
        (nn.PReLU(4), (3, 4, 5)),  # no rule of its own
    ],
)
def test_norms_and_layers_without_a_rule(check, layer, shape):
    torch.manual_seed(0)
    for p in layer.parameters():
        nn.init.normal_(p, 1.0)
    check(layer, torch.randn(shape))


@quick
@given(batch=st.integers(2, 4), places=st.integers(1, 8), rows=st.integers(2, 6), d=size)
def test_embeddings_count_repeated_words(same_as_reference, batch, places, rows, d):
    torch.manual_seed(places)
    model = nn.Sequential(nn.Embedding(rows, d, padding_idx=0), nn.Tanh(), nn.Linear(d, 2))
    same_as_reference(model, squares, (torch.randint(0, rows, (batch, places)),))


class Tied(nn.Module):
    """A head that shares the embedding's matrix, one layer used twice, and shared positions."""

    def __init__(self, words=12, d=6, places=5):
        super().__init__()
        self.words, self.places = nn.Embedding(words, d), nn.Embedding(places, d)
        self.twice, self.norm = nn.Linear(d, d), nn.LayerNorm(d)
        self.head = nn.Linear(d, words, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids):
        h = self.words(ids) + self.places(torch.arange(ids.shape[1])[None])
        h = h + self.twice(torch.tanh(self.twice(self.norm(h))))
        return self.head(self.norm(h))


def token_losses(model, ids):
    """The mean cross-entropy of the next word, over each record's own words; 0 is padding."""
    logits, targets = model(ids)[:, :-1], ids[:, 1:]
    losses = F.cross_entropy(logits.transpose(1, 2), targets, reduction="none")
    real = targets != 0
    return (losses * real).sum(1) / real.sum(1).clamp(min=1)


def test_tied_weights_and_repeated_use_with_their_cross_terms(same_as_reference):
    torch.manual_seed(0)
    ids = torch.randint(1, 12, (4, 5))
    ids[1, 3:] = 0
    same_as_reference(Tied(), token_losses, (ids,))
    # a long text over few dimensions: the matrix is smaller than the places' Gram matrices
    same_as_reference(Tied(3, 2, 40), token_losses, (torch.randint(1, 3, (3, 40)),))


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.inner, self.head = kind(3, 4, batch_first=True), nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.inner(x)[0][:, -1])


@pytest.mark.parametrize("kind", [DPLSTM, DPGRU, DPRNN])
def test_recurrent_layers_through_opacus(check, kind):
    torch.manual_seed(0)
    check(Recurrent(kind), torch.randn(3, 5, 3))


class Attending(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = DPMultiheadAttention(4, 2, batch_first=True)
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.inner(x, x, x, need_weights=False)[0].mean(1))


def test_attention_through_opacus(check):
    torch.manual_seed(0)
    check(Attending(), torch.randn(3, 5, 4))


def test_frozen_weights_get_nothing_and_the_rest_is_the_same(check):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3), nn.Tanh(), nn.Linear(3, 2))
    model[0].weight.requires_grad_(False)
    for p in model[2].parameters():
        p.requires_grad_(False)
    check(model, torch.randn(4, 4))
