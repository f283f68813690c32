"""Image models: the grid of patches is proved, by which pixels each token is made of."""

import pytest
import torch
from torch import Tensor, nn

import gattn
from gattn.heads.geometry.grid import Grid
from gattn.models.doors.proof.layouts import patches

_ROWS, _COLUMNS, _SIDE = 3, 5, 4
_PATCHES = _ROWS * _COLUMNS
_SHUFFLED = torch.randperm(_PATCHES, generator=torch.Generator().manual_seed(0))


class ViT(nn.Module):
    """A vision transformer that arranges its patches in some way, after a few learned tokens."""

    def __init__(self, order: Tensor | None = None, prefix: int = 1, kernel: int = _SIDE) -> None:
        super().__init__()
        padding = (kernel - _SIDE + 1) // 2
        self.patches = nn.Conv2d(3, 16, kernel, stride=_SIDE, padding=padding)
        self.prefix = nn.Parameter(torch.randn(prefix, 16))
        self.places = nn.Parameter(torch.randn(prefix + _PATCHES, 16))
        self.order = order
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def tokens(self, image: Tensor) -> Tensor:
        """Embed patches."""
        x = self.patches(image).flatten(2).mT
        x = x if self.order is None else x[:, self.order]
        return torch.cat([self.prefix.expand(len(x), -1, -1), x], 1) + self.places

    def forward(self, image: Tensor) -> Tensor:
        return self.blocks(self.tokens(image))


def image_of(batch: int = 1) -> Tensor:
    return torch.rand(batch, 3, _ROWS * _SIDE, _COLUMNS * _SIDE)


def geometry(model: nn.Module, image: Tensor) -> list[Grid | None]:
    """Return the geometry of all heads."""
    with gattn.capturing(model.eval()) as run:
        model(image)
    return [head.geometry for trace in run.traces for head in trace.heads()]


def cells_by_gradient(model: ViT, image: Tensor) -> list[int]:
    """Find each token's cell by the pixels that its embedding has gradients for."""
    found = []
    image = image[:1].requires_grad_()
    for token in model.tokens(image)[0]:
        (gradient,) = torch.autograd.grad(token.sum(), image, retain_graph=True, allow_unused=True)
        rows, columns = (gradient[0].abs().sum(0) > 0).nonzero().unbind(1)
        cells = {*(rows // _SIDE * _COLUMNS + columns // _SIDE).tolist()} or {-1}
        assert len(cells) == 1
        found += cells
    return found


@pytest.mark.parametrize("prefix", [0, 1, 5])
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize(
    "order",
    [None, torch.arange(_PATCHES).reshape(_ROWS, _COLUMNS).T.flatten(), _SHUFFLED],
    ids=["rows", "columns", "shuffled"],
)
def test_each_token_lies_where_its_pixels_are(
    order: Tensor | None, batch: int, prefix: int
) -> None:
    model, image = ViT(order, prefix), image_of(batch)
    expected = cells_by_gradient(model, image)
    found = geometry(model, image)
    assert len(found) == 4 * batch
    for grid in found:
        assert grid is not None
        assert (grid.rows, grid.columns) == (_ROWS, _COLUMNS)
        assert grid.cells.tolist() == expected


def test_one_layer_alone_knows_its_patches() -> None:
    model, image = ViT(_SHUFFLED).eval(), image_of()
    with gattn.capturing(model, layers=1) as run:
        model(image)
    expected = cells_by_gradient(model, image)
    for head in run.trace.heads():
        assert isinstance(head.geometry, Grid)
        assert head.geometry.cells.tolist() == expected


def test_patches_that_overlap_or_are_missing_are_on_no_grid() -> None:
    assert geometry(ViT(kernel=6), image_of()) == [None] * 4
    model = ViT(_SHUFFLED[:12])
    model.places = nn.Parameter(torch.randn(13, 16))
    assert geometry(model, image_of()) == [None] * 4


def test_a_feature_map_before_the_patches_is_on_no_grid() -> None:
    class Mixed(ViT):
        def forward(self, image: Tensor) -> Tensor:
            return super().forward(image - image.mean((2, 3), keepdim=True))

    assert geometry(Mixed(), image_of()) == [None] * 4


@pytest.mark.parametrize("side", [1, 3, 4])
@pytest.mark.parametrize(("rows", "columns"), [(3, 5), (4, 4), (2, 7), (5, 2)])
def test_a_grid_is_looked_for_where_halves_of_the_image_share_one_column_at_most(
    rows: int, columns: int, side: int
) -> None:
    width = columns * side
    is_left = torch.arange(width) < width // 2
    of_columns = [one.view(columns, side).any(1).repeat(rows) for one in (is_left, ~is_left)]
    assert (rows, columns) in patches._grids(*of_columns, rows * side, width)
    of_columns[1][0] = True  # As a convolution does that mixes patches.
    assert (rows, columns) not in patches._grids(*of_columns, rows * side, width)


def test_patches_are_drawn_over_the_image() -> None:
    model, image = ViT().eval(), image_of()
    with gattn.capturing(model) as run:
        model(image)
    ax = run.trace[1, 0].draw_image(image, query=(1, 2))
    assert ax.images
    assert gattn.analysis.rollout(run.trace).draw_image(image, query=(0, 0)).images


class Listed(nn.Module):
    """Layers that have names with numbers."""

    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        layers = {
            f"encoder_layer_{n}": nn.TransformerEncoderLayer(8, 2, 8, batch_first=True)
            for n in range(3)
        }
        self.layers = kind()
        for name, layer in layers.items():
            self.layers.add_module(name, layer)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers.children():
            x = layer(x)
        return x


@pytest.mark.parametrize("kind", [nn.Sequential, nn.ModuleDict])
def test_layers_that_have_names_are_numbered(kind: type[nn.Module]) -> None:
    model = Listed(kind).eval()
    with gattn.capturing(model) as run:
        model(torch.randn(1, 4, 8))
    (stack,) = run.trace.stacks
    assert stack == "layers.encoder_layer.self_attn"
    assert {layer for layer, _ in run.trace.stacks[stack]} == {0, 1, 2}


def test_attention_with_numbers_in_its_names_is_not_a_layer() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attn_1, self.attn_2 = (
                nn.MultiheadAttention(8, 2, batch_first=True) for _ in range(2)
            )

        def forward(self, x: Tensor) -> Tensor:
            x = self.attn_1(x, x, x)[0]
            return self.attn_2(x, x, x)[0]

    model = nn.Sequential(Block(), Block()).eval()
    with gattn.capturing(model) as run:
        model(torch.randn(1, 4, 8))
    assert set(run.trace.stacks) == {"attn_1", "attn_2"}
