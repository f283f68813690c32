"""What is kept lies in memory of its own, past the heap, and goes with the last that needs it."""

import copy
import gc
import io
import mmap
import pickle
import sys
import weakref
from pathlib import Path

import pytest
import torch

import gattn
from gattn.graph.token_graph import TokenGraph
from gattn.heads.store import apart
from gattn.heads.store.kept_edges import KeptEdges
from gattn.keep import All, TopK

MIB = 1 << 20


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int32], ids=str)
@pytest.mark.parametrize(("rows", "size"), [(0, 5), (3, 0), (3, 7), (12, 8192), (5, 1_000_003)])
def test_tensors_do_not_overlap(dtype: torch.dtype, rows: int, size: int) -> None:
    some = [apart.empty(rows, size, dtype) for _ in range(3)]
    for number, one in enumerate(some):
        assert one.shape == (rows, size)
        assert one.dtype == dtype
        one.fill_(number)
    assert all(bool((one == number).all()) for number, one in enumerate(some))


@pytest.mark.parametrize("sizes", [[], [0], [3, 0, 5], [4000, 0, 7000, 1]], ids=str)
def test_copies_are_together_if_large_and_each_by_itself_if_small(sizes: list[int]) -> None:
    arrays = [torch.arange(size, dtype=torch.int32) + 10 * size for size in sizes]
    copies = apart.copied(arrays, torch.long)
    wanted = [array.tolist() for array in arrays]
    for array in arrays:
        array.zero_()
    assert [copy.tolist() for copy in copies] == wanted
    assert all(copy.dtype == torch.long for copy in copies)
    storages = {copy.untyped_storage().data_ptr() for copy in copies if len(copy)}
    is_large = 8 * sum(sizes) >= apart.LEAST_BYTES
    assert len(storages) == (1 if is_large else sum(size > 0 for size in sizes))


def test_what_a_large_layer_keeps_is_past_the_heap() -> None:
    graph = TokenGraph.causal(1024)
    store = KeptEdges(range(12), TopK(8), False, torch.float32)
    store.begin(graph)
    mask = graph.mask()
    for rows in (slice(0, 512), slice(512, 1024)):
        attention = torch.rand(12, 512, 1024) * mask[rows]
        store.add_rows(rows, slice(0, 1024), mask[rows], attention, None)
    for head in store.graphs(has_sink=False):
        rule = head.graph.rule
        for kept in (head.attention, head.total_mass):
            assert kept.base.untyped_storage().nbytes() > 12 * kept.nbytes
        for kept in (rule.pointer, rule.key):
            assert kept.untyped_storage().nbytes() > 11 * kept.nbytes


def test_keys_whose_memory_was_reserved_are_not_copied() -> None:
    store = KeptEdges(range(12), TopK(8), False, torch.float32)
    graph = TokenGraph.causal(1024)
    store.begin(graph)
    attention = torch.rand(12, 1024, 1024) * graph.mask()
    store.add_rows(slice(0, 1024), slice(0, 1024), graph.mask(), attention, None)
    for head, buffer in zip(store.graphs(has_sink=False), store._kept["key"], strict=True):
        assert head.graph.rule.key.data_ptr() == buffer.values().data_ptr()


def test_chunks_made_in_inference_mode_are_plain_tensors() -> None:
    apart._chunk.rest = None
    with torch.inference_mode():
        first = apart.empty(4, 8192, torch.float32)
    assert not first.is_inference()
    apart.empty(4, 8192, torch.float32).fill_(1.0)


def test_without_maps_the_heap_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: object, **options: object) -> None:
        raise OSError("too many maps")

    monkeypatch.setattr(apart.mmap, "mmap", refuse)
    assert bool((apart.empty(3, 4 * MIB, torch.float32)[:, ::4096].fill_(2.0) == 2).all())


@pytest.mark.skipif(not hasattr(apart.mmap, "MADV_HUGEPAGE"), reason="no huge pages to ask for")
def test_a_kernel_may_have_no_huge_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing(mmap.mmap):
        def madvise(self, *given: object) -> None:
            raise OSError("invalid argument")

    monkeypatch.setattr(apart.mmap, "mmap", Refusing)
    assert bool((apart.empty(3, 4 * MIB, torch.float32)[:, ::4096].fill_(2.0) == 2).all())


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_memory_goes_with_its_last_tensor() -> None:
    before = resident()
    memory = apart.empty(2, 32 * MIB, torch.float32).fill_(1.0)
    one = memory[1, :5]
    del memory
    assert resident() - before > 200 * MIB
    del one
    assert resident() - before < 64 * MIB


@pytest.mark.parametrize("keep", [All(), TopK(8)], ids=str)
def test_what_heads_hold_together_is_what_each_keeps(keep: All | TopK) -> None:
    torch.manual_seed(0)
    graph, attention = TokenGraph.causal(300), torch.rand(7, 300, 300).tril()
    store = KeptEdges(range(7), keep, False, torch.float32)
    store.begin(graph)
    store.add_rows(slice(0, 300), slice(0, 300), graph.mask(), attention, None)
    heads = store.graphs(has_sink=False)
    del store
    gc.collect()
    torch.full((4 * MIB,), torch.nan)  # It would overwrite memory that was given back.
    for head, expected in zip(heads, attention, strict=True):
        found = torch.from_numpy(head.to_dense())
        if isinstance(keep, TopK):
            expected = expected * (expected >= expected.topk(8, dim=1).values[:, -1:])
        assert torch.equal(found, expected)


def test_stores_leave_with_their_graphs() -> None:
    store = KeptEdges([0, 1], All(), False, torch.float32)
    store.begin(TokenGraph.causal(256))
    gone = weakref.ref(store)
    gc.disable()
    try:
        del store
        assert gone() is None
    finally:
        gc.enable()


def test_a_pickled_head_brings_no_other_tokens_along() -> None:
    graph, heads = TokenGraph.causal(256), []
    for _ in range(2):
        query = torch.randn(12, 256, 8)
        heads += gattn.attention_graphs(query, query, graph, keep=TopK(8))
    some = heads[-1]
    rule = some.graph.rule
    assert rule.key.untyped_storage().nbytes() > 12 * rule.key.nbytes
    numbers = sum(one.nbytes for one in (some.attention, rule.key, rule.pointer, some.total_mass))
    assert len(pickle.dumps(some)) < 2 * numbers
    twin = copy.deepcopy(some).graph.rule
    assert twin.key.untyped_storage().nbytes() == rule.key.nbytes
    one_of_all = gattn.attention_graphs(query, query, graph)[3]
    assert one_of_all.attention.base.untyped_storage().nbytes() > 10 * one_of_all.attention.nbytes
    assert copy.deepcopy(one_of_all).attention.base is None
    file = io.BytesIO()
    torch.save(heads, file)
    file.seek(0)
    for one, other in zip(torch.load(file, weights_only=False), heads, strict=True):
        assert torch.equal(one.graph.edge_index, other.graph.edge_index)
        assert (one.attention == other.attention).all()


def test_keys_past_four_bytes_are_kept() -> None:
    first = torch.iinfo(torch.int32).max - 1
    graph = TokenGraph.causal(2, num_keys=3, query_offset=1)
    for start, wanted in ((first - 1, torch.int32), (first, torch.int64)):
        store = KeptEdges([0], TopK(2), False, torch.float32)
        store.begin(graph, start)
        mask = graph.mask()
        attention = torch.tensor([[[0.3, 0.7, 0.0], [0.1, 0.2, 0.7]]])
        store.add_rows(slice(0, 2), slice(0, 3), mask, attention, None)
        (head,) = store.graphs(has_sink=False)
        assert head.graph.rule.key.dtype == wanted
        assert head.graph.rule.key.tolist() == [start, start + 1, start + 1, start + 2]
