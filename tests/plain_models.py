"""Small models of PyTorch alone, one for each way in which attention is computed."""

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from torch_geometric.nn import GATConv

import gattn

KINDS = ["encoder", "translator", "gpt", "vit", "gat", "own"]
WIDTH = 16


class Block(nn.Module):
    """A layer of a transformer, causal by torch's kernel, or with its softmax written out."""

    def __init__(self, way):
        super().__init__()
        self.way, self.norm = way, nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 32), nn.GELU())
        self.back = nn.Linear(32, WIDTH)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4) * 2
        if self.way == "kernel":
            mixed = scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            mixed = (q @ k.mT / 2).softmax(-1) @ v
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.back(self.mlp(x))


class Stacked(nn.Module):
    def __init__(self, way):
        super().__init__()
        self.embed = nn.Embedding(20, WIDTH) if way == "kernel" else nn.Conv2d(3, WIDTH, 4, 4)
        self.blocks = nn.ModuleList(Block(way) for _ in range(2))
        self.head = nn.Linear(WIDTH, 7)

    def forward(self, x):
        x = self.embed(x)
        x = x if x.dim() == 3 else x.flatten(2).mT
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 32, batch_first=True)
        self.whole, self.head = nn.TransformerEncoder(layer, 2), nn.Linear(WIDTH, 7)

    def forward(self, x):
        return self.head(self.whole(x))


class Translator(nn.Module):
    def __init__(self):
        super().__init__()
        self.whole = nn.Transformer(WIDTH, 4, 1, 2, 32, batch_first=True)
        self.head = nn.Linear(WIDTH, 7)

    def forward(self, source, target):
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1]).to(target)
        return self.head(self.whole(source, target, tgt_mask=mask))


class Graphs(nn.Module):
    """Two layers over a graph; two of its edges are parallel, and loops are added."""

    def __init__(self):
        super().__init__()
        sizes = (WIDTH, 8), (16, 7)
        self.convs = nn.ModuleList(
            GATConv(*size, heads=2, concat=n == 0) for n, size in enumerate(sizes)
        )
        for conv in self.convs:
            nn.init.normal_(conv.att_src, std=2)

    def forward(self, x, edge_index):
        for conv in self.convs:
            x = conv(x, edge_index).tanh()
        return x[None]


class Own(nn.Module):
    """Two layers of gattn, with features of edges in scores and values."""

    def __init__(self):
        super().__init__()
        sink = gattn.Softmax(sink=torch.tensor([0.5, -0.5]).double())
        self.layers = nn.ModuleList(
            gattn.GraphAttention(WIDTH, 8, 2, edge_dim=3, normalizer=normalizer)
            for normalizer in (None, sink)
        )
        self.head = nn.Linear(WIDTH, 7)

    def forward(self, x, edge_index, edge_attr):
        for layer in self.layers:
            x = layer(x, edge_index, edge_attr).tanh()
        return self.head(x)[None]


EDGES = torch.tensor([[0, 1, 2, 3, 4, 5, 0, 2, 4, 1, 2], [1, 2, 3, 4, 5, 0, 2, 4, 0, 4, 4]])


def built(kind):
    """Build a model, and a function that runs it, or what wraps it."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        if kind == "encoder":
            model = Encoder()
            inputs = (torch.randn(1, 6, WIDTH).double() * 2,)
        elif kind == "translator":
            model, inputs = Translator(), tuple(torch.randn(1, n, WIDTH).double() for n in (6, 4))
        elif kind == "gat":
            model, inputs = Graphs(), (torch.randn(6, WIDTH).double() * 2, EDGES)
        elif kind == "own":
            edges = torch.randn(EDGES.shape[1] - 1, 3).double()
            model, inputs = Own(), (torch.randn(6, WIDTH).double() * 2, EDGES[:, :-1], edges)
        elif kind == "gpt":
            model, inputs = Stacked("kernel"), (torch.tensor([[3, 7, 1, 7, 12, 5]]),)
        else:
            model, inputs = Stacked("written"), (torch.randn(1, 3, 8, 12).double(),)
    model = model.double().eval()

    def run(called=model):
        return called(*inputs)[0]

    return model, run
