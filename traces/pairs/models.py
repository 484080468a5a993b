"""Small models whose memory is held by different things."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


def run_layer(layer: nn.Module, x: Tensor, checkpointed: bool) -> Tensor:
    """Runs a layer. With checkpointing, only its input is kept for the backward pass."""
    return checkpoint(layer, x, use_reentrant=False) if checkpointed else layer(x)


def run_layers(layers: nn.ModuleList, x: Tensor, checkpointed: bool) -> Tensor:
    """Runs layers one after the other."""
    for layer in layers:
        x = run_layer(layer, x, checkpointed)
    return x


class Attention(nn.Module):
    """Attention whose scores are whole tensors unless it is fused."""

    def __init__(self, width: int, heads: int, fused: bool, causal: bool) -> None:
        super().__init__()
        self.heads, self.fused, self.causal = heads, fused, causal
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        split = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = split.permute(2, 0, 3, 1, 4)
        if self.fused:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        else:
            scores = q @ k.transpose(-2, -1) * (width // self.heads) ** -0.5
            y = scores.softmax(-1) @ v
        return self.out(y.transpose(1, 2).reshape(batch, length, width))


class Mlp(nn.Module):
    """Two linear layers around GELU."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))


class Layer(nn.Module):
    """A transformer layer."""

    def __init__(self, width: int, heads: int, fused: bool, causal: bool) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.mlp = Attention(width, heads, fused, causal), Mlp(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Head(nn.Module):
    """The logits over a vocabulary and the loss of all tokens."""

    def __init__(self, width: int, vocabulary: int) -> None:
        super().__init__()
        self.logits = nn.Linear(width, vocabulary, bias=False)

    def forward(self, x: Tensor, targets: Tensor, reduction: str = "mean") -> tuple[Tensor, Tensor]:
        logits = self.logits(x)
        return logits, F.cross_entropy(logits, targets, reduction=reduction)


class Gpt(nn.Module):
    """A language model whose logits are larger than anything else."""

    def __init__(self, width: int = 128, layers: int = 6, vocabulary: int = 8192, length: int = 128) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.layers = nn.ModuleList(Layer(width, 4, fused=True, causal=True) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), Head(width, vocabulary)

    def forward(
        self, x: Tensor, targets: Tensor, checkpointed: bool, chunks: int
    ) -> tuple[Tensor | None, Tensor]:
        """Returns the logits, unless they were made in chunks, and the mean loss.

        The logits of a chunk are dropped after its loss and made again in the backward pass.
        """
        hidden = self.tokens(x) + self.positions.weight
        hidden = self.norm(run_layers(self.layers, hidden, checkpointed)).flatten(0, 1)
        targets = targets.flatten()
        if chunks == 1:
            return self.head(hidden, targets)
        loss = hidden.new_zeros(())
        for part, wanted in zip(hidden.chunk(chunks), targets.chunk(chunks), strict=True):
            loss = loss + checkpoint(self.head, part, wanted, "sum", use_reentrant=False)[1]
        return None, loss / len(targets)


class Encoder(nn.Module):
    """A classifier of sequences with wide layers."""

    def __init__(self, fused: bool, width: int = 256, layers: int = 4) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(width, 8, fused, causal=False) for _ in range(layers))
        self.norm, self.classes = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: Tensor, checkpointed: bool) -> Tensor:
        return self.classes(self.norm(run_layers(self.layers, x, checkpointed)).mean(1))


class ResidualBlock(nn.Module):
    """Two convolutions with normalisation around a shortcut."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(x + self.norm2(self.conv2(y)))


class ImageNet(nn.Module):
    """A convolutional network that maps an image to an image of the same size."""

    def __init__(self, channels: int = 32, blocks: int = 4) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 3, padding=1)
        self.blocks = nn.ModuleList(ResidualBlock(channels) for _ in range(blocks))
        self.image = nn.Conv2d(channels, 16, 1)

    def forward(self, x: Tensor, checkpointed: bool) -> Tensor:
        return self.image(run_layers(self.blocks, self.stem(x), checkpointed))


class Convolutions(nn.Module):
    """Two convolutions and a normalisation."""

    def __init__(self, channels: int, to: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(channels, to, 3, padding=1), nn.Conv2d(to, to, 3, padding=1)
        self.norm = nn.GroupNorm(4, to)

    def forward(self, x: Tensor) -> Tensor:
        return F.silu(self.norm(self.conv2(F.silu(self.conv1(x)))))


class Unet(nn.Module):
    """A network with shortcuts from the way down to the way up, where images are smaller."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([Convolutions(3, 16), Convolutions(16, 32), Convolutions(32, 64)])
        self.up = nn.ModuleList([Convolutions(96, 32), Convolutions(48, 16)])
        self.image = nn.Conv2d(16, 16, 1)

    def forward(self, x: Tensor, checkpointed: bool) -> Tensor:
        shortcuts = []
        for index, layer in enumerate(self.down):
            x = run_layer(layer, F.max_pool2d(x, 2) if index else x, checkpointed)
            shortcuts.append(x)
        shortcuts.pop()
        for layer in self.up:
            x = torch.cat([F.interpolate(x, scale_factor=2), shortcuts.pop()], 1)
            x = run_layer(layer, x, checkpointed)
        return self.image(x)


def perceptron(width: int = 1024, layers: int = 4) -> nn.Sequential:
    """Returns linear layers with ReLU between them."""
    kinds: list[Callable[[], nn.Module]] = [lambda: nn.Linear(width, width), nn.ReLU]
    return nn.Sequential(*(kinds[i % 2]() for i in range(2 * layers)))
