"""Networks of plain `torch.nn`: recurrent, convolutional, attention, and what people build of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tests.architectures.zoo import Architecture, Module, Use

F = nn.functional


def network(name: str, module: Callable[[], Module], *shapes: tuple[int, ...], train: bool = False) -> Architecture:
    """`module()` called once on random floats of these shapes, in evaluation or in training."""

    def make() -> tuple[Module, Use]:
        built = module().train(train)
        inputs = [torch.randn(shape) for shape in shapes]
        return built, lambda run: run(*inputs)

    return Architecture(name, "torch.nn", make)


class Through(Module):
    """Parts by name, and a function that computes with them."""

    def __init__(self, function: Callable[..., Any], **parts: Module) -> None:
        super().__init__()
        self._function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self._function(self, *inputs)


def _block(inputs: int, outputs: int) -> Module:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU())


class UNet(Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([_block(3, 8), _block(8, 16)])
        self.bottom = _block(16, 32)
        self.raised = nn.ModuleList([nn.ConvTranspose2d(32, 16, 2, 2), nn.ConvTranspose2d(16, 8, 2, 2)])
        self.up = nn.ModuleList([_block(32, 16), _block(16, 8)])
        self.head = nn.Conv2d(8, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = []
        for block in self.down:
            x = block(x)
            kept.append(x)
            x = F.max_pool2d(x, 2)
        x = self.bottom(x)
        for raised, block, side in zip(self.raised, self.up, reversed(kept), strict=True):
            x = block(torch.cat([raised(x), side], 1))
        return self.head(x)


class CellByCell(Module):
    """An LSTM cell that is fed its own output."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTMCell(6, 12), nn.Linear(12, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = state = x.new_zeros(x.shape[0], 12)
        found = []
        for _ in range(4):
            hidden, state = self.cell(x, (hidden, state))
            x = self.head(hidden)
            found.append(x)
        return torch.stack(found, 1)


class DenseBlock(Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.BatchNorm2d(4 + 4 * i), nn.ReLU(), nn.Conv2d(4 + 4 * i, 4, 3, padding=1)) for i in range(3)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.cat([x, layer(x)], 1)
        return F.avg_pool2d(x, 2)


class Mixer(Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 16, 8, 8)
        self.tokens = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 24), nn.GELU(), nn.Linear(24, 16))
        self.channels = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 24), nn.GELU(), nn.Linear(24, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = x + self.tokens(x.transpose(1, 2)).transpose(1, 2)
        return (x + self.channels(x)).mean(1)


class WaveNet(Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv1d(1, 8, 1)
        self.layers = nn.ModuleList(nn.Conv1d(8, 16, 2, dilation=2**i) for i in range(3))
        self.last = nn.Conv1d(8, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for layer in self.layers:
            value, gate = layer(F.pad(x, (layer.dilation[0], 0))).chunk(2, 1)
            x = x + value.tanh() * gate.sigmoid()
        return self.last(x)


def _autoencoder(self: Any, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    mean, log_variance = self.encode(x).chunk(2, -1)
    drawn = mean + torch.randn_like(mean) * (log_variance / 2).exp()
    return self.decode(drawn), mean, log_variance


def _squeezed(self: Any, x: torch.Tensor) -> torch.Tensor:
    x = F.silu(self.depthwise(x))
    return self.out(x * torch.sigmoid(self.scale(F.adaptive_avg_pool2d(x, 1)))) + x[:, :, ::2, ::2].mean()


def _recommended(self: Any, dense: torch.Tensor) -> torch.Tensor:
    bags = self.bag(torch.arange(12).reshape(4, 3) % 9)
    both = torch.stack([self.bottom(dense), bags], 1)
    return self.top(torch.cat([torch.bmm(both, both.mT).flatten(1), bags], 1))


def _points(self: Any, x: torch.Tensor) -> torch.Tensor:
    turned = torch.bmm(self.turn(x.mean(2)).view(-1, 3, 3), x)
    return self.head(self.points(turned).amax(2))


def _neighbours(self: Any, x: torch.Tensor, links: torch.Tensor) -> torch.Tensor:
    weights = (links > 0).float() + torch.eye(links.shape[0])
    degree = weights.sum(1).rsqrt()
    spread = degree[:, None] * weights * degree
    return F.log_softmax(spread @ self.second(F.relu(spread @ self.first(x))), -1)


def _attended(self: Any, x: torch.Tensor) -> Any:
    return self.attention(x, x, x, attn_mask=torch.ones(5, 5).triu(1).bool(), average_attn_weights=False)


ARCHITECTURES = (
    network("nn.Transformer", lambda: nn.Transformer(16, 4, 1, 1, 24, batch_first=True), (2, 6, 16), (2, 5, 16)),
    network("nn.Transformer in training", lambda: nn.Transformer(16, 4, 1, 1, 24), (6, 2, 16), (5, 2, 16), train=True),
    network("nn.TransformerEncoder",
            lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 24, norm_first=True), 2), (6, 2, 16)),
    network("nn.MultiheadAttention",
            lambda: Through(_attended, attention=nn.MultiheadAttention(16, 4, batch_first=True)), (2, 5, 16)),
    network("nn.RNN", lambda: nn.RNN(6, 8, 2), (5, 2, 6)),
    network("nn.LSTM", lambda: nn.LSTM(6, 8, 2, bidirectional=True, batch_first=True), (2, 5, 6)),
    network("nn.LSTM with projections", lambda: nn.LSTM(6, 8, proj_size=3), (5, 2, 6)),
    network("nn.GRU", lambda: nn.GRU(6, 8, 2, bidirectional=True), (5, 2, 6)),
    network("LSTM cell by cell", CellByCell, (2, 6)),
    network("Conv1d classifier", lambda: nn.Sequential(
        nn.Conv1d(3, 8, 5, stride=2), nn.BatchNorm1d(8), nn.ReLU(), nn.MaxPool1d(3, 2), nn.Conv1d(8, 8, 3, groups=4),
        nn.AdaptiveAvgPool1d(3), nn.Flatten(), nn.Linear(24, 4)), (2, 3, 40)),
    network("VGG", lambda: nn.Sequential(
        _block(3, 8), nn.MaxPool2d(2), _block(8, 16), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(256, 4)),
        (2, 3, 16, 16)),
    network("VGG in training", lambda: nn.Sequential(
        _block(3, 8), nn.MaxPool2d(2), _block(8, 16), nn.Dropout(0.3), nn.Flatten(), nn.Linear(1024, 4)),
        (2, 3, 16, 16), train=True),
    network("Conv3d classifier", lambda: nn.Sequential(
        nn.Conv3d(2, 4, 3, padding=1), nn.BatchNorm3d(4), nn.ReLU(), nn.MaxPool3d(2), nn.Conv3d(4, 8, 2),
        nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(8, 3)), (2, 2, 6, 8, 8)),
    network("ConvTranspose1d decoder", lambda: nn.Sequential(
        nn.ConvTranspose1d(6, 8, 4, 2, 1), nn.LeakyReLU(), nn.ConvTranspose1d(8, 3, 3, 2, output_padding=1)),
        (2, 6, 9)),
    network("ConvTranspose3d decoder", lambda: nn.Sequential(
        nn.ConvTranspose3d(4, 4, 2, 2), nn.ELU(), nn.ConvTranspose3d(4, 2, 3, groups=2, dilation=2)), (1, 4, 3, 3, 3)),
    network("GAN generator", lambda: nn.Sequential(
        nn.ConvTranspose2d(8, 16, 4), nn.BatchNorm2d(16), nn.ReLU(), nn.ConvTranspose2d(16, 3, 4, 2, 1), nn.Tanh()),
        (2, 8, 1, 1), train=True),
    network("U-Net", UNet, (1, 3, 16, 16)),
    network("DenseNet", DenseBlock, (2, 4, 8, 8)),
    network("MLP-Mixer", Mixer, (2, 3, 32, 32)),
    network("WaveNet", WaveNet, (2, 1, 20)),
    network("Squeeze and excite", lambda: Through(
        _squeezed, depthwise=nn.Conv2d(8, 8, 3, 2, 1, groups=8), scale=nn.Conv2d(8, 8, 1), out=nn.Conv2d(8, 6, 1)),
        (2, 8, 10, 10)),
    network("Super-resolution", lambda: nn.Sequential(
        nn.Conv2d(1, 8, 5, padding=2, padding_mode="reflect"), nn.PReLU(8), nn.Conv2d(8, 4, 3, padding=1),
        nn.PixelShuffle(2), nn.Upsample(scale_factor=1.5, mode="bilinear")), (1, 1, 8, 8)),
    network("Group and instance norm", lambda: nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.Hardswish(), nn.Conv2d(8, 4, 3, padding_mode="circular", padding=1),
        nn.InstanceNorm2d(4, affine=True), nn.Mish()), (2, 3, 9, 9)),
    network("Variational autoencoder", lambda: Through(
        _autoencoder, encode=nn.Sequential(nn.Linear(20, 16), nn.ELU(), nn.Linear(16, 8)),
        decode=nn.Sequential(nn.Linear(4, 16), nn.Softplus(), nn.Linear(16, 20), nn.Sigmoid())), (3, 20)),
    network("Recommender", lambda: Through(
        _recommended, bag=nn.EmbeddingBag(9, 8, mode="mean"), bottom=nn.Linear(5, 8),
        top=nn.Sequential(nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 1))), (4, 5)),
    network("PointNet", lambda: Through(
        _points, turn=nn.Linear(3, 9), points=nn.Sequential(nn.Conv1d(3, 8, 1), nn.ReLU(), nn.Conv1d(8, 16, 1)),
        head=nn.Linear(16, 4)), (2, 3, 30)),
    network("Graph convolution", lambda: Through(_neighbours, first=nn.Linear(6, 8), second=nn.Linear(8, 3)),
            (7, 6), (7, 7)),
)  # fmt: skip
