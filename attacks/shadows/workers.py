"""Where shadow models are trained: in turn, in processes of this machine, or on a Ray cluster."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, TypeVar

Workers = int | Literal["ray"]
Result = TypeVar("Result")

RETRIES = 5  # how many lost nodes one task survives


def spread(
    function: Callable[..., Result], work: Sequence[tuple[Any, ...]], workers: Workers
) -> Iterator[Result]:
    """``function(*arguments)`` for each entry of ``work``, as each comes to its end.

    ``workers`` is a number of processes (joblib), -1 for one a core, or ``ray``: tasks of one CPU
    each on the cluster that ``RAY_ADDRESS`` names, or one started on this machine. A task whose
    node is lost runs again on another.

    Raises:
        ValueError: if ``workers`` is 0, Ray is asked for and not installed, or what ``function``
            raises.
    """
    if workers == "ray":
        yield from _on_ray(function, work)
    elif workers == 1:
        yield from (function(*arguments) for arguments in work)
    else:
        from joblib import Parallel, delayed

        if workers == 0:
            raise ValueError("workers: 0 can train nothing; give 1 or more, or -1 for one a core")
        calls = (delayed(function)(*arguments) for arguments in work)
        yield from Parallel(n_jobs=workers, return_as="generator_unordered")(calls)


def _on_ray(function: Callable[..., Result], work: Sequence[tuple[Any, ...]]) -> Iterator[Result]:
    try:
        import ray
    except ImportError:
        raise ValueError("workers: ray is not installed: pip install 'dpassay[scale]'") from None
    if not ray.is_initialized():
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # an audit tells nobody of itself
        ray.init(log_to_driver=False, logging_level="warning")
    kept: dict[int, Any] = {}  # the records are the same in every task: sent to each node once

    def shared(argument: Any) -> Any:
        if id(argument) not in kept:
            kept[id(argument)] = ray.put(argument)
        return kept[id(argument)]

    task = ray.remote(max_retries=RETRIES)(function)
    running = [
        task.remote(*(a if isinstance(a, list) else shared(a) for a in arguments))
        for arguments in work
    ]
    try:
        while running:
            done, running = ray.wait(running)
            try:
                yield ray.get(done[0])
            except ray.exceptions.RayTaskError as error:
                raise error.cause from None
    finally:
        for reference in running:
            ray.cancel(reference, force=True)
