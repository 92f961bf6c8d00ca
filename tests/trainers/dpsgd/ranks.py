"""One rank of the runs that test_distributed.py starts: python ranks.py FOLDER RANK WORLD JOB...

Each job has a process group of its own; what it finds lies in FOLDER/JOB-RANK.pt afterwards.
"""

import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.functional import cross_entropy, linear

from trainers.dpsgd.adaptive import AdaptiveNorm
from trainers.dpsgd.clipping import Flat
from trainers.dpsgd.noise import seeded_noise
from trainers.dpsgd.plan import plan
from trainers.dpsgd.training import PrivateTraining
from trainers.ledger import Header, LedgerWriter

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(300, 6, generator=GENERATOR)
Y = torch.randint(0, 3, (300,), generator=GENERATOR)
FOLDER, RANK, WORLD = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])


def network(seed=0):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.LayerNorm(8), nn.Linear(8, 3))
    model.register_buffer("seen", torch.tensor([seed == 0]))
    return model


def sgd(model, rate=0.5):
    return torch.optim.SGD(model.parameters(), rate)


def losses(model):
    return lambda rows: cross_entropy(model(X[rows]), Y[rows], reduction="none")


def weights(model):
    """All of them, also where this rank holds a part."""
    whole = [getattr(p, "full_tensor", lambda p=p: p)() for p in model.parameters()]
    return torch.cat([p.detach().flatten() for p in whole])


def run(training, model, steps=None):
    for batch in training:
        training.step(batch, losses(model))
        if steps is not None and training.steps == steps:
            break
    return weights(model)


def message(call):
    """What the call is refused with, and of which kind."""
    try:
        call()
    except (RuntimeError, ValueError) as error:
        return type(error).__name__, str(error)
    return "", ""


def sums():
    """Next to no noise, and other first weights on every rank."""
    model, sizes = network(RANK), []
    training = PrivateTraining(
        model, sgd(model), plan(300, 30, steps=6, noise_multiplier=1e-7), clipping=Flat(0.05),
        source="seeded", micro_batch=7, record=lambda size, clip: sizes.append(size),
    )  # fmt: skip
    batches, seen = [], [weights(model)]
    for batch in training:
        training.step(batch, losses(model))
        batches.append(batch)
        seen.append(weights(model))
    return {"batches": batches, "weights": seen, "sizes": sizes, "buffer": model.seen}


def noise(source="secure", fault=""):
    """Records without gradients: what each rank adds, and what all of them have in the end."""
    model = nn.Linear(100, 40)
    training = PrivateTraining(
        model, sgd(model), plan(300, 1, steps=25, noise_multiplier=2.0), clipping=Flat(0.5),
        source=source, seed=11,
    )  # fmt: skip
    if fault == "over_world":  # σ/W on each rank instead of σ/√W
        training._sigma /= WORLD**0.5
    if fault == "one_key":
        training._noise = seeded_noise(11, 0)
    add, own, total = training._noise.add, [], []

    def watched(flat, standard_deviation):
        add(flat, standard_deviation)
        own.append(flat.clone())

    training._noise.add = watched
    for batch in training:
        training.step(batch, lambda rows: 0 * model(torch.ones(len(rows), 100)).sum(1))
        total.append(training.sum.flat.clone())  # divided by an expected batch size of 1
    return {"own": torch.cat(own), "total": torch.cat(total)}


def empty():
    """Most local batches are empty; then there are fewer records than ranks."""
    sizes, ends = [], []
    for records, batch_size in ((300, 2), (1, 1)):
        model = network()
        training = PrivateTraining(
            model, sgd(model), plan(records, batch_size, steps=30, noise_multiplier=1.0),
            source="seeded",
        )  # fmt: skip
        for batch in training:
            sizes.append(len(batch))
            training.step(batch, losses(model))
        ends.append(weights(model))
    return {"sizes": sizes, "ends": torch.cat(ends)}


def ledger():
    spending = plan(300, 60, steps=80, noise_multiplier=1.1)
    orders = (2.0, 8.0)
    writer = None
    if RANK == 0:
        header = Header(
            data_fingerprint="0" * 64, records=300, sampler="poisson", sample_rate=0.2,
            expected_batch_size=60, clipping="per_sample", clipping_norm=0.5,
            noise_multiplier=1.1, noise_source="secure", ranks=WORLD, orders=orders,
            planned_steps=80, delta=1e-5,
        )  # fmt: skip
        writer = LedgerWriter.create(FOLDER / "ledger.jsonl", header)
    calls = []

    def record(size, clipping_norm):
        calls.append(size)
        writer.step(
            batch_size=size, expected_batch_size=60, noise_multiplier=1.1,
            clipping_norm=clipping_norm, rdp=training.rdp,
        )  # fmt: skip

    model = network()
    training = PrivateTraining(
        model, sgd(model), spending, clipping=Flat(0.5), source="seeded", seed=3, record=record,
        orders=orders,
    )  # fmt: skip
    sizes = []
    for batch in training:
        sizes.append(len(batch))
        training.step(batch, losses(model))
    if writer is not None:
        writer.end(epsilon=training.epsilon)
    return {"calls": calls, "sizes": sizes}


def adaptive():
    model = network()
    norm = AdaptiveNorm(0.02, count_noise=1e-3, rate=0.3)
    training = PrivateTraining(
        model, sgd(model, 0.0), plan(300, 60, steps=12, noise_multiplier=1e-6), clipping=norm,
        source="seeded",
    )  # fmt: skip
    norms, batches = [norm.clipping.clipping_norm], []
    for batch in training:
        training.step(batch, losses(model))
        batches.append(batch)
        norms.append(norm.clipping.clipping_norm)
    return {"norms": norms, "batches": batches, "weights": weights(model)}


def resume():
    def begin():
        model = network(RANK)
        return model, PrivateTraining(
            model, sgd(model), plan(300, 40, steps=8, noise_multiplier=1.0), source="seeded"
        )

    model, training = begin()
    whole = run(training, model)
    model, training = begin()
    run(training, model, steps=3)
    state, left = training.state(), {k: v.clone() for k, v in model.state_dict().items()}
    model, training = begin()
    model.load_state_dict(left)
    training.restore(state)
    return {"whole": whole, "resumed": run(training, model), "state": state}


def refused():
    last = RANK == WORLD - 1
    spending = plan(300, 30, steps=2, noise_multiplier=1.0)

    def begin(model, clipping_norm=1.0, rate=0.5, sigma=1.0):
        PrivateTraining(
            model, sgd(model, rate), plan(300, 30, steps=2, noise_multiplier=sigma),
            clipping=Flat(clipping_norm),
        )  # fmt: skip

    def behind():
        model = network()
        training = PrivateTraining(model, sgd(model), spending)
        training.steps += last
        training.step(torch.tensor([RANK]), losses(model))

    return {
        "shape": message(lambda: begin(nn.Linear(6, 4 if last else 3))),
        "more": message(lambda: begin(nn.Sequential(*(nn.Linear(6, 6) for _ in range(1 + last))))),
        "clipping": message(lambda: begin(network(), clipping_norm=0.1 if last else 1.0)),
        "noise": message(lambda: begin(network(), sigma=0.5 if last else 1.0)),
        "rate": message(lambda: begin(network(), rate=0.1 if last else 0.5)),
        "wrapped": message(lambda: begin(nn.parallel.DistributedDataParallel(network()))),
        "behind": message(behind),
    }  # fmt: skip


def opacus():
    ends = []
    for engine in ("book-keeping", "opacus"):
        model = network()
        training = PrivateTraining(
            model, sgd(model), plan(300, 40, steps=3, noise_multiplier=1.0), source="seeded",
            engine=engine,
        )  # fmt: skip
        ends.append(run(training, model))
    return {"ends": ends}


def optimizer():
    """Adam on every rank, and one whose state is spread over them."""
    ends = []
    for kind in (torch.optim.Adam, ZeroRedundancyOptimizer):
        model = network()
        options = {"optimizer_class": torch.optim.Adam} if kind is not torch.optim.Adam else {}
        training = PrivateTraining(
            model, kind(model.parameters(), lr=0.01, **options),
            plan(300, 40, steps=4, noise_multiplier=1.0), source="seeded",
        )  # fmt: skip
        ends.append(run(training, model))
    return {"ends": ends}


def spread(model):
    mesh = init_device_mesh("cpu", (WORLD,))
    fully_shard(model[0], mesh=mesh)
    fully_shard(model[3], mesh=mesh)
    return fully_shard(model, mesh=mesh)


def sharded():
    """The same run twice: whole weights on every rank, and shards. Local batches may be empty."""
    found = {}
    for batch_size in (40, 2):
        for name in ("whole", "sharded"):
            model = network()
            model = spread(model) if name == "sharded" else model
            optimizer = torch.optim.Adam(model.parameters(), 0.01)
            training = PrivateTraining(
                model, optimizer, plan(300, batch_size, steps=8, noise_multiplier=1.0),
                clipping=AdaptiveNorm(0.5, count_noise=2.0), source="seeded", micro_batch=6,
            )  # fmt: skip
            found[name, batch_size] = run(training, model)
            if name == "sharded":
                state = optimizer.state[next(model.parameters())]["exp_avg"]
                found["kept"] = state.to_local().numel(), state.numel()
    return found


def sharded_refused():
    spending = plan(300, 40, steps=2, noise_multiplier=1.0)

    class Scale(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(6))

        def forward(self, x):
            return x * self.scale

    class Again(nn.Linear):
        """Uses its weight a second time where no hook sees it."""

        def forward(self, x):
            return super().forward(x) + linear(x.detach(), self.weight)

    def begin(model, **options):
        training = PrivateTraining(
            model, sgd(model), options.pop("spending", spending), source="seeded", **options
        )
        run(training, model)

    def alone():
        model = spread(network())
        PrivateTraining(model, sgd(model), spending).sum.add(losses(model)(torch.arange(4)))

    mesh = init_device_mesh("cpu", (WORLD,))
    some = network()
    fully_shard(some[0], mesh=mesh)
    unknown = fully_shard(nn.Sequential(Scale(), nn.Linear(6, 3)), mesh=mesh)
    return {
        "part": message(lambda: begin(some)),
        "unknown": message(lambda: begin(unknown)),
        "alone": message(alone),
        "opacus": message(lambda: begin(spread(network()), engine="opacus")),
        "records": message(
            lambda: begin(spread(network()), spending=plan(WORLD, 1, steps=2, noise_multiplier=1.0))
        ),
        "again": message(lambda: begin(fully_shard(nn.Sequential(Again(6, 3)), mesh=mesh))),
    }  # fmt: skip


def stops(how):
    """The last rank stops in the fourth step; what the others are told, and after how long."""
    model = network()
    training = PrivateTraining(
        model, sgd(model), plan(300, 90, steps=9, noise_multiplier=1.0), source="seeded"
    )
    began = time.monotonic()

    def stopping(rows):
        if RANK == WORLD - 1 and training.steps == 3:
            how()
        return losses(model)(rows)

    def call():
        for batch in training:
            training.step(batch, stopping)

    return {"said": message(call), "steps": training.steps, "seconds": time.monotonic() - began}


def fails():
    def how():
        raise ValueError("no such record")

    return stops(how)


def hangs():
    return stops(lambda: time.sleep(6))


def dies():
    return stops(lambda: os._exit(3))


JOBS = {
    "sums": sums,
    "noise": noise,
    "noise_seeded": lambda: noise("seeded"),
    "noise_over_world": lambda: noise(fault="over_world"),
    "noise_one_key": lambda: noise(fault="one_key"),
    "empty": empty,
    "ledger": ledger,
    "adaptive": adaptive,
    "resume": resume,
    "refused": refused,
    "opacus": opacus,
    "optimizer": optimizer,
    "sharded": sharded,
    "sharded_refused": sharded_refused,
    "fails": fails,
    "hangs": hangs,
    "dies": dies,
}


def main():
    torch.set_num_threads(1)
    for name in sys.argv[4:]:
        dist.init_process_group(
            "gloo", init_method=f"file://{FOLDER}/{name}.store", rank=RANK, world_size=WORLD,
            timeout=timedelta(seconds=4 if name == "hangs" else 60),
        )  # fmt: skip
        torch.save(JOBS[name](), FOLDER / f"{name}-{RANK}.pt")
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
