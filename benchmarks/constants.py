"""Measures what gattn's constants are chosen by: `python -m benchmarks.constants [--quick]`.

- `choice.pairs_worth_an_edge`, and whether flex attention is worth choosing: the time of each
  engine on windows and on random edges, by number of tokens and edges.
- `emitting._ROWS`, `emitting._LAUNCH`: the time of the kernels that emit edges, by how many rows a
  program has and how it is launched (on a GPU alone).
"""

import argparse
import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu import graphs
from gattn import Threshold, TokenGraph, TopK, graph_attention
from gattn.engines.kernels import emitting
from gattn.errors import ContractError

HEADS, DIM = 8, 64
ENGINES = ("tiles", "edges", "flex")
LAUNCHES = [(64, 4, 2), (64, 4, 3), (64, 4, 4), (64, 8, 3), (128, 4, 3), (128, 8, 2), (128, 8, 3)]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.constants", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it runs")
    quick = parser.parse_args().quick
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for name, graph in token_graphs(quick):
        for dtype, backward in itertools.product((torch.float32, torch.bfloat16), (False, True)):
            found = {
                engine: seconds(
                    partial(attend, graph.to(device), engine, dtype, backward, device), device
                )
                for engine in ENGINES
            }
            print(f"{name}, {dtype}, {'backward' if backward else 'forward'}: {told(found)}")
    if device == "cuda":
        for rows, warps, stages in LAUNCHES:
            found = launched(rows, warps, stages, quick)
            print(f"{rows} rows, {warps} warps, {stages} stages: {told(found)}")


def token_graphs(quick: bool) -> Iterator[tuple[str, TokenGraph]]:
    """Draw windows, and random edges, of several sizes."""
    for tokens in [256] if quick else [1024, 4096, 16_384]:
        for width in (64, 512):
            yield f"window of {width}, {tokens} tokens", TokenGraph.window(tokens, width)
        for degree in (16, 64, 256):
            draw = torch.Generator().manual_seed(0)
            edges = torch.randint(0, tokens, (2, tokens * degree), generator=draw).unique(dim=1)
            yield (
                f"{degree} random edges each, {tokens} tokens",
                TokenGraph.from_edge_index(edges, tokens),
            )


def attend(
    graph: TokenGraph, engine: str, dtype: torch.dtype, backward: bool, device: str
) -> Callable[[], Any]:
    """Return a call of an engine."""
    size = (HEADS, graph.num_queries, DIM)
    tensors = [torch.randn(size, device=device, dtype=dtype) for _ in "qkv"]
    leaves = [x.requires_grad_(backward) for x in tensors]

    def run() -> Tensor:
        output = graph_attention(*leaves, graph, engine=engine)
        if backward:
            output.sum().backward()
        return output

    return run


def launched(rows: int, warps: int, stages: int, quick: bool) -> dict[str, float | str]:
    """Time attention graphs by kernels that are launched in one way."""
    emitting._ROWS, emitting._LAUNCH = rows, {"num_warps": warps, "num_stages": stages}
    size = 2048 if quick else 32_768
    keeps = {"flash": None, "topk": TopK(8), "threshold": Threshold(0.05)}
    return {
        name: seconds(
            lambda keep=keep: graphs("gattn" if keep else "peer", size, "cuda", keep=keep).run,
            "cuda",
        )
        for name, keep in keeps.items()
    }


def seconds(build: Callable[[], Callable[[], Any]], device: str) -> float | str:
    """Time a call after two others, or say why there is none."""
    try:
        run = build()
        times = [timed(run, device) for _ in range(7)]
    except (ContractError, RuntimeError) as error:
        return str(error).partition(".")[0]
    return statistics.median(times[2:])


def timed(run: Callable[[], Any], device: str) -> float:
    start = time.perf_counter()
    run()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def told(found: dict[str, float | str]) -> str:
    return ", ".join(
        f"{name} {1000 * x:.3g} ms" if isinstance(x, float) else f"{name}: {x}"
        for name, x in found.items()
    )


if __name__ == "__main__":
    main()
