"""A model of pare in plain PyTorch, for transformers: `AutoModel.from_pretrained(FOLDER, trust_remote_code=True)`.

config.json describes the whole model in one object, `architecture`, with every key, as pare writes it. Its forms are
those of docs/formats.md of pare, and are computed here as written there. A parameter has the name of its tensor in
model.safetensors, without any prefix, so what is trained and saved here is a model of pare again.

To fine-tune it: `labels` give a loss (-100 does not count, and a causal model shifts them itself); there is no dropout.
Trainer, gradient checkpointing and LoRA of peft work as on other models. Refused where asked for: inputs_embeds,
output_attentions, caches other than DynamicCache, and more tokens or other classes than the architecture has.

In comments B is the batch, n the tokens at hand, m all tokens with those remembered, d the width of the stream.
"""

import functools
import json
import math
from dataclasses import dataclass
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn
from transformers import DynamicCache, GenerationMixin, PretrainedConfig, PreTrainedModel, modeling_outputs
from transformers.utils import ModelOutput


class PareConfig(PretrainedConfig):
    model_type = "pare"

    def __init__(self, architecture=None, pare_format=1, bos_token_id=None, eos_token_id=None, **others):
        if pare_format != 1:
            raise ValueError(f"pare_format is {pare_format}, expected 1: a newer pare wrote this model")
        self.architecture, self.pare_format = architecture or {}, pare_format
        classes = self.architecture.get("head", {}).get("classes")
        if classes and not others.get("id2label"):
            others.setdefault("num_labels", classes)
        super().__init__(bos_token_id=bos_token_id, eos_token_id=eos_token_id, **others)

    # What code for any model asks for. Not stored: the architecture says it.
    hidden_size = property(lambda self: self.architecture.get("width"))
    vocab_size = property(lambda self: self.architecture.get("vocab"))
    max_position_embeddings = property(lambda self: self.architecture.get("context"))

    @property
    def num_hidden_layers(self):
        layers, blocks = self.architecture.get("layers"), self.architecture.get("blocks", [])
        return len(layers) if layers else sum(block["repeat"] for block in blocks)


# ---- Small parts.

ACTIVATIONS = {
    "gelu": F.gelu, "relu": F.relu, "silu": F.silu, "sigmoid": torch.sigmoid, "tanh": torch.tanh,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "relu_squared": lambda x: F.relu(x).square(), "identity": lambda x: x,
    "gelu_bloom": lambda x: x * 0.5 * (1 + torch.tanh(0.79788456 * x * (1 + 0.044715 * x * x))),
}


def wide(x):
    """Sums of squares and of exponentials are made in float32 where the model computes in less."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def plus(x, bias):
    return x if bias is None else x + bias


class Tensors(nn.Module):
    """Parameters of these shapes; one without a shape is not there. `start`: before training, of what is not drawn."""

    def __init__(self, start=None, **shapes):
        super().__init__()
        self.start = start or {}
        for name, shape in shapes.items():
            self.register_parameter(name, nn.Parameter(torch.empty(shape)) if shape else None)


class Norm(Tensors):
    """Without a specification it changes nothing and stores nothing. With gains for each of some heads, x is
    [B, heads, n, width]."""

    def __init__(self, spec, width, heads=None):
        kind, shape = spec and spec.kind, (heads, width) if heads else (width,)
        super().__init__({"weight": 1 - spec.offset, "alpha": 0.5} if spec else {}, alpha=kind == "dyt" and (1,),
                         weight=kind and spec.gain and shape, bias=kind and spec.bias and shape)
        self.spec, self.kind, self.of_each_head = spec, kind, heads is not None

    def forward(self, x):
        if self.kind is None:
            return x
        gain, bias = self.weight, self.bias
        gain = gain if self.spec.offset == 0 else gain + self.spec.offset
        if self.of_each_head:
            gain, bias = (part if part is None else part[:, None] for part in (gain, bias))
        if self.kind == "layer" and not self.of_each_head:
            return F.layer_norm(x, x.shape[-1:], gain, bias, self.spec.epsilon)
        if self.kind == "layer":
            y = F.layer_norm(x, x.shape[-1:], None, None, self.spec.epsilon)
        elif self.kind == "dyt":
            y = torch.tanh(self.alpha * x)
        elif self.kind == "scale":
            y = x if self.spec.factor == 1 else x * self.spec.factor
        else:
            y = wide(x)
            y = (y * torch.rsqrt(y.square().mean(-1, keepdim=True) + self.spec.epsilon)).to(x.dtype)
        return plus(y if gain is None else y * gain, bias)


class Identity(Tensors):
    """A projection without a matrix: the input itself, or a query's x + N(x). It may have a bias all the same."""

    def __init__(self, width, bias, nonlinear=None):
        super().__init__(bias=bias and (width,))
        self.activation = nonlinear and ACTIVATIONS[nonlinear.activation]
        if nonlinear:
            self.up = nn.Linear(width, nonlinear.width, bias=False)
            self.down = nn.Linear(nonlinear.width, width, bias=False)

    def forward(self, x):
        return plus(x + self.down(self.activation(self.up(x))) if self.activation else x, self.bias)


class Shrunk(Tensors):
    """A matrix with the identity in some columns of each head, `pivot`, which are not stored."""

    def __init__(self, width, heads, rows, bias):
        super().__init__(weight=(heads, rows, width - rows), bias=bias and (heads * rows,))
        self.register_buffer("pivot", torch.arange(rows, dtype=torch.int32).repeat(heads, 1))

    def forward(self, x):
        heads, rows, others = self.weight.shape
        pivot = self.pivot.long()
        is_pivot = torch.zeros(heads, rows + others, device=x.device).scatter(1, pivot, 1)
        columns = torch.cat([pivot, is_pivot.argsort(dim=1, stable=True)[:, :others]], 1)  # the others ascend
        identity = torch.eye(rows, dtype=x.dtype, device=x.device).expand(heads, rows, rows)
        parts = torch.cat([identity, self.weight], 2)
        matrix = torch.zeros_like(parts).scatter(2, columns[:, None].expand_as(parts), parts)
        return F.linear(x, matrix.flatten(0, 1), self.bias)


def projection(kind, width, out, bias, shrunk_heads=0):
    """A query, a key, a value or an output: with a matrix of its own, with a part of it, or without."""
    if kind != "dense":
        return Identity(out, bias, getattr(kind, "nonlinear", None))
    return Shrunk(width, shrunk_heads, out // shrunk_heads, bias) if shrunk_heads else nn.Linear(width, out, bias=bias)


# ---- Positions.


def powers(theta, width):
    return theta ** -(torch.arange(0, width, 2, dtype=torch.float64, device="cpu") / width)


def angles_of(positions, frequencies):
    exact = torch.float32 if positions.device.type == "mps" else torch.float64  # which that device does not have
    return positions.to(exact)[..., None] * frequencies.to(positions.device, exact)


def sinusoidal(positions, width, dtype, halves=False):
    if halves:  # all sines, then all cosines; the slowest turns by 1/10000
        half = width // 2
        steps = torch.arange(half, dtype=torch.float64, device="cpu")
        angles = angles_of(positions, 10000 ** (-steps / max(1, half - 1)))
        return F.pad(torch.cat([angles.sin(), angles.cos()], -1), (0, width - 2 * half)).to(dtype)
    angles = angles_of(positions, powers(10000, width))
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(-2)[..., :width].to(dtype)


def depends_on_length(rope):
    return rope is not None and rope.scaling is not None and rope.scaling.kind in ("dynamic", "longrope")


def frequencies_of(rope, length):
    """By how much each plane turns from one position to the next, in a text of so many positions."""
    s, width, theta = rope.scaling, rope.width, rope.theta
    kind = s.kind if s else None
    if kind == "dynamic" and length > s.original_context:
        theta *= (s.factor * length / s.original_context - (s.factor - 1)) ** (width / (width - 2))
    plain = powers(theta, width)
    if kind in (None, "dynamic"):
        return plain
    if kind == "linear":
        return plain / s.factor
    if kind == "longrope":
        factors = s.long_factor if length > s.original_context else s.short_factor
        return plain / torch.tensor(factors, dtype=torch.float64, device="cpu")
    if kind == "llama3":
        turns = s.original_context * plain / (2 * math.pi)
        kept = (turns - s.low_frequency) / (s.high_frequency - s.low_frequency)
    else:  # yarn
        low, high = (width * math.log(s.original_context / (2 * math.pi * beta)) / (2 * math.log(theta))
                     for beta in (s.beta_fast, s.beta_slow))
        low, high = (math.floor(low), math.ceil(high)) if s.truncate else (low, high)
        low, high = max(low, 0), min(high, width - 1)
        kept = 1 - (torch.arange(len(plain), dtype=plain.dtype, device="cpu") - low) / ((high - low) or 0.001)
    kept = kept.clamp(0, 1)
    return plain * kept + plain / s.factor * (1 - kept)


def alibi_slopes(heads, steepest):
    power = 2 ** int(math.log2(heads))
    slopes = [2 ** (-steepest * (h + 1) / power) for h in range(power)]
    slopes += [2 ** (-steepest / 2 * (2 * h + 1) / power) for h in range(heads - power)]
    return torch.tensor(slopes, dtype=torch.float64, device="cpu")


class Step:
    """What all layers of one forward share: where tokens stand, who sees whom, what is remembered.

    `positions` [B or 1, m] and `real` [B, m] are of all tokens, the remembered ones first; `real` is None where nothing
    is padding.
    """

    def __init__(self, positions, real, cache, past):
        self.all_positions, self.positions = positions, positions[:, past:]
        self.real, self.cache, self.past = real, cache, past
        self.known = {}  # what layers that are alike ask for again

    def on(self, device):
        """The same beside a layer that lies on another device."""
        if device != self.positions.device and device not in self.known:
            real = None if self.real is None else self.real.to(device)
            self.known[device] = Step(self.all_positions.to(device), real, self.cache, self.past)
        return self.known.get(device, self)

    def remember(self, layer, keys, values):
        """Takes [B, heads, n, width], hands back those of all tokens."""
        return (keys, values) if self.cache is None else self.cache.update(keys, values, layer)

    def visible(self, mask, window, written_out=False):
        """Which keys a query sees, [B or 1, 1, n, m], None for all; and whether it is just those up to the query, which
        needs no tensor unless it has to be written out."""
        n, m, device = self.positions.shape[1], self.all_positions.shape[1], self.positions.device
        window = window if window and window < m else None
        causal = mask == "causal" and n > 1  # one query at the end sees whatever came before
        if window is None and self.real is None and not (causal and (self.past or written_out)):
            return None, causal
        if (mask, window) not in self.known:
            row, column = torch.arange(self.past, m, device=device)[:, None], torch.arange(m, device=device)
            seen = (column <= (row if mask == "causal" else m)).expand(1, n, m)
            if window:  # in positions, not places: padding in between does not count
                seen = seen & ((self.positions[:, :, None] - self.all_positions[:, None]).abs() < window)
            if self.real is not None:  # a padded query sees itself: no answer, but no NaN either
                seen = (seen & self.real[:, None]) | (row == column)
            self.known[mask, window] = seen[:, None]
        return self.known[mask, window], False

    def turned(self, x, rope, name, every=False):
        """The leading dimensions of each head, rotated in pairs; x is of the tokens at hand or of every one."""
        if rope is None:
            return x
        if (name, every) not in self.known:
            length = int(self.all_positions.max()) + 1 if depends_on_length(rope) else 0
            angles = angles_of(self.all_positions if every else self.positions, frequencies_of(rope, length))[:, None]
            factor = getattr(rope.scaling, "attention_factor", 1)
            self.known[name, every] = (angles.cos() * factor).to(x.dtype), (angles.sin() * factor).to(x.dtype)
        cosine, sine = self.known[name, every]
        turning, rest = x[..., : rope.width], x[..., rope.width :]
        halves = rope.layout == "half"
        a, b = turning.chunk(2, -1) if halves else (turning[..., 0::2], turning[..., 1::2])
        a, b = a * cosine - b * sine, b * cosine + a * sine
        return torch.cat([a, b, rest] if halves else [torch.stack([a, b], -1).flatten(-2), rest], -1)


# ---- Attention and MLP.


def split_heads(x, heads):
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def for_every_head(x, heads):
    return x.expand(-1, heads, -1, -1) if x.shape[1] in (1, heads) else x.repeat_interleave(heads // x.shape[1], 1)


def fused_attention(query, key, value, seen, causal, scale):
    heads = query.shape[1]
    if key.shape[1] != value.shape[1]:  # one of the two is the input itself
        key, value = for_every_head(key, heads), for_every_head(value, heads)
    return F.scaled_dot_product_attention(query, key, value, attn_mask=seen, is_causal=causal, scale=scale,
                                          enable_gqa=key.shape[1] != heads)


class Sublayer(nn.Module):
    """What an attention and an MLP have in common: norms before or behind, and the skip."""

    def __init__(self, spec, width, tabled=False):
        super().__init__()
        self.spec = spec
        self.behind = spec.norm is not None and spec.norm.place == "post"
        self.norm = Norm(None if tabled and not self.behind else spec.norm, width)
        self.output_norm = Norm(spec.output_norm, width)

    def before(self, x):
        return x if self.behind else self.norm(x)

    def after(self, x, y):
        y = x + y if self.spec.skip else y
        return self.norm(y) if self.behind else y


class Attention(Sublayer):
    def __init__(self, t, width, tabled):
        super().__init__(t, width, tabled)
        queries, keys = t.heads * t.head_width, t.kv_heads * t.head_width
        self.scale = t.head_width**-0.5 if t.scale is None else t.scale
        self.rope_name = repr(t.rope)
        self.widths = queries, keys, keys
        self.keys_shared, self.values_shared = t.scores == "collapsed", t.values == "collapsed"  # the input is both
        if not tabled:
            if self.keys_shared:
                self.qk = Tensors(weight=(t.heads, width, width), bias=t.bias.query and (t.heads, width))
            elif t.query != "key":
                self.query = projection(t.query, width, queries, t.bias.query)
            if t.cache == "v":
                self.key_from_value = nn.Linear(keys, keys, bias=False)
            if t.cache == "k":
                self.value_from_key = nn.Linear(keys, keys, bias=False)
            kind = "identity" if self.keys_shared or t.cache == "v" else t.key
            self.key = projection(kind, width, keys, t.bias.key, t.kv_heads * (t.pairs.query_key == "shrunk"))
            kind = "identity" if self.values_shared or t.cache == "k" else t.value
            self.value = projection(kind, width, keys, t.bias.value, t.kv_heads * (t.pairs.value_output == "shrunk"))
        if self.values_shared:
            self.vo = Tensors(weight=(t.heads, width, width))
        self.output = projection("identity" if self.values_shared else t.output, queries, width, t.bias.output)
        self.query_norm, self.key_norm = (self.norm_of_heads(heads) for heads in (t.heads, t.kv_heads))
        if t.gate:
            self.gate = Tensors(weight=(t.heads, width), position=(t.heads, width), bias=(t.heads,))
        if t.shaped:
            self.shape = Tensors({"weight": 1}, weight=(t.heads, 3))

    def norm_of_heads(self, heads):
        t = self.spec
        if t.qk_norm_over == "layer":
            return Norm(t.qk_norm, heads * t.head_width)
        return Norm(t.qk_norm, t.head_width, heads if t.qk_norm_over == "each_head" else None)

    def normed(self, norm, x):
        """Queries or keys [B, heads, n, width], each head's by themselves or those of all heads at once."""
        if self.spec.qk_norm is None or self.spec.qk_norm_over != "layer":
            return norm(x)
        return split_heads(norm(x.transpose(1, 2).flatten(2)), x.shape[1])

    def ready(self, norm, x, step, every):
        """Normed and turned, in that order or the other one."""
        behind = self.spec.qk_norm is not None and self.spec.qk_norm.place == "post"
        x = x if behind else self.normed(norm, x)
        x = step.turned(x, self.spec.rope, self.rope_name, every)
        return self.normed(norm, x) if behind else x

    def project(self, x, table, step, layer):
        """Queries of the tokens at hand, keys and values of all, as [B, heads, n or m, width]. What `cache` says is
        remembered, in the place of the keys if it is one thing."""
        t = self.spec
        if table is not None:
            query, key, value = table.split(self.widths, -1)
        elif t.cache == "kv":
            key, value = self.key(x), self.value(x)
        else:
            source = (self.key(x) if t.cache == "k" else self.value(x) if t.cache == "v" else x)[:, None]
            source = key = value = step.remember(layer, source, source[..., :0])[0][:, 0]
            if t.cache == "k":
                value = self.value(self.value_from_key(source if self.key.bias is None else source - self.key.bias))
            elif t.cache == "v":
                key = self.key(self.key_from_value(source if self.value.bias is None else source - self.value.bias))
            else:
                key, value = self.key(source), self.value(source)
        if self.keys_shared:  # x qk[h] + b[h], as wide as the stream
            query = plus(x[:, None] @ self.qk.weight, None if self.qk.bias is None else self.qk.bias[:, None])
        else:
            if table is None:
                query = key[:, -x.shape[1] :] if t.query == "key" else self.query(x)
            query = split_heads(query, t.heads)
        key = split_heads(key, 1 if self.keys_shared else t.kv_heads)
        value = split_heads(value, 1 if self.values_shared else t.kv_heads)
        query = self.ready(self.query_norm, query, step, False)
        key = self.ready(self.key_norm, key, step, t.cache != "kv")
        if t.cache == "kv" and self.keys_shared and self.values_shared:
            key = value = step.remember(layer, key, key[..., :0])[0]
        elif t.cache == "kv":
            key, value = step.remember(layer, key, value)
        return query, key, value

    def mix(self, query, key, value, step):
        """What each query takes from the values that it sees, [B, heads, n, width of a value]."""
        t, bias = self.spec, 0
        seen, causal = step.visible(t.mask, t.window, written_out=t.alibi or t.softcap)
        if t.alibi:
            distances = step.all_positions[:, None] - step.positions[:, :, None]
            slopes = alibi_slopes(t.heads, t.alibi.steepest)[:, None, None] * (self.scale if t.alibi.scaled else 1)
            slopes = slopes.to(query.device, torch.promote_types(query.dtype, torch.float32))  # no less counts far
            bias = (slopes * distances[:, None]).to(query.dtype)
        if t.softcap:  # no fused attention has one
            scores = query @ for_every_head(key, t.heads).transpose(-1, -2) * self.scale + bias
            scores = t.softcap * torch.tanh(scores / t.softcap)
            scores = scores if seen is None else scores.masked_fill(~seen, -math.inf)
            return wide(scores).softmax(-1).to(value.dtype) @ for_every_head(value, t.heads)
        if t.alibi:
            seen = bias if seen is None else bias.masked_fill(~seen, -math.inf)
        return fused_attention(query, key, value, seen, causal, self.scale)

    def forward(self, x, step, layer, table=None):
        t = self.spec
        query, key, value = self.project(x, table, step, layer)
        mixed = self.mix(query, key, value, step)
        if t.shaped:  # where all scores are the same, attention is a mean
            mean = fused_attention(torch.zeros_like(query), key, value, *step.visible(t.mask, t.window), 1.0)
            own = for_every_head(value[:, :, step.past :], t.heads)
            alpha, beta, gamma = self.shape.weight[..., None, None].unbind(1)
            mixed = alpha * own + beta * mixed - gamma * mean
        if t.gate:
            places = sinusoidal(step.positions, x.shape[-1], x.dtype)
            gate = F.linear(x, self.gate.weight, self.gate.bias) + F.linear(places, self.gate.position)
            mixed = mixed * torch.sigmoid(gate).transpose(1, 2)[..., None]
        mixed = mixed.transpose(1, 2).flatten(2)
        if self.values_shared:  # sum_h (A_h x) vo[h]
            mixed = mixed @ self.vo.weight.flatten(0, 1)
        return self.output_norm(self.output(mixed))


class Curve(Tensors):
    """xIELU: a parabola to the right of 0, an exponential to the left, whose four numbers are trained."""

    def __init__(self):
        super().__init__({"positive": 0.8125, "negative": 0.8125, "slope": 0.5, "least": -1e-6},
                         positive=(1,), negative=(1,), slope=(1,), least=(1,))

    def forward(self, x):
        right = F.softplus(self.positive) * x * x
        left = (torch.expm1(torch.minimum(x, self.least)) - x) * (self.slope + F.softplus(self.negative))
        return torch.where(x > 0, right, left) + self.slope * x


class Mlp(Sublayer):
    def __init__(self, m, width):
        super().__init__(m, width)
        if m.kind == "heads":  # the last column of query and value is their bias
            self.query = nn.Linear(width + 1, m.width, bias=False)
            self.value = None if m.shared_value else nn.Linear(width + 1, m.width, bias=False)
            self.output = nn.Linear(m.width, width, bias=m.bias.down)
        else:
            self.up = nn.Linear(width, m.width, bias=m.bias.up)
            self.gate = nn.Linear(width, m.width, bias=m.bias.gate) if m.gated else None
            self.down = nn.Linear(m.width, width, bias=m.bias.down)
            self.curve = Curve() if m.activation == "xielu" else None

    def forward(self, x):
        if self.spec.kind == "heads":
            x = F.pad(x, (0, 1), value=1.0)
            score = self.query(x)
            return self.output_norm(self.output(torch.sigmoid(score) * (self.value(x) if self.value else score)))
        activate = self.curve or ACTIVATIONS[self.spec.activation]
        y = activate(self.gate(x)) * self.up(x) if self.gate else activate(self.up(x))
        return self.output_norm(self.down(y))


class Block(nn.Module):
    def __init__(self, spec, width, tabled):
        super().__init__()
        self.parallel = spec.wiring == "parallel"
        self.attention = Attention(spec.attention, width, tabled)
        self.mlp = Mlp(spec.mlp, width) if spec.mlp else None

    def forward(self, x, step, layer, table=None):
        attention, mlp, step = self.attention, self.mlp, step.on(x.device)
        read = attention.before(x)
        y = attention.after(x, attention(read, step, layer, table))
        if mlp is None:
            return y
        if self.parallel:
            return y + mlp(mlp.norm(x) if mlp.spec.norm else read)
        return mlp.after(y, mlp(mlp.before(y)))


# ---- The two ends.


class Embedding(nn.Module):
    type = property(lambda self: self._modules.get("type"))  # every module has a method of that name

    def __init__(self, a, first):
        super().__init__()
        self.spec = e = a.embedding
        inner = e.factor or a.width
        summed = inner if e.factor_scope == "sum" else a.width
        self.token = self.table = self.patch = self.position = None
        if a.first_layer == "table":
            self.row = [a.width, sum(first.widths)]
            self.table = nn.Embedding(a.vocab, sum(self.row))
            self.token = nn.Embedding(a.vocab, inner) if a.head.tied else None
            return
        if e.patch:
            self.patch = nn.Conv2d(e.patch.channels, a.width, e.patch.size, stride=e.patch.size, bias=e.patch.bias)
        else:
            self.token = nn.Embedding(a.vocab, inner)
        self.register_parameter("class", nn.Parameter(torch.empty(a.width)) if e.class_token else None)
        self.register_parameter("registers", nn.Parameter(torch.empty(e.registers, a.width)) if e.registers else None)
        if e.position == "learned":
            rows = a.context + e.position_offset - (0 if e.registers_placed else e.registers)
            self.position = nn.Embedding(rows, summed)
        if e.types:
            self.type = nn.Embedding(e.types, summed)
        self.norm = Norm(e.norm, summed)
        if e.factor:
            self.projection = nn.Linear(e.factor, a.width, bias=e.factor_bias)

    def with_registers(self, x):
        """Behind the class token."""
        return torch.cat([x[:, :1], self.registers.expand(len(x), -1, -1), x[:, 1:]], 1)

    def without_masked(self, x, ids, real):
        """What is masked counts for nothing, and the others for more, whatever share of the text that is."""
        hidden = ids == self.spec.masked.id
        share = hidden.sum(1).to(x.dtype) / (ids.shape[1] if real is None else real.sum(1))
        return x.masked_fill(hidden[..., None], 0) * ((1 - self.spec.masked.usual) / (1 - share))[:, None, None]

    def forward(self, ids, types, pixels, positions, real=None):
        """The stream, and the first layer's projections where they are looked up."""
        e = self.spec
        if self.table is not None:
            return self.table(ids).split(self.row, -1)
        if self.patch is not None:
            x = self.patch(pixels.to(self.patch.weight.dtype)).flatten(2).transpose(1, 2)
            if e.class_token:
                x = torch.cat([getattr(self, "class").expand(len(x), 1, -1), x], 1)
        else:
            x = self.token(ids)
        x = x if e.scale == 1 else x * e.scale
        x = self.without_masked(x, ids, real) if e.masked else x
        x = self.with_registers(x) if e.registers_placed else x
        if e.factor and e.factor_scope == "token":
            x = self.projection(x)
        if self.type is not None:
            x = x + self.type(types)
        if self.position is not None:
            x = x + self.position(positions[:, : x.shape[1]] + e.position_offset)
        elif e.position != "none":
            x = x + sinusoidal(positions + e.position_offset, x.shape[-1], x.dtype, e.position == "sinusoidal_halves")
        x = self.with_registers(x) if e.registers and not e.registers_placed else x
        x = self.norm(x)
        return self.projection(x) if e.factor and e.factor_scope == "sum" else x, None


class Transform(Tensors):
    """A layer before a head."""

    def __init__(self, spec, width, out):
        super().__init__(weight=(out, width), bias=spec.bias and (out,))
        self.activation, self.norm = ACTIVATIONS[spec.activation], Norm(spec.norm, out)

    def forward(self, x):
        return self.norm(self.activation(F.linear(x, self.weight, self.bias)))


class Head(Tensors):
    """A matrix with its bias, behind a layer or not, and beside it perhaps a second head for the whole sequence."""

    def __init__(self, spec, rows, width, out, tied=False):
        out = (spec.transform.width or out) if spec.transform else width
        super().__init__(weight=rows and not tied and (rows, out), bias=spec.bias and (rows,))
        self.spec, self.softcap, second = spec, getattr(spec, "softcap", None), getattr(spec, "sequence", None)
        self.scale = getattr(spec, "scale", 1)
        self.pool = nn.Module()
        self.pool.norm = Norm(getattr(spec, "pool_norm", None), width)
        self.transform = Transform(spec.transform, width, out) if spec.transform else None
        self.sequence = Head(second, second.classes, width, width) if second else None

    def forward(self, x, token=None):
        x = self.transform(x) if self.transform else x
        logits = F.linear(x, token.weight.to(x.device) if self.weight is None else self.weight, self.bias)
        logits = logits if self.scale == 1 else logits * self.scale
        return self.softcap * torch.tanh(logits / self.softcap) if self.softcap else logits

    def pools(self):
        """Whether a model without a matrix here answers for a sequence."""
        pools = self.transform is not None or self.spec.pool_norm is not None or self.spec.pool == "token"
        return pools and self.spec.pool != "none"

    def pooled(self, x, real, ids):
        """What stands for a sequence: its first or last token that is no padding, the first of an id, or their mean."""
        return self.pool.norm(self.chosen(x, real, ids))

    def chosen(self, x, real, ids):
        if self.spec.pool == "mean":
            counted = torch.ones_like(x[..., :1]) if real is None else real.to(x)[..., None]
            return (x * counted).sum(1) / counted.sum(1)
        if self.spec.pool == "token":  # where there is none, the first; without an id, that of the highest
            seen = ids if real is None else ids.masked_fill(~real.to(ids.device).bool(), -1)
            known = seen == (seen.amax(1, keepdim=True) if self.spec.pool_token is None else self.spec.pool_token)
            place = known.int().argmax(1)
            if real is not None:
                place = torch.where(known.any(1), place, real.to(ids.device).int().argmax(1))
            place = place.to(x.device)
            return x[torch.arange(len(x), device=x.device), place]
        first = self.spec.pool == "first"
        if real is None:
            return x[:, 0 if first else -1]
        counted = real.to(x.device).long().cumsum(1)
        place = (counted < (1 if first else counted[:, -1:])).sum(1).clamp(max=x.shape[1] - 1)
        return x[torch.arange(len(x), device=x.device), place]


# ---- The models.


def returned(forward):
    """What a model answers has names, or is a tuple where `return_dict` is false."""

    @functools.wraps(forward)
    def wrapped(self, *inputs, return_dict=None, **named):
        output = forward(self, *inputs, **named)
        return output if (self.config.return_dict if return_dict is None else return_dict) else output.to_tuple()

    return wrapped


class PareModel(PreTrainedModel):
    """The stream behind the last layer; of an encoder with a pooler, that too. The other classes add their answer."""

    config_class = PareConfig
    tasks = None  # any
    supports_gradient_checkpointing = True
    _no_split_modules = ["Block"]
    _supports_sdpa = _supports_cache_class = True

    def __init__(self, config):
        super().__init__(config)
        a = json.loads(json.dumps(config.architecture), object_hook=lambda entries: SimpleNamespace(**entries))
        if self.tasks and a.task not in self.tasks:
            raise ValueError(f"{type(self).__name__} is for {self.tasks}, and the model's task is {a.task}")
        if a.head.classes and config.num_labels != a.head.classes:
            raise ValueError(f"num_labels is {config.num_labels}, and the model has {a.head.classes} classes")
        blocks = [block for block in a.blocks for _ in range(block.repeat)]
        self.task, self.context, self.order = a.task, a.context, a.layers or list(range(len(blocks)))
        tabled = self.order[0] if a.first_layer == "table" else None
        self.blocks = nn.ModuleList(Block(block, a.width, n == tabled) for n, block in enumerate(blocks))
        self.embed = Embedding(a, self.blocks[self.order[0]].attention)
        self.norm = Norm(a.final_norm, a.width)
        rows = 0 if a.task == "encoder" else a.head.classes or a.vocab
        language = a.task in ("causal_lm", "masked_lm")
        self.head = Head(a.head, rows, a.width, language and a.embedding.factor or a.width, a.head.tied)
        self.main_input_name = "pixel_values" if a.embedding.patch else "input_ids"
        self.gradient_checkpointing = False
        self.post_init()

    def get_input_embeddings(self):
        return next(part for part in (self.embed.table, self.embed.patch, self.embed.token) if part is not None)

    def resize_token_embeddings(self, *args, **kwargs):
        raise NotImplementedError("a model of pare keeps its tokens: architecture.vocab says how many")

    @torch.no_grad()
    def _init_weights(self, module):
        for name, tensor in module.named_parameters(recurse=False):
            start = getattr(module, "start", {}).get(name, 0 if name == "bias" else None)
            if start is None:
                nn.init.normal_(tensor, std=(tensor[0].numel() if tensor.dim() == 4 else tensor.shape[-1]) ** -0.5)
            else:
                nn.init.constant_(tensor, start)

    def run(self, ids, mask=None, types=None, positions=None, pixels=None, cache=None, use_cache=None,
            output_hidden_states=None, cache_position=None, num_items_in_batch=None, **others):
        """All but the head: `hidden` behind the final norm; `real`, whether tokens at hand are no padding, or None;
        `cache` and `states`."""
        if unknown := [name for name, value in others.items() if value is not None and value is not False]:
            raise TypeError(f"a model of pare has no use for {', '.join(unknown)}")
        if ids is None and pixels is None:
            raise ValueError(f"{self.main_input_name}: what should the model read?")
        if self.embed.patch is not None:
            pixels = ids if pixels is None else pixels
            ids = torch.zeros(len(pixels), self.context, dtype=torch.long, device=pixels.device)
        again = self.gradient_checkpointing and self.training
        cache = DynamicCache() if use_cache and cache is None and not again else cache
        if again and cache is not None:
            raise ValueError("gradient checkpointing runs each layer twice, which a cache would remember twice")
        if cache is not None and any(block.attention.spec.mask != "causal" for block in self.blocks):
            raise ValueError("the model looks both ways, which changes what a cache remembers: use_cache=False")
        if not isinstance(cache, DynamicCache | None):
            raise ValueError(f"a model of pare remembers in a DynamicCache, not in a {type(cache).__name__}")
        past = 0 if cache is None else cache.get_seq_length()
        notes = self.noted(cache, past, ids, mask, types, positions)
        every_id, every_type, real, positions = notes.unbind(-1)
        ropes = [block.attention.spec.rope for block in self.blocks if depends_on_length(block.attention.spec.rope)]
        lengths = [int(positions[:, :past].max()) + 1, int(positions.max()) + 1] if past and ropes else []
        if lengths and any(not torch.equal(*(frequencies_of(rope, length) for length in lengths)) for rope in ropes):
            # What was remembered belongs to other angles: all is computed anew, so that steps and one pass agree.
            cache.crop(-past)
            found = self.run(every_id, real, every_type, positions, None, cache, None, output_hidden_states)
            found.hidden, found.real = found.hidden[:, past:], None if found.real is None else found.real[:, past:]
            found.states = found.states and tuple(state[:, past:] for state in found.states)
            return found
        if cache is not None:
            while hasattr(cache, "layers") and 0 < len(cache.layers) <= len(self.order):
                cache.layers.append(type(cache.layers[0])())  # generate() makes one for each layer
            cache.update(notes[:, None, past:], notes[:, None, past:, :0], len(self.order))
        positions = positions[:1] if (positions == positions[:1]).all() else positions
        step = Step(positions, None if real.all() else real.bool(), cache, past)
        now = None if step.real is None else step.real[:, past:]
        x, table = self.embed(ids, every_type[:, past:], pixels, step.positions, now)
        states = []
        for layer, number in enumerate(self.order):
            states.append(x)
            block = self.blocks[number]
            if again:
                block = functools.partial(self._gradient_checkpointing_func, block.__call__)
            x, table = block(x, step, layer, table), None
        hidden = self.norm(x)
        wanted = self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
        return SimpleNamespace(hidden=hidden, real=now, ids=ids, cache=cache,
                               states=(*states, hidden) if wanted else None)

    def noted(self, cache, past, ids, mask, types, positions):
        """[B, m, 4]: of every token its id, its type, whether it is real, and its position. One more entry of the cache
        holds them, so that padding, what counts as a token, and angles are known in later steps."""
        before = list(cache)[len(self.order)][0][:, 0] if past else ids.new_zeros(len(ids), 0, 4)
        every_id = torch.cat([before[..., 0], ids], 1)
        real = torch.cat([before[..., 2], torch.ones_like(ids)], 1) if mask is None else mask.to(ids.dtype)
        if real.shape != every_id.shape:
            raise ValueError(f"attention_mask: found {list(real.shape)}, expected {list(every_id.shape)}, all so far")
        if positions is None:  # real tokens are counted from 0; in some models those of one id are left out
            pad = self.embed.spec.position_pad
            counts = real if pad is None else real * (every_id != pad)
            positions = (counts.cumsum(1) - 1).clamp(min=0)[:, past:]
            positions = positions if pad is None else positions.masked_fill(ids == pad, -1)
        if self.embed.position is not None and int(positions.max()) >= self.context:
            raise ValueError(f"a token is past the {self.context} learned positions of the model: shorten the input")
        if types is not None and self.embed.type is None and types.any():
            raise ValueError("token_type_ids: the model has no token types")
        types = torch.zeros_like(ids) if types is None else types
        return torch.cat([before, torch.stack([ids, types, real[:, past:], positions.expand_as(ids)], -1)], 1)

    def logits(self, x):
        return self.head(x, self.embed.token)

    @returned
    def forward(self, input_ids=None, attention_mask=None, token_type_ids=None, position_ids=None, pixel_values=None,
                past_key_values=None, **others):
        found = self.run(
            input_ids, attention_mask, token_type_ids, position_ids, pixel_values, past_key_values, **others)
        hidden, pooled, transform = found.hidden, None, self.head.transform
        if self.task == "encoder" and self.head.pools():
            pooled = self.head.pooled(hidden, found.real, found.ids)
            pooled = pooled if transform is None else transform(pooled)
        elif self.task == "encoder" and transform is not None:
            hidden = transform(hidden)
        return modeling_outputs.BaseModelOutputWithPoolingAndCrossAttentions(
            last_hidden_state=hidden, pooler_output=pooled, past_key_values=found.cache, hidden_states=found.states)


def mean_or_sum(loss, logits, labels, total):
    """The mean, or where a trainer counted the labels of several batches, this one's part of theirs."""
    return loss(logits, labels) if total is None else loss(logits, labels, reduction="sum") / total


def cross_entropy(logits, labels, total=None):
    """Over labels that are not -100."""
    logits, labels = wide(logits).flatten(0, -2), labels.to(logits.device).flatten()
    return mean_or_sum(F.cross_entropy, logits, labels, total)


class PareForCausalLM(PareModel, GenerationMixin):
    tasks = ("causal_lm",)

    @returned
    def forward(self, input_ids=None, attention_mask=None, token_type_ids=None, position_ids=None, past_key_values=None,
                labels=None, logits_to_keep=0, num_items_in_batch=None, **others):
        found = self.run(input_ids, attention_mask, token_type_ids, position_ids, None, past_key_values, **others)
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits, loss = self.logits(found.hidden[:, kept]), None
        if labels is not None:
            loss = cross_entropy(logits[:, :-1], labels[:, 1:], num_items_in_batch)
        return modeling_outputs.CausalLMOutputWithPast(
            loss=loss, logits=logits, past_key_values=found.cache, hidden_states=found.states)

    def prepare_inputs_for_generation(self, *args, **kwargs):
        inputs = super().prepare_inputs_for_generation(*args, **kwargs)
        if self.embed.spec.position_pad is not None:  # only the ids tell which tokens are counted
            inputs.pop("position_ids", None)
        return inputs


class OneAnswer(PareModel):
    """Logits of each token, or of the sequence."""

    @returned
    def forward(self, input_ids=None, attention_mask=None, token_type_ids=None, position_ids=None, pixel_values=None,
                labels=None, num_items_in_batch=None, **others):
        found = self.run(input_ids, attention_mask, token_type_ids, position_ids, pixel_values, **others)
        of_sequence = self.task in ("classifier", "next_sentence")
        logits = self.logits(self.head.pooled(found.hidden, found.real, found.ids) if of_sequence else found.hidden)
        loss = None if labels is None else self.loss(logits, labels, num_items_in_batch)
        return self.output(loss=loss, logits=logits, hidden_states=found.states)

    def loss(self, logits, labels, total):
        kind = self.config.problem_type if self.task == "classifier" else "single_label_classification"
        if kind == "regression" or (kind is None and logits.shape[-1] == 1):
            return mean_or_sum(F.mse_loss, logits.squeeze(), labels.squeeze().to(logits), total)
        if kind == "single_label_classification" or (kind is None and not labels.is_floating_point()):
            return cross_entropy(logits, labels, total)
        return mean_or_sum(F.binary_cross_entropy_with_logits, logits, labels.to(logits), total)


class PareForMaskedLM(OneAnswer):
    tasks, output = ("masked_lm",), modeling_outputs.MaskedLMOutput


class PareForTokenClassification(OneAnswer):
    tasks, output = ("token_classifier",), modeling_outputs.TokenClassifierOutput


class PareForSequenceClassification(OneAnswer):
    tasks, output = ("classifier",), modeling_outputs.SequenceClassifierOutput


class PareForImageClassification(OneAnswer):
    tasks, output = ("classifier",), modeling_outputs.ImageClassifierOutput


class PareForNextSentencePrediction(OneAnswer):
    tasks, output = ("next_sentence",), modeling_outputs.NextSentencePredictorOutput


class PareForQuestionAnswering(PareModel):
    tasks = ("question_answering",)

    @returned
    def forward(self, input_ids=None, attention_mask=None, token_type_ids=None, position_ids=None, start_positions=None,
                end_positions=None, **others):
        found = self.run(input_ids, attention_mask, token_type_ids, position_ids, **others)
        start, end = self.logits(found.hidden).unbind(-1)
        loss = None
        if start_positions is not None and end_positions is not None:  # past the end, an answer does not count
            loss = sum(cross_entropy(logits, place.clamp(min=0).masked_fill(place >= start.shape[1], -100))
                       for logits, place in ((start, start_positions), (end, end_positions))) / 2
        return modeling_outputs.QuestionAnsweringModelOutput(
            loss=loss, start_logits=start, end_logits=end, hidden_states=found.states)


@dataclass
class ParePreTrainingOutput(ModelOutput):
    loss: torch.FloatTensor | None = None
    prediction_logits: torch.FloatTensor | None = None
    seq_relationship_logits: torch.FloatTensor | None = None
    hidden_states: tuple | None = None


class PareForPreTraining(PareModel):
    """A language model with a second head, which answers for the sequence."""

    tasks = ("causal_lm", "masked_lm")
    accepts_loss_kwargs = False  # a mean of each batch

    @returned
    def forward(self, input_ids=None, attention_mask=None, token_type_ids=None, position_ids=None, labels=None,
                next_sentence_label=None, **others):
        found = self.run(input_ids, attention_mask, token_type_ids, position_ids, **others)
        logits, second, loss = self.logits(found.hidden), None, None
        if self.head.sequence is not None:
            second = self.head.sequence(self.head.pooled(found.hidden, found.real, found.ids))
        if labels is not None:
            causal = self.task == "causal_lm"
            loss = cross_entropy(logits[:, :-1] if causal else logits, labels[:, 1:] if causal else labels)
        if next_sentence_label is not None:
            loss = cross_entropy(second, next_sentence_label) + (0 if loss is None else loss)
        return ParePreTrainingOutput(
            loss=loss, prediction_logits=logits, seq_relationship_logits=second, hidden_states=found.states)
