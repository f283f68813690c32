"""Says why nothing was recorded, and refuses contributions that cannot be known."""

from __future__ import annotations

from collections.abc import Sequence

from gattn.errors import CaptureError
from gattn.models.edit.heard import Heard
from gattn.models.read.following import Progress
from gattn.models.read.on_graphs.seen_edges import SeenEdges
from gattn.models.read.places import Place
from gattn.models.read.reading import Reading
from gattn.models.read.seen_call import SeenCall

EDITS_CHANGED = (
    "The edits changed within a sequence: open them before its first token, and close them after "
    "its last one."
)


def refuse_contributions(
    call: SeenCall, reading: Reading, place: Place, *, are_projected: bool
) -> None:
    """Refuse contributions of what shows no values, or no output projection."""
    if any(edit.gives_values or isinstance(edit, Heard) for edit in reading.edits):
        raise CaptureError(
            f"The values or outputs of {call.where} are patched, so contributions are not those "
            "of its attention: leave out contributions=."
        )
    if place.heads:
        raise CaptureError(
            f"{call.where} attends head after head, in calls of their own, so contributions are "
            "not known: leave out contributions=."
        )
    if isinstance(call, SeenEdges) and are_projected:
        raise CaptureError(
            f"{call.where} has no output projection that gattn reads: pass "
            'contributions="value" for the lengths ||A_ij v_ij|| of its messages.'
        )
    if not reading.has_values and not isinstance(call, SeenEdges):
        raise CaptureError(
            f"{call.where} shows only its softmax, not its values, so contributions are not "
            "known: leave out contributions=."
        )
    if reading.attention.features_to_value is not None:
        raise CaptureError(
            f"In {call.where} the features of edges add to their values, so contributions are "
            "not lengths of values alone: leave out contributions=."
        )


def nothing_seen(
    kind: str,
    was_called: bool,
    broke: bool,
    unfollowed: Sequence[str] = (),
    learned: Sequence[str] = (),
    weighing: Sequence[str] = (),
) -> str:
    """Return why no attention of a type of model was seen.

    `unfollowed` are modules that multiply a softmax with values as no door sees, `learned` those
    that attend to parameters or buffers, and `weighing` those that weigh what each token has
    several of.
    """
    if not was_called:
        return (
            f"{kind} was not called: call the model that the context was opened on, "
            "inside the context and in its thread."
        )
    if broke:
        return f"Every call of {kind} within the context failed, so nothing was recorded."
    if unfollowed:
        more = f", and so do {len(unfollowed) - 1} more" if len(unfollowed) > 1 else ""
        return (
            f"The attention of {kind} cannot be seen: {unfollowed[0]} multiplies a softmax with "
            f"values in a way that is not followed{more}, such as vector by vector (dot, vecdot), "
            "in a loop over keys, by a convolution, sparse, in a kernel of its own, of values that "
            "are sampled between tokens (deformable attention), or summed over another dimension "
            "than the softmax, as where queries compete for keys and what each gets is not divided "
            "by its sum. Expected a product of matrices (@, bmm, einsum) that "
            "sums over the keys, or scaled_dot_product_attention. There is nothing to capture."
        )
    if learned:
        more = f", and so do {len(learned) - 1} more" if len(learned) > 1 else ""
        return (
            f"The attention of {kind} is not shown: {learned[0]} attends to parameters or buffers"
            f"{more}, as to a codebook or a memory that it has learned, so its keys are no tokens. "
            "Called by torch's scaled_dot_product_attention, such attention is shown. There is "
            "nothing else to capture."
        )
    if weighing:
        more = f", and so do {len(weighing) - 1} more" if len(weighing) > 1 else ""
        return (
            f"The attention of {kind} is not shown: {weighing[0]} weighs, by a softmax, what each "
            f"token has several of{more}, such as experts, or steps in time where each channel is "
            "a row of the input, so that rows count as tokens. To see it, open the context on a "
            "module that is given these parts as tokens. There is nothing to capture."
        )
    return (
        f"{kind} has no attention that gattn sees: torch's attention functions, transformers' "
        "attention interface, softmaxes of scores that are multiplied with values, or softmaxes "
        "over the edges of a graph. (In an empty batch, a text without tokens or a graph "
        "without edges there is none.) Attention without a softmax, a softmax that meets no "
        "values, such as the answer of a pointer network, and one of a single row of scores "
        "without a batch (a tensor of one dimension: softmax(scores[None], -1) is seen) cannot be "
        "seen: docs/concepts/any_model.md says more."
    )


def unrecorded(tokens: int, progress: Progress) -> str:
    """Return why the tokens that a call continues were not recorded, as far as known."""
    said = f"The model continues a cache of {tokens} tokens that were not recorded: "
    if progress.left is not None:
        return (
            f"{said}completed calls left {progress.left} in it, and the rest was added by a call "
            f"that failed, or by something that gattn did not see. Crop it to {progress.left}, or "
            "run the prompt again."
        )
    return (
        f"{said}gattn.capturing has not seen this cache, or what was copied into it. They ran "
        "before the context was opened or in another thread, the cache's keys were changed since, "
        "they are compressed and cannot be seen, or something other than the model's calls put "
        "them there, such as a trained prefix. Open the context before the prompt runs, and use a "
        "cache that keeps keys unchanged."
    )


def not_seen(held: int, recorded: int) -> str:
    """Say that a cache holds other tokens than those that were recorded."""
    return (
        f"The cache holds {held} tokens, but {recorded} were recorded: some were added or removed "
        "without gattn seeing it. Record each continuation in a separate context, prompt included."
    )
