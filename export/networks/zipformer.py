"""The streaming Zipformer encoder (Yao et al. 2024): stacks of blocks at several frame rates, whose self-attention is
computed once a block and used three times, heard chunk by chunk through cached keys, values and convolutions.

N: batch; F: feature frames (10 ms); M: mel bins; S: frames after the convolutions (20 ms); T: encoder frames (40 ms);
D: channels of a stack; h: heads; C: frames of a chunk and L: frames of left context, at a stack's own rate.

One code path serves both ways of hearing. Training hears a whole utterance, whose attention is masked and whose
convolutions are cut at chunks; a device hears one chunk after the other, with what was cached in place of what came
before. Both give the same outputs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from device_sdk.errors import ConfigurationError
from device_sdk.features.logmel import SILENCE

__all__ = ["LOOK_AHEAD", "PRESETS", "Stack", "Zipformer", "ZipformerShape", "state_names"]

LOOK_AHEAD = 13
"""Feature frames beyond a chunk that its first convolutions see: 7 for strides and kernels, 6 for the wide one."""

_STATE_CHANNELS, _PAST = 128, 3  # of the cache before the wide convolution, in the layout that published graphs have
_POSITIONS = 48  # features of a distance
Layer = TypeVar("Layer", nn.Linear, nn.Conv2d)


@dataclass(frozen=True, slots=True)
class Stack:
    """Blocks at one frame rate. downsampling: of 20 ms frames; hidden: of the middle feed-forward network; kernel: of
    the convolutions, odd; query, value, position: sizes of a head."""

    size: int
    layers: int
    downsampling: int
    hidden: int
    kernel: int = 15
    heads: int = 4
    query: int = 24
    value: int = 12
    position: int = 4


@dataclass(frozen=True, slots=True)
class ZipformerShape:
    """front: channels of the three convolutions in front; chunk, left: 20 ms frames that are heard at once, and that
    attention sees before them. Raises ConfigurationError for sizes that do not fit together."""

    stacks: tuple[Stack, ...]
    mel_bins: int = 80
    front: tuple[int, int, int] = (8, 32, 128)
    chunk: int = 16
    left: int = 128

    def __post_init__(self) -> None:
        if not self.stacks or max(self.front) > _STATE_CHANNELS or self.mel_bins < 15:
            raise ConfigurationError(
                f"zipformer: found {len(self.stacks)} stacks, front {self.front}, {self.mel_bins} mel bins; expected "
                f"at least 1, at most {_STATE_CHANNELS} channels and at least 15 bins"
            )
        for place, stack in enumerate(self.stacks):
            if self.chunk % stack.downsampling or self.chunk % 2:
                raise ConfigurationError(
                    f"zipformer.stacks[{place}].downsampling: found {stack.downsampling}, expected a divisor of the "
                    f"chunk, {self.chunk}, which is even"
                )
            if self.left % stack.downsampling or self.left % self.chunk or stack.kernel % 2 == 0 or stack.size % 4:
                raise ConfigurationError(
                    f"zipformer.stacks[{place}]: found {stack}, left {self.left}; expected a left context of whole "
                    "chunks and frames, an odd kernel and a size that is a multiple of 4"
                )

    @property
    def size(self) -> int:
        """Channels of the encoder's output: those of the widest stack."""
        return max(stack.size for stack in self.stacks)

    @property
    def bands(self) -> int:
        """Frequencies after the convolutions in front."""
        return ((self.mel_bins - 1) // 2 - 1) // 2


PRESETS: dict[str, ZipformerShape] = {
    "zipformer-tiny": ZipformerShape((Stack(32, 1, 1, 64, 7), Stack(48, 1, 2, 96, 7)), front=(4, 8, 16), left=32),
    "zipformer-small": ZipformerShape(
        (Stack(80, 1, 1, 160), Stack(112, 2, 2, 224), Stack(128, 2, 4, 320), Stack(112, 1, 2, 224)),
        front=(8, 16, 32),
        left=64,
    ),
    "zipformer-medium": ZipformerShape(
        (
            Stack(96, 1, 1, 256, 31),
            Stack(144, 2, 2, 384),
            Stack(192, 2, 4, 512),
            Stack(208, 1, 8, 512),
            Stack(144, 1, 2, 384),
        ),
        front=(8, 16, 48),
    ),
    "zipformer-large": ZipformerShape(
        (
            Stack(160, 2, 1, 384, 31),
            Stack(224, 2, 2, 576, 31),
            Stack(288, 2, 4, 768),
            Stack(320, 2, 8, 1024),
            Stack(288, 2, 4, 768),
            Stack(224, 2, 2, 576, 31),
        )
    ),
}
"""About 0.2, 2.2, 5.4 and 20 million parameters."""


def swoosh_left(x: Tensor) -> Tensor:
    """log(1 + exp(x - 4)) - 0.08 x - 0.035 (Yao et al. 2024, eq. 4)."""
    return _softplus(x - 4.0) - 0.08 * x - 0.035


def swoosh_right(x: Tensor) -> Tensor:
    """log(1 + exp(x - 1)) - 0.08 x - 0.313261687 (Yao et al. 2024, eq. 3)."""
    return _softplus(x - 1.0) - 0.08 * x - 0.313261687


def _softplus(x: Tensor) -> Tensor:
    """Spelled out while a graph is traced: operators of every runtime, without overflow."""
    if torch.onnx.is_in_onnx_export():
        return torch.clamp(x, min=0.0) + torch.log1p(torch.exp(-torch.abs(x)))
    return functional.softplus(x)


class BiasNorm(nn.Module):
    """x / RMS(x - b) * exp(gamma) (Yao et al. 2024, eq. 2): unlike LayerNorm it keeps the length of x."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(size))
        self.log_scale = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        power = ((x - self.bias) ** 2).mean(-1, keepdim=True)
        return x * (power + 1e-8) ** -0.5 * self.log_scale.exp()


class Bypass(nn.Module):
    """Learned shares of what a module changes: (1 - c) x + c y, a share for each channel."""

    def __init__(self, size: int, share: float) -> None:
        super().__init__()
        self.share = nn.Parameter(torch.full((size,), share))

    def forward(self, before: Tensor, after: Tensor) -> Tensor:
        return before + (after - before) * self.share


class FeedForward(nn.Module):
    def __init__(self, size: int, hidden: int) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(size, hidden), _quiet(nn.Linear(hidden, size))

    def forward(self, x: Tensor) -> Tensor:
        return self.leave(swoosh_left(self.enter(x)))


class AttentionWeights(nn.Module):
    """Who listens to whom, by content and by distance: [h, N, S, L + S], for all users within a block."""

    def __init__(self, stack: Stack) -> None:
        super().__init__()
        self.stack = stack
        self.enter = nn.Linear(stack.size, stack.heads * (2 * stack.query + stack.position))
        self.places = nn.Linear(_POSITIONS, stack.heads * stack.position, bias=False)
        nn.init.normal_(self.enter.weight, std=stack.size**-0.5 * stack.query**-0.25)

    def forward(self, x: Tensor, mask: Tensor, cached: Tensor) -> tuple[Tensor, Tensor]:
        """x: [S, N, D]; mask: [N, S, L + S], true for what is not to be heard; cached: keys [L, N, h * query]."""
        stack, batch, frames, left = self.stack, x.shape[1], int(x.shape[0]), int(cached.shape[0])
        wide = stack.heads * stack.query
        mixed = self.enter(x)
        queries, keys, places = mixed[..., :wide], mixed[..., wide : 2 * wide], mixed[..., 2 * wide :]
        keys = torch.cat([cached, keys])
        queries = queries.reshape(frames, batch, stack.heads, stack.query).permute(2, 1, 0, 3)
        places = places.reshape(frames, batch, stack.heads, stack.position).permute(2, 1, 0, 3)
        scores = queries @ keys.reshape(left + frames, batch, stack.heads, stack.query).permute(2, 1, 3, 0)
        distances = self.places(_distances(left, frames).to(x)).reshape(-1, stack.heads, stack.position)
        by_distance = places @ distances.permute(1, 2, 0).unsqueeze(1)  # [h, N, S, L + 2 S - 1]
        order = torch.arange(frames - 1, -1, -1).unsqueeze(1) + torch.arange(left + frames)
        order = order.to(x.device).expand(stack.heads, batch, frames, left + frames)
        scores = scores + by_distance.gather(3, order)
        return scores.masked_fill(mask, -1000.0).softmax(-1), keys[frames:]


def _distances(left: int, frames: int) -> Tensor:
    """Smooth features [L + 2 S - 1, _POSITIONS] of how many frames a query comes after a key, fine where near."""
    x = torch.arange(left + frames - 1, -frames, -1, dtype=torch.float32)
    scale = _POSITIONS / (2.0 * math.pi)
    near = scale * torch.sign(x) * (torch.log(torch.abs(x) + scale) - math.log(scale))
    angles = torch.atan(near / scale).unsqueeze(1) * torch.arange(1, _POSITIONS // 2 + 1)
    return torch.cat([angles.cos(), angles.sin()], 1)


class Values(nn.Module):
    """What attention brings along; cached: [L, N, h * value]."""

    def __init__(self, stack: Stack) -> None:
        super().__init__()
        self.stack, size = stack, stack.heads * stack.value
        self.enter, self.leave = nn.Linear(stack.size, size), _quiet(nn.Linear(size, stack.size))

    def forward(self, x: Tensor, weights: Tensor, cached: Tensor) -> tuple[Tensor, Tensor]:
        frames, batch = int(x.shape[0]), x.shape[1]
        values = torch.cat([cached, self.enter(x)])
        heads = values.reshape(-1, batch, self.stack.heads, self.stack.value).permute(2, 1, 0, 3)
        heard = (weights @ heads).permute(2, 1, 0, 3).reshape(frames, batch, -1)
        return self.leave(heard), values[frames:]


class NonLinearAttention(nn.Module):
    """leave(a * attended(tanh(b) * c)), by the first head's weights; cached: [1, N, L, 3 D / 4]."""

    def __init__(self, size: int) -> None:
        super().__init__()
        hidden = 3 * size // 4
        self.enter, self.leave = nn.Linear(size, 3 * hidden), _quiet(nn.Linear(hidden, size))

    def forward(self, x: Tensor, weights: Tensor, cached: Tensor) -> tuple[Tensor, Tensor]:
        gate, x, outer = self.enter(x).chunk(3, -1)
        frames = int(x.shape[0])
        x = torch.cat([cached, (x * torch.tanh(gate)).transpose(0, 1).unsqueeze(0)], 2)
        attended = (weights[:1] @ x)[0].transpose(0, 1)
        return self.leave(attended * outer), x[:, :, frames:]


class ChunkConvolution(nn.Module):
    """A gated depthwise convolution in two parts: over all that came before, and within the chunk, to both sides, with
    gains at its edges, where half of the kernel finds nothing. cached: [N, D, kernel // 2]."""

    def __init__(self, size: int, kernel: int) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(size, 2 * size), _quiet(nn.Linear(size, size))
        self.before = nn.Conv1d(size, size, kernel // 2 + 1, groups=size)
        self.within = nn.Conv1d(size, size, kernel, padding=kernel // 2, groups=size)
        self.edges = nn.Parameter(torch.zeros(2, size, kernel))

    def forward(self, x: Tensor, chunk: int, cached: Tensor) -> tuple[Tensor, Tensor]:
        """x: [S, N, D], S a multiple of ``chunk``, C."""
        x, gate = self.enter(x).chunk(2, -1)
        x = (x * torch.sigmoid(gate)).permute(1, 2, 0)
        batch, size, frames, past = x.shape[0], int(x.shape[1]), int(x.shape[2]), int(cached.shape[2])
        joined = torch.cat([cached, x], 2)
        if frames > chunk:
            x = x.reshape(batch, size, -1, chunk).transpose(1, 2).reshape(-1, size, chunk)
        y = self.within(x) * self._gains(chunk)
        if frames > chunk:
            y = y.reshape(batch, -1, size, chunk).transpose(1, 2).reshape(batch, size, frames)
        y = (self.before(joined) + y).permute(2, 0, 1)
        return self.leave(swoosh_right(y)), joined[:, :, frames : frames + past]

    def _gains(self, chunk: int) -> Tensor:
        first, last = self.edges[0], self.edges[1]
        kernel = first.shape[1]
        if chunk < kernel:
            first, last = first[:, :chunk], last[:, kernel - chunk :]
        else:
            first, last = functional.pad(first, (0, chunk - kernel)), functional.pad(last, (chunk - kernel, 0))
        return 1.0 + first + last


class Block(nn.Module):
    """(Yao et al. 2024, figure 2); states: keys, non-linear attention, two values, two convolutions."""

    def __init__(self, stack: Stack) -> None:
        super().__init__()
        size, hidden = stack.size, stack.hidden
        self.attention, self.gated = AttentionWeights(stack), NonLinearAttention(size)
        self.values = nn.ModuleList([Values(stack) for _ in range(2)])
        self.convolutions = nn.ModuleList([ChunkConvolution(size, stack.kernel) for _ in range(2)])
        self.forwards = nn.ModuleList([FeedForward(size, hidden * quarters // 4) for quarters in (3, 4, 5)])
        self.norm, self.middle, self.bypass = BiasNorm(size), Bypass(size, 0.5), Bypass(size, 0.5)

    def forward(self, x: Tensor, mask: Tensor, chunk: int, states: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        before, (keys, gated, *others) = x, states
        weights, keys = self.attention(x, mask, keys)
        x = x + self.forwards[0](x)
        y, gated = self.gated(x, weights, gated)
        x, next_values, next_convolutions = x + y, [], []
        for half in range(2):
            y, values = self.values[half](x, weights, others[half])
            x = x + y
            y, convolution = self.convolutions[half](x, chunk, others[2 + half])
            x = x + y
            x = x + self.forwards[half + 1](x)
            next_values.append(values)
            next_convolutions.append(convolution)
            if half == 0:
                x = self.middle(before, x)
        return self.bypass(before, self.norm(x)), [keys, gated, *next_values, *next_convolutions]


class Downsample(nn.Module):
    """Each ``factor`` frames to a mean whose weights are learned; [S, N, D]."""

    def __init__(self, factor: int) -> None:
        super().__init__()
        self.factor, self.weights = factor, nn.Parameter(torch.zeros(factor))

    def forward(self, x: Tensor) -> Tensor:
        frames, size = int(x.shape[0]), int(x.shape[2])
        grouped = x.reshape(frames // self.factor, self.factor, -1, size)
        return (grouped * self.weights.softmax(0).reshape(-1, 1, 1)).sum(1)


class StackedBlocks(nn.Module):
    """A stack at its own rate; what it changes is added back at the full one."""

    def __init__(self, stack: Stack) -> None:
        super().__init__()
        self.stack = stack
        self.blocks = nn.ModuleList([Block(stack) for _ in range(stack.layers)])
        if stack.downsampling > 1:
            self.down, self.bypass = Downsample(stack.downsampling), Bypass(stack.size, 0.5)

    def forward(self, x: Tensor, mask: Tensor, chunk: int, states: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        before, factor = x, self.stack.downsampling
        if factor > 1:
            x, mask = self.down(x), mask[:, ::factor, ::factor]
        following: list[Tensor] = []
        for place, block in enumerate(self.blocks):
            x, found = block(x, mask, chunk // factor, states[6 * place : 6 * place + 6])
            following += found
        if factor > 1:
            x = x.unsqueeze(1).expand(-1, factor, -1, -1).reshape(int(before.shape[0]), -1, self.stack.size)
            x = self.bypass(before, x)
        return x, following


class Front(nn.Module):
    """[N, F, M] to [N, (F - 7) // 2 - 3, D]: three convolutions, a wide one over a cache, a projection."""

    def __init__(self, shape: ZipformerShape) -> None:
        super().__init__()
        one, two, three = shape.front
        self.first = nn.Conv2d(1, one, 3, padding=(0, 1))
        self.second = nn.Conv2d(one, two, 3, stride=2)
        self.third = nn.Conv2d(two, three, 3, stride=(1, 2))
        self.wide = nn.Conv2d(three, three, 7, padding=(0, 3), groups=three)
        self.widen, self.narrow = nn.Conv2d(three, 3 * three, 1), _quiet(nn.Conv2d(3 * three, three, 1))
        self.leave, self.norm = nn.Linear(three * shape.bands, shape.stacks[0].size), BiasNorm(shape.stacks[0].size)

    def forward(self, x: Tensor, cached: Tensor) -> tuple[Tensor, Tensor]:
        """cached: [N, 128, 3, M / 4], of whose channels a smaller network uses the first."""
        for convolution in (self.first, self.second, self.third):
            x = swoosh_right(convolution(x.unsqueeze(1) if convolution is self.first else x))
        channels = x.shape[1]
        x = torch.cat([cached[:, :channels], x], 2)
        whole = int(x.shape[2]) - 2 * _PAST
        cached = functional.pad(x[:, :, whole : whole + _PAST], (0, 0, 0, 0, 0, _STATE_CHANNELS - channels))
        x = x[:, :, _PAST : _PAST + whole] + self.narrow(swoosh_left(self.widen(self.wide(x))))
        return self.norm(self.leave(x.transpose(1, 2).flatten(2))), cached


class Zipformer(nn.Module):
    """Raw log-mel to the encoder's output; ``mean`` and ``scale`` [M] normalize the features."""

    mean: Tensor
    scale: Tensor

    def __init__(self, shape: ZipformerShape) -> None:
        super().__init__()
        self.shape = shape
        self.register_buffer("mean", torch.zeros(shape.mel_bins))
        self.register_buffer("scale", torch.ones(shape.mel_bins))
        self.front = Front(shape)
        self.stacks = nn.ModuleList([StackedBlocks(stack) for stack in shape.stacks])
        self.down = Downsample(2)

    def forward(self, features: Tensor) -> Tensor:
        """A whole utterance: [N, F, M] to [N, T, size] with T = ceil(F / (2 C)) C / 2, padded by silence."""
        chunk = self.shape.chunk
        chunks = max(1, -(-features.shape[1] // (2 * chunk)))
        padding = 2 * chunk * chunks + LOOK_AHEAD - features.shape[1]
        features = functional.pad(features, (0, 0, 0, padding), value=SILENCE)
        return self.stream(features, self.start(features.shape[0], features))[0]

    def stream(self, features: Tensor, states: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Chunks that follow ``states``: [N, 2 S + 13, M], S a multiple of C, to [N, S / 2, size] and what follows."""
        chunk, left = self.shape.chunk, self.shape.left
        *layers, convolved, seen = states
        x, convolved = self.front((features - self.mean) * self.scale, convolved)
        frames = int(x.shape[1])
        keys, mine = torch.arange(-left, frames), (torch.arange(frames) // chunk * chunk).unsqueeze(1)
        beyond = ((keys < mine - left) | (keys >= mine + chunk)).to(x.device)
        mask = beyond | (keys.to(x.device) < -seen.reshape(-1, 1, 1))
        x, at, outputs, following = x.transpose(0, 1), 0, [], []
        for stack, sizes in zip(self.stacks, self.shape.stacks, strict=True):
            size, count = sizes.size, 6 * sizes.layers
            x = x[..., :size] if x.shape[-1] >= size else functional.pad(x, (0, size - x.shape[-1]))
            x, found = stack(x, mask, chunk, layers[at : at + count])
            outputs.append(x)
            following += found
            at += count
        # All channels: the last stack's, and from earlier ones those that the later ones do not have.
        parts = [outputs.pop()]
        for output in reversed(outputs):
            have = sum(part.shape[-1] for part in parts)
            if output.shape[-1] > have:
                parts.append(output[..., have:])
        return self.down(torch.cat(parts, -1)).transpose(0, 1), [*following, convolved, seen + frames]

    def start(self, batch: int = 1, like: Tensor | None = None) -> list[Tensor]:
        """States before the first chunk, all zero, in the order of :func:`state_names`; ``like``: of its type and on
        its device."""
        like = torch.zeros(()) if like is None else like
        shapes: list[tuple[int, ...]] = []
        for stack in self.shape.stacks:
            left, values = self.shape.left // stack.downsampling, (stack.heads * stack.value,)
            block = [(left, batch, stack.heads * stack.query), (1, batch, left, 3 * stack.size // 4)]
            block += [(left, batch, *values)] * 2 + [(batch, stack.size, stack.kernel // 2)] * 2
            shapes += block * stack.layers
        shapes.append((batch, _STATE_CHANNELS, _PAST, self.shape.bands))
        states = [torch.zeros(shape, dtype=like.dtype, device=like.device) for shape in shapes]
        return [*states, torch.zeros(batch, dtype=torch.int64, device=like.device)]


def state_names(shape: ZipformerShape) -> list[str]:
    """Names of the states in the layout of published graphs: six a block, the front's, and the frames so far."""
    kinds = ("cached_key", "cached_nonlin_attn", "cached_val1", "cached_val2", "cached_conv1", "cached_conv2")
    blocks = sum(stack.layers for stack in shape.stacks)
    return [f"{kind}_{block}" for block in range(blocks) for kind in kinds] + ["embed_states", "processed_lens"]


def _quiet(layer: Layer) -> Layer:
    """The end of a residual branch, which begins small."""
    nn.init.normal_(layer.weight, std=0.3 * layer.weight[0].numel() ** -0.5)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer
