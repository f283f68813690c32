"""Runs the parts of a survey on a Ray cluster."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from socket import create_connection
from typing import Any

import torch

from gattn import errors
from gattn.errors import CaptureError, DependencyError, GattnError, ModelError
from gattn.surveys.run.local import Done
from gattn.surveys.run.ray_worker import RESUME, CapturePart, Tries

_MOST_TRIES = 3
"""How often to begin a part whose workers are lost, before the run ends."""


@dataclass(frozen=True)
class RayPool:
    """Workers on a Ray cluster, each with its own model.

    If the program has called ``ray.init`` itself, that cluster is used and left running.

    Parameters
    ----------
    address : str, optional
        ``"auto"`` for the cluster that this machine belongs to, or a cluster's address. By default
        a cluster is started on this machine, and stopped at the end.
    workers : int, optional
        How many workers. Each takes one CPU, and one CPU of the cluster stays free; by default
        there are as many as fit.
    num_gpus : float
        The GPUs per worker: 0.5 puts two workers on each GPU. By default workers use CPUs.

    Raises
    ------
    CaptureError
        If there cannot be such workers.
    """

    address: str | None = None
    workers: int | None = None
    num_gpus: float = 0

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 1:
            raise CaptureError(f"Expected at least 1 worker, not {self.workers}.")
        if self.num_gpus < 0 or (self.num_gpus > 1 and self.num_gpus % 1):
            raise CaptureError(
                "Expected a fraction of a GPU or a whole number of GPUs per worker, not "
                f"{self.num_gpus}."
            )


def check_for_ray(options: Mapping[str, Any]) -> None:
    """Check that options of `CaptureGraphs` can be sent to workers."""
    if isinstance(options["model"], torch.nn.Module):
        raise ModelError(
            "Workers on Ray load the model themselves, but this one is in memory. Pass its "
            "name, or save it with its tokenizer to a folder that all machines see, and pass that."
        )
    cloudpickle = _ray().cloudpickle
    for name, value in options.items():
        try:
            cloudpickle.dumps(value)
        except Exception as error:  # Options can fail to pickle in any way.
            raise CaptureError(
                f"{name} cannot be sent to Ray's workers: {error}. A function should create or "
                "import what it needs."
            ) from error


def run_on_ray(
    pool: RayPool, folder: Path, parts: Sequence[int], options: Mapping[str, Any]
) -> Iterator[Done]:
    """Capture parts on a Ray cluster; yield each once it is written, in any order.

    Parameters
    ----------
    pool : RayPool
        The workers.
    folder : Path
        The survey's folder, which all machines see.
    parts : sequence of int
        Which parts of its queue to run.
    options : mapping
        The options of `CaptureGraphs`.

    A lost worker is replaced and its parts are begun again, a few times. Errors of a worker end the
    run.
    """
    ray = _ray()
    with _connected(ray, pool), _quiet(), closing(_rows(ray, pool, folder, parts, options)) as rows:
        try:
            for row in rows:
                yield _done(json.loads(row["answer"]))
        except ray.exceptions.RayError as error:
            raise CaptureError(f"Ray stopped: {error}\n{RESUME}") from error


def _ray() -> Any:
    try:
        import ray.data
    except ModuleNotFoundError as error:
        raise DependencyError("A Ray cluster needs Ray: pip install 'gattn[ray]'.") from error
    return ray


@contextmanager
def _connected(ray: Any, pool: RayPool) -> Iterator[None]:
    if ray.is_initialized():
        yield
        return
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # Its backend writes to stderr, too.
    options = {"log_to_driver": False, "logging_level": logging.ERROR}
    if pool.address is None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        options["include_dashboard"] = False
    try:
        _knock(pool.address)
        with _unheard():
            ray.init(pool.address or "local", **options)
    except (OSError, ValueError, RuntimeError) as error:
        place = "on this machine" if pool.address is None else f"at {pool.address!r}"
        raise CaptureError(f"Cannot connect to a Ray cluster {place}: {error}.") from error
    try:
        yield
    finally:
        ray.shutdown()


@contextmanager
def _unheard() -> Iterator[None]:
    """Silence stderr at the level of the system, as Ray does not write to it through Python."""
    stderr = os.dup(2)
    try:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)


def _knock(address: str | None) -> None:
    """Fail at once if nothing answers; Ray would wait for minutes."""
    host, _, port = (address or "").rpartition(":")
    if host and port.isdigit():
        create_connection((host.removeprefix("ray://"), int(port)), timeout=10).close()


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the log of Ray Data; errors are raised anyway."""
    logger = logging.getLogger("ray.data")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


def _rows(
    ray: Any, pool: RayPool, folder: Path, parts: Sequence[int], options: Mapping[str, Any]
) -> Generator[Mapping[str, Any], None, None]:
    workers = min(_workers(pool, ray.cluster_resources()), len(parts))
    tries = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)(Tries).remote(_MOST_TRIES)
    dataset = ray.data.from_items(
        [{"first": first} for first in parts], override_num_blocks=len(parts)
    ).map_batches(
        CapturePart,
        fn_constructor_args=(folder.resolve(), _placed(options), pool.num_gpus, tries),
        batch_size=1,
        compute=ray.data.ActorPoolStrategy(
            size=workers,
            max_tasks_in_flight_per_actor=2,
            max_concurrent_calls_per_actor=2,
            enable_true_multi_threading=True,
        ),
        num_cpus=1,
        num_gpus=pool.num_gpus,
    )
    dataset.context.enable_progress_bars = False
    # By default Ray ends a run in which no part was finished for half an hour.
    dataset.context.execution_no_progress_timeout_s = -1
    yield from dataset.iter_rows()


def _placed(options: Mapping[str, Any]) -> dict[str, Any]:
    """Make the path of a model's folder absolute, so that workers find it."""
    model = options["model"]
    is_folder = model is not None and Path(model).is_dir()
    return {**options, "model": str(Path(model).resolve()) if is_folder else model}


def _workers(pool: RayPool, resources: Mapping[str, float]) -> int:
    """Count the workers; one CPU stays free for Ray's other tasks."""
    cpus, gpus = resources.get("CPU", 0), resources.get("GPU", 0)
    most = max(1, int(cpus) - 1)
    if pool.num_gpus:
        most = min(most, int(gpus / pool.num_gpus))
    workers = pool.workers or most
    if not 1 <= workers <= most:
        raise CaptureError(
            f"There is room for {most} workers with 1 CPU and {pool.num_gpus:g} GPUs each, not for "
            f"{workers or 1}: the cluster has {cpus:g} CPUs, one of which stays free, and {gpus:g} "
            "GPUs."
        )
    return workers


def _done(answer: Mapping[str, Any]) -> Done:
    if "error" in answer:
        error: GattnError = getattr(errors, answer["error"], CaptureError)(answer["message"])
        if "traceback" in answer:
            error.add_note(answer["traceback"])
        raise error
    return Done(**{**answer, "reasons": tuple(answer["reasons"])})
