"""Access levels hold, answers are checked, and the adapters agree with the models behind them."""

import subprocess
import sys

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.svm import LinearSVC

from attacks.targets import (
    AccessDenied,
    Target,
    allows,
    from_callable,
    from_sklearn,
    from_torch,
    from_transformers,
    positions,
)

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 3))
Y = np.array(["no", "yes"])[(X[:, 0] > 0).astype(int)]


def test_levels_are_ordered():
    assert allows("logits", "scores")
    assert not allows("label", "scores")
    assert allows("label", "none")
    assert not allows("gradients", "samples")


@pytest.mark.parametrize(("access", "refused"), [("label", "scores"), ("scores", "logits")])
def test_a_target_refuses_above_its_level(access, refused):
    logits = lambda rows: np.c_[rows[:, 0], -rows[:, 0]]  # noqa: E731
    target = from_callable(logits, [0, 1], access, gives="logits")
    with pytest.raises(AccessDenied, match=f"{refused} asked for, access level is '{access}'"):
        getattr(target, refused)(X)


def test_asking_more_than_the_model_gives_is_refused_at_once():
    with pytest.raises(ValueError, match="gives scores at most"):
        from_callable(lambda rows: rows, [0, 1], "logits")
    with pytest.raises(ValueError, match="has no gradients"):
        from_callable(lambda rows: rows, [0, 1], "gradients", gives="logits")
    with pytest.raises(ValueError, match="at least two"):
        from_callable(lambda rows: rows, [0], "label")


def test_sklearn_answers_as_the_estimator_and_counts():
    model = LogisticRegression().fit(X, Y)
    target = from_sklearn(model)
    assert np.allclose(target.scores(X), model.predict_proba(X))
    assert (target.predict_labels(X[:5]) == model.predict(X[:5])).all()
    assert target.queries == 45
    assert target.classes.tolist() == ["no", "yes"]


def test_sklearn_without_probabilities_gives_labels():
    target = from_sklearn(LinearSVC().fit(X, Y), "label")
    assert set(target.predict_labels(X)) <= {"no", "yes"}
    with pytest.raises(ValueError, match="gives label at most"):
        from_sklearn(LinearSVC().fit(X, Y), "scores")
    with pytest.raises(ValueError, match="not a fitted classifier"):
        from_sklearn(LogisticRegression())


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda rows: np.ones((len(rows), 2)), "not probabilities"),
        (lambda rows: np.full((len(rows), 2), np.nan), "NaN"),
        (lambda rows: np.ones((len(rows), 3)) / 3, r"expected \(n, 2\)"),
        (lambda rows: np.ones((len(rows) - 1, 2)) / 2, "answered for 39"),
    ],
)
def test_strange_answers_are_refused(answer, said):
    with pytest.raises(ValueError, match=said):
        from_callable(answer, [0, 1], "scores").scores(X)


def test_positions_of_labels():
    assert positions(np.array(["b", "a"]), np.array(["b", "c", "a"])).tolist() == [0, 2]
    with pytest.raises(ValueError, match="'z' is none of the classes"):
        positions(np.array(["b", "z"]), np.array(["b", "c"]))
    with pytest.raises(ValueError, match="different types"):
        positions(np.array([1, 0]), np.array(["0", "1"]))


def test_torch_logits_scores_and_gradient_norms():
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    module = torch.nn.Linear(3, 2)
    target = from_torch(module, "gradients", 2, device="cpu", batch_size=7)
    weights, bias = module.weight.detach().numpy(), module.bias.detach().numpy()
    assert np.allclose(target.logits(X), X.astype(np.float32) @ weights.T + bias, atol=1e-5)
    # softmax regression: the gradient is (p - e_y) times (x, 1)
    y = (X[:, 0] > 0).astype(int)
    error = target.scores(X) - np.eye(2)[y]
    closed = np.linalg.norm(error, axis=1) * np.sqrt(1 + (X**2).sum(1))
    assert np.allclose(target.gradient_norms(X, y), closed, atol=1e-5)
    assert target.queries == 120


def test_a_callable_gives_gradients_beside_logits_only():
    """Probabilities at this level would be taken for logits."""
    norms = lambda rows, at: np.abs(rows[:, 0]) + at  # noqa: E731
    target = from_callable(lambda rows: rows[:, :2], [5, 7], "gradients", "logits", norms)
    labels = np.where(X[:, 0] > 0, 7, 5)
    assert np.allclose(target.gradient_norms(X, labels), np.abs(X[:, 0]) + (X[:, 0] > 0))
    assert np.array_equal(target.logits(X), X[:, :2])
    with pytest.raises(ValueError, match="'gradients' asked of a target that gives scores at most"):
        from_callable(lambda rows: rows, [5, 7], "gradients", "scores", norms)


def test_transformers_folder_needs_safetensors(tmp_path):
    with pytest.raises(ValueError, match="no such folder"):
        from_transformers(tmp_path / "absent", "scores")
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04")
    with pytest.raises(ValueError, match=r"no \*.safetensors weights"):
        from_transformers(tmp_path, "scores")


def test_transformers_classifier_from_a_folder(tmp_path):
    transformers = pytest.importorskip("transformers")
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "b"]))
    tokenizer = transformers.BertTokenizer(str(tmp_path / "vocab.txt"))
    tokenizer.save_pretrained(tmp_path)
    config = transformers.BertConfig(
        vocab_size=6, hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=8, num_labels=3,
    )  # fmt: skip
    transformers.BertForSequenceClassification(config).save_pretrained(tmp_path)
    target = from_transformers(tmp_path, "logits", device="cpu", batch_size=2)
    texts = np.array(["a b", "b", "a a a b"])
    assert target.classes.tolist() == [0, 1, 2]
    alone = np.concatenate([target.logits(texts[i : i + 1]) for i in range(3)])
    assert np.allclose(target.logits(texts), alone, atol=1e-5)  # padding changes nothing


def test_importing_the_registry_imports_no_torch():
    code = (
        "import sys, attacks.registry, attacks.targets, attacks.shadows.fleet, attacks.baselines;"
        "attacks.registry.entries();"
        "print([m for m in ('torch', 'transformers', 'sklearn', 'pandas') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_target_classes_must_not_repeat():
    with pytest.raises(ValueError, match="without repeats"):
        Target(lambda rows: rows, gives="label", access="label", classes=[1, 1])


def embedding():
    import torch

    return torch.nn.Sequential(torch.nn.Embedding(5, 4), torch.nn.Flatten(), torch.nn.Linear(12, 2))


@pytest.mark.parametrize("kind", [np.int64, np.uint8, np.uint16, np.bool_, np.longdouble, ">f4"])
def test_records_reach_a_torch_module_in_the_type_of_its_weights(kind):
    import torch

    records = np.abs(X * 3).astype(kind)
    for weights in (torch.float32, torch.float64):
        torch.manual_seed(0)
        module = torch.nn.Linear(3, 2).to(weights)
        answer = from_torch(module, "logits", 2).logits(records)
        wanted = module(torch.tensor(records.astype(np.float64)).to(weights)).detach()
        assert np.allclose(answer, wanted, atol=1e-5)


@pytest.mark.parametrize("kind", [np.int64, np.uint8, np.int32])
def test_a_module_with_an_embedding_gets_whole_numbers(kind):
    module = embedding()
    target = from_torch(module, "gradients", 2)
    records = RNG.integers(0, 5, (40, 3))
    assert np.array_equal(target.logits(records.astype(kind)), target.logits(records))
    assert (target.gradient_norms(records.astype(kind), np.arange(40) % 2) > 0).all()
    with pytest.raises(ValueError, match="target: cannot answer about these records: index out of"):
        target.logits(records.astype(kind) + 9)


def test_records_that_a_module_cannot_take_are_one_line():
    import torch

    target = from_torch(torch.nn.Linear(3, 2), "gradients", 2)
    for ask in (target.logits, lambda rows: target.gradient_norms(rows, np.zeros(40, int))):
        with pytest.raises(ValueError, match="target: cannot answer about these records: ") as said:
            ask(X[:, :2])
        assert "\n" not in str(said.value)
        with pytest.raises(ValueError, match="takes numbers alone; encode words beforehand"):
            ask(X.astype(object))


def test_a_module_that_works_in_place_leaves_the_records_alone():
    import torch

    records = X.astype(np.float32)
    module = torch.nn.Sequential(torch.nn.ReLU(inplace=True), torch.nn.Linear(3, 2))
    from_torch(module, "logits", 2).logits(records)
    assert np.array_equal(records, X.astype(np.float32))
