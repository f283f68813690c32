"""All measurements, by name."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.surveys import kept, reading, sizes, stages, throughput


@dataclass(frozen=True)
class Run:
    """A measurement in a process of its own: `measure` takes a folder and whether to be quick."""

    what: str
    measure: Callable[[Path, bool], dict[str, Any]]


_SHAPES = {"docstrings": "docstrings, the embedded model", "gpt2-shape": "512 ids, GPT-2's shape"}
_WAYS = {
    "local": ("gattn.survey with head_table", throughput.local),
    "kept": (
        "gattn.survey with head_table of kept edges",
        partial(throughput.local, analyse="kept"),
    ),
    "bare": ("gattn.survey without analyses", partial(throughput.local, analyses=[])),
    "local-1-thread": ("gattn.survey on one thread", partial(throughput.local, threads=1)),
    "ray": ("gattn.survey on Ray, 1 worker", partial(throughput.on_ray, workers=1)),
    "packed": ("output_attentions, np.savez_compressed", partial(throughput.peer, packed=True)),
    "plain": ("output_attentions, np.save", partial(throughput.peer, packed=False)),
}

RUNS = {
    **{
        f"{shape}/{way}": Run(f"{what}: {about}", partial(measure, shape=shape))
        for shape, what in _SHAPES.items()
        for way, (about, measure) in _WAYS.items()
        if (shape, way) != ("gpt2-shape", "local-1-thread")
    },
    **{
        f"stages/{shape}": Run(f"{what}: where the time goes", partial(stages.measure, shape=shape))
        for shape, what in _SHAPES.items()
    },
    **{
        f"scaling/{workers}": Run(
            f"docstrings on Ray, a cluster configured for 4 CPUs: {workers} workers",
            partial(throughput.on_ray, shape="docstrings", workers=workers, cpus=4),
        )
        for workers in (1, 2, 3)
    },
    **{
        f"size/{name}": Run(f"bytes per column, {keep}", partial(sizes.measure, keep=keep))
        for name, keep in sizes.KEEPS.items()
    },
    **{
        f"memory/{count}": Run(
            f"peak memory of {count:,} short texts", partial(reading.write, count=count)
        )
        for count in reading.COUNTS
    },
    "reading": Run(f"reading from a survey of {reading.COUNTS[-1]:,} short texts", reading.measure),
    **{
        f"kept/{name}": Run(f"edges per query at 0.02, {what}", partial(kept.measure, model=name))
        for name, what in kept.MODELS.items()
    },
}
