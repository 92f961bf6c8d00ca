"""The reader of training steps: what it may say "per record" of, and what it must not."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from audit.claims.code import Reading, read_source
from audit.yaml_file import InputError

SNIPPETS = Path(__file__).parents[3] / "fixtures" / "snippets"


def read(tmp_path: Path, source: str) -> Reading:
    path = tmp_path / "step.py"
    path.write_text(textwrap.dedent(source), encoding="utf-8")
    return read_source(path)


@pytest.mark.parametrize(
    ("name", "clipping", "noise_on", "divided"),
    [
        ("dpsgd_step", "per_record", "sum", False),
        ("record_by_record", "per_record", "sum", False),
        ("noise_on_the_mean", "per_record", "mean", False),
        ("mask_after_total_clipping", "aggregate", "sum", False),
        ("mask_and_divided_noise", "aggregate", "sum", True),
    ],
)
def test_the_fixtures_are_read_as_their_docstrings_say(
    name: str, clipping: str, noise_on: str, divided: bool
) -> None:
    found = read_source(SNIPPETS / f"{name}.py")
    assert (found.clipping, found.noise_on) == (clipping, noise_on)
    assert found.noise_divided_by_batch is divided
    assert found.masked_after_clipping is name.startswith("mask")


SOUND = {
    "renamed variables": """
        def f(w, grad_sample, c, sigma, lr):
            a = grad_sample.flatten(1).norm(2, dim=1)
            b = (c / (a + 1e-6)).clamp(max=1.0)
            t = (grad_sample * b[:, None]).sum(dim=0)
            n = torch.normal(0.0, c * sigma, t.shape)
            return w - lr * (t + n)
        """,
    "einsum clipping": """
        def step(p, grad_sample, max_norm, noise_multiplier, batch_size):
            norms = torch.sqrt(torch.einsum("bi,bi->b", grad_sample, grad_sample))
            scale = torch.minimum(torch.ones_like(norms), max_norm / norms)
            total = torch.einsum("b,bi->i", scale, grad_sample)
            std = noise_multiplier * max_norm
            return (total + std * torch.randn_like(total)) / batch_size
        """,
    "vmap of grad": """
        def step(params, x, y, clip, sigma, rng):
            grads = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(params, x, y)
            norms = torch.linalg.vector_norm(grads.flatten(1), dim=1)
            grads = grads / torch.clamp(norms / clip, min=1.0)[:, None]
            total = grads.sum(0)
            return total + torch.randn_like(total) * sigma * clip
        """,
    "numpy": """
        def step(w, grad_sample, C, sigma, rng):
            flat = grad_sample.reshape(len(grad_sample), -1)
            norms = np.linalg.norm(flat, axis=1)
            clipped = flat / np.maximum(1.0, norms / C)[:, None]
            return clipped.sum(axis=0) + rng.normal(0.0, sigma * C, size=w.shape)
        """,
    "all layers of a model": """
        def step(model, C, sigma, expected_batch_size):
            per_layer = [p.grad_sample.flatten(1).norm(2, dim=1) for p in model.parameters()]
            norms = torch.stack(per_layer).norm(2, dim=0)
            factor = (C / (norms + 1e-6)).clamp(max=1.0)
            for p in model.parameters():
                total = (p.grad_sample * factor[:, None]).sum(0)
                p.grad = (total + torch.randn_like(total) * sigma * C) / expected_batch_size
        """,
    "noise and mean divided alike": """
        def step(w, grad_sample, C, sigma, batch_size):
            norms = grad_sample.flatten(1).norm(dim=1)
            factor = (C / norms).clamp(max=1)
            mean = (grad_sample * factor[:, None]).mean(0)
            return mean + torch.randn_like(mean) * sigma * C / batch_size
        """,
    "an if that clips": """
        def step(model, batch, C, sigma):
            total = torch.zeros(model.size)
            for x in batch:
                g = torch.autograd.grad(loss(model, x), weights)
                norm = g.norm()
                if norm > C:
                    g = g * (C / norm)
                total += g
            return total + torch.randn_like(total) * C * sigma
        """,
}


@pytest.mark.parametrize("name", SOUND)
def test_sound_steps_in_other_words_are_recognised(tmp_path: Path, name: str) -> None:
    found = read(tmp_path, SOUND[name])
    assert found.clipping == "per_record"
    mean = found.noise_on == "mean"
    assert found.noise_divided_by_batch is mean  # noise over what one record moves is σ


# What bounds no record by C, or has other noise than C·σ. Each differs from a sound step in one
# thing; the reading must not be a sound step's.
UNSOUND = {
    "clip after the sum": """
        def step(w, grad_sample, C, sigma):
            total = grad_sample.sum(0)
            total = total * (C / total.norm()).clamp(max=1.0)
            return total + torch.randn_like(total) * C * sigma
        """,
    "one norm for the batch": """
        def step(w, grad_sample, C, sigma):
            factor = (C / grad_sample.norm()).clamp(max=1.0)
            total = (grad_sample * factor).sum(0)
            return total + torch.randn_like(total) * C * sigma
        """,
    "norm across records": """
        def step(w, grad_sample, C, sigma):
            norms = grad_sample.flatten(1).norm(2, dim=0)
            total = (grad_sample * (C / norms).clamp(max=1.0)).sum(0)
            return total + torch.randn_like(total) * C * sigma
        """,
    "clipped value not used": """
        def step(w, grad_sample, C, sigma):
            norms = grad_sample.flatten(1).norm(2, dim=1)
            clipped = grad_sample * (C / norms).clamp(max=1.0)[:, None]
            total = grad_sample.sum(0)
            return total + torch.randn_like(total) * C * sigma
        """,
    "norm of another gradient": """
        def step(w, grad_sample, per_sample_grads, C, sigma):
            norms = per_sample_grads.flatten(1).norm(2, dim=1)
            total = (grad_sample * (C / norms).clamp(max=1.0)[:, None]).sum(0)
            return total + torch.randn_like(total) * C * sigma
        """,
    "clamp in the wrong direction": """
        def step(w, grad_sample, C, sigma):
            norms = grad_sample.flatten(1).norm(2, dim=1)
            total = (grad_sample * (C / norms).clamp(min=1.0)[:, None]).sum(0)
            return total + torch.randn_like(total) * C * sigma
        """,
    "cap above one": """
        def step(w, grad_sample, C, sigma):
            norms = grad_sample.flatten(1).norm(2, dim=1)
            total = (grad_sample * (C / norms).clamp(max=5.0)[:, None]).sum(0) * 5
            return total + torch.randn_like(total) * C * sigma
        """,
    "longer after clipping": """
        def step(w, grad_sample, C, sigma):
            norms = grad_sample.flatten(1).norm(2, dim=1)
            total = 10 * (grad_sample * (C / norms).clamp(max=1.0)[:, None]).sum(0)
            return total + torch.randn_like(total) * C * sigma
        """,
    "each layer to C": """
        def step(model, C, sigma):
            for p in model.parameters():
                norms = p.grad_sample.flatten(1).norm(2, dim=1)
                total = (p.grad_sample * (C / norms).clamp(max=1.0)[:, None]).sum(0)
                p.grad = total + torch.randn_like(total) * C * sigma
        """,
    "gradients pile up over records": """
        def step(model, batch, C, sigma):
            total = torch.zeros(model.size)
            for x in batch:
                loss(model(x)).backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), C)
                total += model.weight.grad
            return total + torch.randn_like(total) * C * sigma
        """,
    "records that are batches": """
        def step(model, loader, C, sigma):
            total = torch.zeros(model.size)
            for x in loader:
                model.zero_grad()
                loss(model(x)).backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), C)
                total += model.weight.grad
            return total + torch.randn_like(total) * C * sigma
        """,
    "a sound step beside a leak": """
        def step(w, grad_sample, C, sigma):
            norms = grad_sample.flatten(1).norm(2, dim=1)
            total = (grad_sample * (C / norms).clamp(max=1.0)[:, None]).sum(0)
            return total + torch.randn_like(total) * C * sigma, grad_sample.sum(0)
        """,
    "the leak added to it": """
        def step(w, grad_sample, C, sigma):
            norms = grad_sample.flatten(1).norm(2, dim=1)
            total = (grad_sample * (C / norms).clamp(max=1.0)[:, None]).sum(0)
            noisy = total + torch.randn_like(total) * C * sigma
            return noisy + grad_sample.sum(0)
        """,
    "max norm of each entry": """
        def step(w, grad_sample, C, sigma):
            norms = grad_sample.flatten(1).norm(float("inf"), dim=1)
            total = (grad_sample * (C / norms).clamp(max=1.0)[:, None]).sum(0)
            return total + torch.randn_like(total) * C * sigma
        """,
    "clipping in one branch only": """
        def step(w, grad_sample, C, sigma, private):
            if private:
                norms = grad_sample.flatten(1).norm(2, dim=1)
                total = (grad_sample * (C / norms).clamp(max=1.0)[:, None]).sum(0)
            else:
                total = grad_sample.sum(0)
            return total + torch.randn_like(total) * C * sigma
        """,
    "a library does it": """
        def train(model, optimizer, loader):
            model, optimizer, loader = PrivacyEngine().make_private(
                module=model, optimizer=optimizer, data_loader=loader,
                noise_multiplier=1.1, max_grad_norm=1.0, poisson_sampling=False)
            for x, y in loader:
                optimizer.zero_grad()
                loss(model(x), y).backward()
                optimizer.step()
        """,
    "no clipping at all": """
        def train(model, optimizer, loader):
            for x, y in loader:
                optimizer.zero_grad()
                loss(model(x), y).backward()
                optimizer.step()
        """,
    "a helper that is not followed": """
        def step(w, grad_sample, C, sigma):
            total = clip_and_sum(grad_sample, C)
            return total + torch.randn_like(total) * C * sigma
        """,
    "norm of some layers only": """
        def step(model, C, sigma):
            norms = torch.stack(
                [p.grad_sample.flatten(1).norm(2, dim=1) for p in model.head.parameters()]
            ).norm(2, dim=0)
            for p in model.parameters():
                total = (p.grad_sample * (C / norms).clamp(max=1.0)[:, None]).sum(0)
                p.grad = total + torch.randn_like(total) * sigma * C
        """,
    "norm of the masked gradient": """
        def step(w, grad_sample, mask, C, sigma):
            norms = (grad_sample * mask).flatten(1).norm(2, dim=1)
            total = (grad_sample * (C / norms).clamp(max=1.0)[:, None]).sum(0)
            return total + torch.randn_like(total) * C * sigma
        """,
    "norm of rows and not of records": """
        def step(w, grad_sample, C, sigma):
            norms = grad_sample.norm(2, dim=1)
            total = (grad_sample * (C / norms).clamp(max=1.0)[:, None]).sum(0)
            return total + torch.randn_like(total) * C * sigma
        """,
    "negative axis across records": """
        def step(w, grad_sample, C, sigma):
            norms = grad_sample.flatten(1).norm(2, dim=-2)
            total = (grad_sample * (C / norms).clamp(max=1.0)).sum(0)
            return total + torch.randn_like(total) * C * sigma
        """,
    "the sum doubled": """
        def step(w, grad_sample, C, sigma):
            norms = grad_sample.flatten(1).norm(2, dim=1)
            total = (grad_sample * (C / norms).clamp(max=1.0)[:, None]).sum(0)
            for _ in range(10):
                total = total + total
            return total + torch.randn_like(total) * C * sigma
        """,
    "sums that pile up over batches": """
        def train(model, loader, C, sigma):
            total = torch.zeros(model.size)
            for batch in loader:
                for x in batch:
                    model.zero_grad()
                    loss(model(x)).backward()
                    torch.nn.utils.clip_grad_norm_(model.parameters(), C)
                    total += model.weight.grad
                model.weight.data -= total + torch.randn_like(total) * C * sigma
        """,
    "two sums at once": """
        def step(w, grad_sample, per_sample_grads, C, sigma):
            one = grad_sample.flatten(1).norm(2, dim=1)
            two = per_sample_grads.flatten(1).norm(2, dim=1)
            a = (grad_sample * (C / one).clamp(max=1.0)[:, None]).sum(0)
            b = (per_sample_grads * (C / two).clamp(max=1.0)[:, None]).sum(0)
            noise = torch.randn_like(a) * C * sigma
            return a + noise, b + noise
        """,
    "raw data returned beside it": """
        def step(w, grad_sample, features, C, sigma):
            norms = grad_sample.flatten(1).norm(2, dim=1)
            total = (grad_sample * (C / norms).clamp(max=1.0)[:, None]).sum(0)
            return total + torch.randn_like(total) * C * sigma, features.mean(0)
        """,
    "raw gradients saved": """
        def step(w, grad_sample, C, sigma):
            torch.save(grad_sample, "gradients.pt")
            norms = grad_sample.flatten(1).norm(2, dim=1)
            total = (grad_sample * (C / norms).clamp(max=1.0)[:, None]).sum(0)
            return total + torch.randn_like(total) * C * sigma
        """,
    "groups of records": """
        def step(model, batch, C, sigma):
            total = torch.zeros(model.size)
            for x in batch.split(8):
                model.zero_grad()
                loss(model(x)).backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), C)
                total += model.weight.grad
            return total + torch.randn_like(total) * C * sigma
        """,
    "a dict update hides it": """
        def step(w, grad_sample, C, sigma):
            total = {}
            exec("total = grad_sample.sum(0)")
            return total
        """,
}


@pytest.mark.parametrize("name", UNSOUND)
def test_what_bounds_no_record_is_never_read_as_per_record_clipping(
    tmp_path: Path, name: str
) -> None:
    assert read(tmp_path, UNSOUND[name]).clipping != "per_record"


@pytest.mark.parametrize(
    ("name", "clipping"),
    [
        ("clip after the sum", "aggregate"),
        ("one norm for the batch", "aggregate"),
        ("records that are batches", None),
        ("clipped value not used", "none"),
        ("no clipping at all", "none"),
        ("a library does it", None),
        ("a helper that is not followed", None),
    ],
)
def test_what_is_said_of_them_instead(tmp_path: Path, name: str, clipping: str | None) -> None:
    assert read(tmp_path, UNSOUND[name]).clipping == clipping


NOISE = {
    "noise before the sum": "total = (clipped + torch.randn_like(clipped) * C * sigma).sum(0)",
    "C forgotten": "total = clipped.sum(0) + torch.randn(w.shape) * sigma",
    "a small number": "total = clipped.sum(0) + 0.01 * torch.randn(w.shape) * sigma * C",
    "C squared": "total = clipped.sum(0) + torch.randn(w.shape) * sigma * C * C",
    "another distribution": "total = clipped.sum(0) + rng.laplace(0.0, sigma * C, w.shape)",
    "uniform": "total = clipped.sum(0) + torch.rand(w.shape) * sigma * C",
    "not centred": "total = clipped.sum(0) + torch.normal(clipped.mean(), sigma * C, w.shape)",
    "times an unknown": "total = clipped.sum(0) + torch.randn(w.shape) * sigma * C * schedule(t)",
    "one number for all": "total = clipped.sum(0) + torch.randn(1) * sigma * C",
    "one number for all, numpy": "total = clipped.sum(0) + np.random.normal(0.0, sigma * C)",
    "only sometimes": "total = clipped.sum(0)\n            if noisy:\n"
    "                total = total + torch.randn(w.shape) * sigma * C",
    "not the noise multiplier": "total = clipped.sum(0) + torch.randn(w.shape) * C * decay",
}


@pytest.mark.parametrize("name", NOISE)
def test_noise_other_than_c_sigma_is_never_read_as_the_accounted_one(
    tmp_path: Path, name: str
) -> None:
    found = read(
        tmp_path,
        f"""
        def step(w, grad_sample, C, sigma):
            norms = grad_sample.flatten(1).norm(2, dim=1)
            clipped = grad_sample * (C / norms).clamp(max=1.0)[:, None]
            {NOISE[name]}
            return total
        """,
    )
    assert found.noise_on is None or found.clipping is None


def test_noise_drawn_once_for_all_batches_is_not_the_accounted_one(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        """
        def train(w, loader, C, sigma):
            noise = torch.randn(w.shape) * sigma * C
            for batch in loader:
                grads = vmap(grad(loss), in_dims=(None, 0))(w, batch)
                norms = grads.flatten(1).norm(2, dim=1)
                total = (grads * (C / norms).clamp(max=1.0)[:, None]).sum(0)
                w.data -= total + noise
        """,
    )
    assert (found.clipping, found.noise_on) == ("per_record", None)


def test_no_noise_is_said_to_be_none(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        """
        def step(w, grad_sample, C, lr):
            norms = grad_sample.flatten(1).norm(2, dim=1)
            clipped = grad_sample * (C / norms).clamp(max=1.0)[:, None]
            return w - lr * clipped.sum(0)
        """,
    )
    assert (found.clipping, found.noise_on) == ("per_record", "none")


def test_a_number_for_sigma_and_a_fixed_seed_are_reported(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        """
        torch.manual_seed(42)
        def step(w, grad_sample):
            norms = grad_sample.flatten(1).norm(2, dim=1)
            total = (grad_sample * (1.5 / norms).clamp(max=1.0)[:, None]).sum(0)
            return total + torch.normal(0.0, 0.7 * 1.5, total.shape)
        """,
    )
    assert found.sigma == pytest.approx(0.7)
    assert found.seeded


def test_the_file_is_never_run(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    read(tmp_path, f"open({str(trace)!r}, 'w').write('run')\n__import__('os')._exit(7)")
    assert not trace.exists()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"def step(:\n    pass", ":1: is not valid Python"),
        (b"\x00\x01\x02", "is not valid Python"),
        (b"\xff\xfe\x00bad", "is not valid Python"),
        (b"PK\x03\x04 not python at all", "is not valid Python"),
        (b"x = 1\n" * 100_000, "longer than 200000 bytes"),
        (b"x = " + b"(" * 5_000 + b"1" + b")" * 5_000, ""),
        (b"x = " + b"-" * 20_000 + b"1", ""),
        (b"x = 1" + b" + 1" * 20_000, ""),
        (b"if a:\n" + b"".join(b" " * i + b"if a:\n" for i in range(1, 150)), ""),
    ],
)
def test_hostile_files_end_in_one_line(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "hostile.py"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_source(path)
    message = str(caught.value)
    assert str(path) in message
    assert said in message
    assert "\n" not in message


def test_empty_and_unrelated_files_say_nothing(tmp_path: Path) -> None:
    assert read(tmp_path, "") == Reading()
    assert read(tmp_path, "print('hello')\nfor i in range(3):\n    print(i)") == Reading()


def test_missing_files_and_folders_are_named(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.py", tmp_path):
        with pytest.raises(InputError, match="cannot be read"):
            read_source(path)
