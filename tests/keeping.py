"""Which edges of a row a keep leaves, in plain Python."""

from gattn.keep import Keep, Threshold, TopK, TopMass


def kept_by_hand(row: list[float], keys: list[int], keep: Keep) -> list[int]:
    """Those of the keys whose edges stay, rising."""
    ranked = sorted(keys, key=lambda j: (-abs(row[j]), j))
    if isinstance(keep, TopK):
        return sorted(ranked[: keep.k])
    if isinstance(keep, Threshold):
        return [j for j in keys if abs(row[j]) >= keep.t]
    if isinstance(keep, TopMass):
        goal = keep.p * sum(abs(row[j]) for j in keys) * (1 - 1e-12)
        sizes = range(len(keys) + 1)
        reached = (n for n in sizes if sum(abs(row[j]) for j in ranked[:n]) >= goal)
        return sorted(ranked[: next(reached)])
    return keys
