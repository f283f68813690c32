"""Runs a survey's parts on a Ray cluster."""

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
from gattn.surveys.run.ray_worker import GO_ON, CapturePart, Tries

_MOST_TRIES = 3
"""How often a part is begun, where its workers are lost, before the run ends."""


@dataclass(frozen=True)
class RayPool:
    """Workers on a Ray cluster, each with a model of its own.

    Where the program has called ``ray.init`` itself, that cluster is used, and left as it is.

    Parameters
    ----------
    address : str, optional
        ``"auto"`` for the cluster that this machine belongs to, or a cluster's address. By default
        a cluster is started on this machine, and stopped at the end.
    workers : int, optional
        How many workers. Each takes one CPU, and one CPU of the cluster is left free; by default
        there are as many as the cluster has room for.
    num_gpus : float
        The GPUs of each worker: 0.5 is two workers a GPU. By default workers compute on CPUs.

    Raises
    ------
    CaptureError
        Where there can be no such workers.
    """

    address: str | None = None
    workers: int | None = None
    num_gpus: float = 0

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 1:
            raise CaptureError(f"Expected at least 1 worker, not {self.workers}.")
        if self.num_gpus < 0 or (self.num_gpus > 1 and self.num_gpus % 1):
            raise CaptureError(
                "Expected a part of a GPU or a whole number of GPUs for each worker, not "
                f"{self.num_gpus}."
            )


def check_for_ray(options: Mapping[str, Any]) -> None:
    """Refuse what cannot be sent to workers.

    Parameters
    ----------
    options : mapping
        What `CaptureGraphs` is made with.

    Raises
    ------
    ModelError
        Where the model is one in memory.
    CaptureError
        Where Ray is not installed, or an option cannot be sent.
    """
    if isinstance(options["model"], torch.nn.Module):
        raise ModelError(
            "Workers on Ray load the model by themselves, and this one is in memory. Name it, or "
            "save it with its tokenizer to a folder that all machines see, and name that."
        )
    cloudpickle = _ray().cloudpickle
    for name, value in options.items():
        try:
            cloudpickle.dumps(value)
        except Exception as error:  # Whatever holds something from here fails in its own way.
            raise CaptureError(
                f"{name} cannot be sent to Ray's workers: {error}. What a function needs it should "
                "make by itself, or import."
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
        The survey, which all machines see.
    parts : sequence of int
        What to take from its queue.
    options : mapping
        What `CaptureGraphs` is made with.

    Raises
    ------
    GattnError
        What a worker raised; it ends the run, and so does losing the workers of one part again and
        again. Any other worker that is lost is replaced, and its parts are begun anew.
    """
    ray = _ray()
    with _connected(ray, pool), _quiet(), closing(_rows(ray, pool, folder, parts, options)) as rows:
        try:
            for row in rows:
                yield _done(json.loads(row["answer"]))
        except ray.exceptions.RayError as error:
            raise CaptureError(f"Ray cannot go on: {error}\n{GO_ON}") from error


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
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # It writes to stderr, too.
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
        raise CaptureError(f"There is no Ray cluster to be reached {place}: {error}.") from error
    try:
        yield
    finally:
        ray.shutdown()


@contextmanager
def _unheard() -> Iterator[None]:
    """Keep off stderr that Ray was told to write nothing there, which it does not by Python."""
    stderr = os.dup(2)
    try:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)


def _knock(address: str | None) -> None:
    """Fail at once where nobody answers; Ray would wait for minutes."""
    host, _, port = (address or "").rpartition(":")
    if host and port.isdigit():
        create_connection((host.removeprefix("ray://"), int(port)), timeout=10).close()


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep Ray Data from telling of itself: what matters is raised."""
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
    yield from dataset.iter_rows()


def _placed(options: Mapping[str, Any]) -> dict[str, Any]:
    """Name a model's folder as workers can find it: from the root."""
    model = options["model"]
    is_folder = model is not None and Path(model).is_dir()
    return {**options, "model": str(Path(model).resolve()) if is_folder else model}


def _workers(pool: RayPool, resources: Mapping[str, float]) -> int:
    """Count the workers; one CPU stays free for whatever else Ray has to run."""
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
