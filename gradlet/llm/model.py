"""The transformer: attention with few heads of keys, a gated network or a choice of experts, and their norms.

One model covers the families in use; `Config` says which parts a family has. A step takes some tokens at positions from
`start` on, writes their keys and values into the caches and returns the logits of one of them. Tokens are taken in
chunks of a few fixed sizes, the last one filled up: every size is captured once, for all positions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from gradlet.base.errors import ArgumentError
from gradlet.io.kept import Kept
from gradlet.llm import rope
from gradlet.llm.cache import Cache
from gradlet.llm.config import Config, Experts
from gradlet.llm.weights import Matrix, Weights
from gradlet.tensor.function import jit
from gradlet.tensor.tensor import Tensor, Variable

CHUNKS: Final = (256, 32, 8, 1)  # tokens of one step
TURN_ROWS: Final = 16  # tokens from which on keys are turned, so that products with queries have positions as lanes


class Place(Protocol):
    """Where the tokens of a step stand, and what they see."""

    def rows(self, table: Tensor, count: int) -> Tensor:
        """The rows of a table by position that belong to the `count` tokens."""

    def attend(self, attention: Attention, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """What attention gives, from [heads, tokens, features]: [heads of keys, queries a head, tokens, features]."""


class OneText:
    """Tokens one after another, at positions of one text from `start` on; `first` as in `Cache.append`."""

    def __init__(self, start: Any, first: Any = None) -> None:
        self.start, self.first = start, first

    def rows(self, table: Tensor, count: int) -> Tensor:
        return table[self.start : self.start + count]

    def attend(self, attention: Attention, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        return attention.attend(queries, keys, values, self.start, self.first)


class Norm:
    """Root mean square or layer norm, with what weights the file has."""

    def __init__(self, weights: Weights, name: str, width: int, config: Config, *more: str) -> None:
        self.weight = weights.maybe_vector(f"{name}.weight", (width,), *[f"{other}.weight" for other in more])
        self.bias = weights.maybe_vector(f"{name}.bias", (width,))
        if self.weight is None and config.family != "olmo":  # whose norms have none
            weights.find(f"{name}.weight")
        self.centred, self.epsilon = config.norm == "layer", config.epsilon

    def __call__(self, x: Tensor) -> Tensor:
        if self.centred:
            x = x - x.mean(-1, keepdim=True)
        x = x * ((x * x).mean(-1, keepdim=True) + self.epsilon).rsqrt()
        if self.weight is not None:
            x = x * self.weight
        return x if self.bias is None else x + self.bias


class Linear:
    """A matrix and what bias the file has."""

    def __init__(self, matrix: Matrix, bias: Tensor | None) -> None:
        self.matrix, self.bias = matrix, bias

    @staticmethod
    def read(weights: Weights, name: str, inputs: int, results: int) -> Linear:
        """The layer of a name."""
        matrix = weights.matrix(f"{name}.weight", (results, inputs))
        return Linear(matrix, weights.maybe_vector(f"{name}.bias", (results,)))

    @staticmethod
    def joined(weights: Weights, parts: Mapping[str, int], inputs: int) -> Linear | None:
        """Layers that read the same values as one, if their weights are quantised alike."""
        biases = [weights.maybe_vector(f"{name}.bias", (results,)) for name, results in parts.items()]
        given = [bias for bias in biases if bias is not None]
        if given and len(given) < len(biases):
            return None
        matrix = weights.joined({f"{name}.weight": results for name, results in parts.items()}, inputs)
        bias = Tensor.cat(*given).realize() if given else None
        return None if matrix is None else Linear(matrix, bias)

    def __call__(self, x: Tensor) -> Tensor:
        y = self.matrix.linear(x)
        return y if self.bias is None else y + self.bias


class Attention:
    """Attention of one layer; `window` positions are seen, or all of them where it is 0."""

    def __init__(self, weights: Weights, config: Config, layer: int, positions: int, slots: int = 1) -> None:
        name = f"blk.{layer}.attn"
        self.config = config
        self.window = config.window if config.is_local(layer) else 0
        self.heads, self.kv_heads, self.features = config.heads, config.kv_heads, config.head_width
        inner, narrow = self.heads * self.features, self.kv_heads * self.features
        self.all_three: Linear | None = None
        if weights.has(f"{name}_qkv.weight"):
            self.all_three = Linear.read(weights, f"{name}_qkv", config.width, inner + 2 * narrow)
        else:
            parts = {f"{name}_q": inner, f"{name}_k": narrow, f"{name}_v": narrow}
            self.all_three = Linear.joined(weights, parts, config.width)
        if self.all_three is None:
            self.queries = Linear.read(weights, f"{name}_q", config.width, inner)
            self.keys = Linear.read(weights, f"{name}_k", config.width, narrow)
            self.values = Linear.read(weights, f"{name}_v", config.width, narrow)
        self.output = Linear.read(weights, f"{name}_output", inner, config.width)
        self.query_norm = self.key_norm = None
        if config.query_norm != "none":
            whole = config.query_norm == "all"
            self.query_norm = Norm(weights, f"{name}_q_norm", inner if whole else self.features, config)
            self.key_norm = Norm(weights, f"{name}_k_norm", narrow if whole else self.features, config)
        self.sinks = weights.vector(f"{name}_sinks.weight", (self.heads,), f"{name}_sinks") if config.sinks else None
        self.scale = self.features**-0.5 if config.attention_scale is None else config.attention_scale
        self.cache = Cache(self.kv_heads, positions, self.features, slots)

    def __call__(self, x: Tensor, place: Place, turns: rope.Table | None) -> Tensor:
        count = x.shape[0]
        queries, keys, values = self._project(x)
        queries, keys = (
            self._heads(queries, self.heads, self.query_norm),
            self._heads(keys, self.kv_heads, self.key_norm),
        )
        values = self._heads(values, self.kv_heads, None)
        if turns is not None:
            here = rope.Table(*[place.rows(part, count) for part in turns])
            queries, keys = rope.turn(queries, here), rope.turn(keys, here)
        mixed = place.attend(self, queries, keys, values)
        return self.output(mixed.permute(2, 0, 1, 3).reshape(count, self.heads * self.features))

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if self.all_three is None:
            parts = _kept(self.queries(x)), _kept(self.keys(x)), self.values(x)
        else:
            inner, narrow = self.heads * self.features, self.kv_heads * self.features
            both = _kept(self.all_three(x))
            parts = both[:, :inner], both[:, inner : inner + narrow], both[:, inner + narrow :]
        limit = self.config.clip_qkv
        return tuple([part.clip(-limit, limit) for part in parts]) if limit else parts  # type: ignore[return-value]

    def _heads(self, x: Tensor, heads: int, norm: Norm | None) -> Tensor:
        """[tokens, heads * features] as [heads, tokens, features]."""
        if norm is not None and self.config.query_norm == "all":
            x = norm(x)
        x = x.reshape(x.shape[0], heads, self.features)
        if norm is not None and self.config.query_norm == "head":
            x = norm(x)
        return x.permute(1, 0, 2)

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, start: Any, first: Any = None) -> Tensor:
        """Attention of tokens that follow what the cache has: [heads of keys, queries a head, tokens, features]."""
        return self.look(queries, *self.cache.append(keys, values, start, first), start)

    def look(self, queries: Tensor, keys: Tensor, values: Tensor, start: Any) -> Tensor:
        """The same with all keys and values that are seen, those of the tokens included."""
        count, seen = queries.shape[1], keys.shape[1]
        queries = queries.reshape(self.kv_heads, self.heads // self.kv_heads, count, self.features)
        turned = keys.transpose(1, 2)
        if count >= TURN_ROWS:
            turned = turned.contiguous()
        scores = (queries @ turned.unsqueeze(1)) * self.scale
        if self.config.attention_cap:
            scores = (scores * (1.0 / self.config.attention_cap)).tanh() * self.config.attention_cap
        if count > 1 or self.window:
            own = Tensor.arange(count).reshape(count, 1) + start
            places = Tensor.arange(self.cache.positions)[:seen]
            hidden = places > own
            if self.window:
                hidden = hidden | (places <= own - self.window)
            scores = hidden.where(float("-inf"), scores)
        if self.sinks is None:
            return scores.softmax(-1) @ values.unsqueeze(1)
        sinks = self.sinks.reshape(self.kv_heads, self.heads // self.kv_heads, 1, 1)
        highest = scores.max(-1, keepdim=True).maximum(sinks)
        shares = (scores - highest).exp()
        return (shares @ values.unsqueeze(1)) / (shares.sum(-1, keepdim=True) + (sinks - highest).exp())


def _kept(x: Tensor) -> Tensor:
    """Results of a product with many rows are written: each number that is turned would else compute its two anew."""
    return x.contiguous() if x.shape[0] > 1 else x


def _gated(gate: Tensor, value: Tensor, activation: str) -> Tensor:
    if activation == "clamped":
        gate, value = gate.minimum(7.0), value.clip(-7.0, 7.0)
        return (value + 1.0) * (gate * (gate * 1.702).sigmoid())
    return (gate.silu() if activation == "silu" else gate.gelu()) * value


class Network:
    """The network of one layer: gated, or a plain one."""

    def __init__(self, weights: Weights, config: Config, layer: int, hidden: int, suffix: str = "") -> None:
        name, width = f"blk.{layer}.ffn", config.width
        self.activation = config.activation
        self.hidden = hidden
        self.gate: Linear | None = None
        self.both = False
        if config.activation != "gelu_plain":
            # Phi 3 has gates and values in one matrix.
            self.both = not weights.has(f"{name}_gate{suffix}.weight")
        up: Linear | None = None
        if config.activation != "gelu_plain" and not self.both:
            up = Linear.joined(weights, {f"{name}_gate{suffix}": hidden, f"{name}_up{suffix}": hidden}, width)
            self.both = up is not None
            if up is None:
                self.gate = Linear.read(weights, f"{name}_gate{suffix}", width, hidden)
        self.up = up or Linear.read(weights, f"{name}_up{suffix}", width, 2 * hidden if self.both else hidden)
        self.down = Linear.read(weights, f"{name}_down{suffix}", hidden, width)

    def __call__(self, x: Tensor) -> Tensor:
        value = self.up(x)
        if self.both:
            value = _gated(value[:, : self.hidden], value[:, self.hidden :], self.activation)
        elif self.gate is not None:
            value = _gated(self.gate(x), value, self.activation)
        else:
            value = value.gelu()
        return self.down(value)


class Mixture:
    """Experts of one layer: every token goes through a few of them, whose weights alone are read."""

    def __init__(self, weights: Weights, config: Config, layer: int, experts: Experts) -> None:
        name, width, hidden = f"blk.{layer}.ffn", config.width, experts.hidden
        self.experts, self.activation = experts, config.activation
        self.router = Linear.read(weights, f"{name}_gate_inp", width, experts.count)
        self.gate = weights.experts(f"{name}_gate_exps.weight", (experts.count, hidden, width))
        self.up = weights.experts(f"{name}_up_exps.weight", (experts.count, hidden, width))
        self.down = weights.experts(f"{name}_down_exps.weight", (experts.count, width, hidden))
        sizes = {"gate": hidden, "up": hidden, "down": width}
        self.biases = [weights.maybe_vector(f"{name}_{k}_exps.bias", (experts.count, n)) for k, n in sizes.items()]
        self.shared: Network | None = None
        self.shared_gate: Tensor | None = None
        if experts.shared:
            self.shared = Network(weights, config, layer, experts.shared, "_shexp")
            raw = weights.find(f"{name}_gate_inp_shexp.weight").tensor()
            self.shared_gate = raw.cast("float32").reshape(1, width).realize()

    def __call__(self, x: Tensor) -> Tensor:
        logits = self.router(x)
        if self.experts.softmax_first:
            shares, numbers = logits.softmax(-1).topk(self.experts.used)
            if self.experts.normalise:
                shares = shares / shares.sum(-1, keepdim=True)
        else:
            best, numbers = logits.topk(self.experts.used)
            shares = best.softmax(-1)
        numbers = numbers.contiguous()
        rows = x.unsqueeze(1)
        gate, up, down = self.biases
        inner = _gated(
            _with_bias(self.gate.linear(rows, numbers), gate, numbers),
            _with_bias(self.up.linear(rows, numbers), up, numbers),
            self.activation,
        ).contiguous()
        outer = _with_bias(self.down.linear(inner, numbers), down, numbers)
        result = (outer * shares.unsqueeze(-1)).sum(1)
        if self.shared is not None and self.shared_gate is not None:
            result = result + self.shared(x) * (x @ self.shared_gate.transpose(0, 1)).sigmoid()
        return result


def _with_bias(x: Tensor, bias: Tensor | None, numbers: Tensor) -> Tensor:
    return x if bias is None else x + bias[numbers]


class Layer:
    """Attention and network, each added to what passes by."""

    def __init__(self, weights: Weights, config: Config, layer: int, positions: int, slots: int = 1) -> None:
        name = f"blk.{layer}"
        before, after = config.place in ("before", "both"), config.place in ("after", "both")
        self.parallel = config.parallel
        self.attention = Attention(weights, config, layer, positions, slots)
        self.network: Network | Mixture
        if config.experts is None:
            self.network = Network(weights, config, layer, config.hidden)
        else:
            self.network = Mixture(weights, config, layer, config.experts)

        def norm(part: str, *more: str) -> Norm:
            return Norm(weights, f"{name}.{part}", config.width, config, *[f"{name}.{other}" for other in more])

        self.attention_norm = norm("attn_norm") if before else None
        # Where norms stand only before, Hugging Face calls this one by its place behind attention.
        both = config.place == "both"
        own = before and not config.parallel
        self.network_norm = norm("ffn_norm", *([] if both else ["post_attention_norm"])) if own else None
        self.attention_after = norm("post_attention_norm") if after else None
        self.network_after = norm("post_ffw_norm") if after else None

    def __call__(self, x: Tensor, place: Place, turns: rope.Table | None) -> Tensor:
        inner = x if self.attention_norm is None else _kept(self.attention_norm(x))
        mixed = self.attention(inner, place, turns)
        if self.parallel:
            return x + mixed + self.network(inner)
        x = x + (mixed if self.attention_after is None else self.attention_after(mixed))
        inner = self.network(x if self.network_norm is None else self.network_norm(x))
        return x + (inner if self.network_after is None else self.network_after(inner))


class Transformer:
    """A language model with room for `slots` texts of `positions` tokens."""

    def __init__(self, config: Config, weights: Weights, positions: int, slots: int = 1, name: str = "") -> None:
        """Lay out the weights; a `name` that says all about a model has later processes find its steps on disk."""
        self.config, self.positions, self.slots = config, positions, slots
        shape = (config.vocabulary, config.width)
        self.embedding: Matrix = weights.matrix("token_embd.weight", shape)
        self.layers = [Layer(weights, config, layer, positions, slots) for layer in range(config.layers)]
        self.norm = Norm(weights, "output_norm", config.width, config)
        tied = not weights.has("output.weight")
        self.head: Matrix = self.embedding if tied else weights.matrix("output.weight", shape)
        self.head_bias = weights.maybe_vector("output.bias", (config.vocabulary,))
        self.turns = rope.table(config.rope, positions) if config.rope.width else None
        self.local_turns = self.turns if config.local_rope is None else rope.table(config.local_rope, positions)
        Tensor.arange(1)  # the table that counting reads is there before the first step is captured
        self._step = jit(self._compute)
        self.name = f"{name} {positions} {slots}" if name else ""
        self._steps = self.kept(self._step, self)

    def kept(self, function: jit, root: Any) -> Any:
        """A jitted function of `root` that later processes find on disk, if this model has a name."""
        return Kept(function, root, self.name) if self.name else function

    def _compute(self, tokens: Tensor, start: Any, last: Any, first: Any = None) -> Tensor:
        """Logits of token number `last` of some that stand at positions from `start` on."""
        x = self.hidden(tokens, OneText(start, first))
        return self.logits(x if tokens.shape[0] == 1 else x[last : last + 1]).reshape(self.config.vocabulary)

    def hidden(self, tokens: Tensor, place: Place) -> Tensor:
        """What the layers make of some tokens, [tokens, width]."""
        config = self.config
        x = self.embedding.rows(tokens)
        if config.embedding_scale != 1.0:
            x = x * config.embedding_scale
        for number, layer in enumerate(self.layers):
            turns = self.local_turns if config.is_local(number) else self.turns
            # Layers are scheduled one by one: all but the first find their schedule, and none keeps another's memory.
            x = layer(x, place, turns if config.has_rope(number) else None).realize()
        return x

    def logits(self, x: Tensor) -> Tensor:
        """The logits after tokens, [tokens, vocabulary], from what `hidden` gives."""
        config = self.config
        x = self.norm(x)
        logits = self.head.linear(x.realize() if x.shape[0] > 1 else x)  # a norm's sums would be computed anew
        if self.head_bias is not None:
            logits = logits + self.head_bias
        if config.logit_cap:
            logits = (logits * (1.0 / config.logit_cap)).tanh() * config.logit_cap
        return logits

    def step(self, tokens: Sequence[int], start: int, slot: int = 0) -> Tensor:
        """Take tokens of a slot's text at positions from `start` on; the logits of the last one, [vocabulary].

        Raises:
            ArgumentError: no tokens, numbers outside the vocabulary, or more positions than there is room for.
        """
        if not tokens:
            raise ArgumentError("step: there are no tokens")
        if start < 0 or start + len(tokens) > self.positions:
            raise ArgumentError(
                f"step: {len(tokens)} tokens from position {start} on do not fit into {self.positions} positions"
            )
        if not all(0 <= token < self.config.vocabulary for token in tokens):
            raise ArgumentError(f"step: tokens are numbers from 0 to {self.config.vocabulary - 1}")
        done, logits, first = 0, None, self.first(slot)
        while done < len(tokens):
            size = self.chunk(len(tokens) - done, start + done)
            part = list(tokens[done : done + size])
            at = Variable(f"start_{size}", 0, self.positions - size).bind(start + done)
            last = 0 if size == 1 else Variable(f"last_{size}", 0, size - 1).bind(len(part) - 1)
            logits = self._steps(Tensor(part + [0] * (size - len(part)), dtype="int32"), at, last, first)
            done += len(part)
        assert logits is not None
        return logits

    def first(self, slot: int, name: str = "first") -> Any:
        """Where a slot's memory begins, as a variable; None where there is one slot."""
        if not 0 <= slot < self.slots:
            raise ArgumentError(f"there is no slot {slot}: they have numbers from 0 to {self.slots - 1}")
        if self.slots == 1:
            return None
        return Variable(name, 0, (self.slots - 1) * self.positions).bind(slot * self.positions)

    def chunk(self, count: int, start: int) -> int:
        """The chunk that takes the next of `count` tokens; there has to be room for it.

        It is the smallest that takes all of them if they fill half of it, and else the largest that they fill.
        """
        fitting = [size for size in CHUNKS if start + size <= self.positions]
        enough = [size for size in fitting if size >= count]
        if enough and 2 * count >= enough[-1]:
            return enough[-1]
        return next(size for size in fitting if size <= count)
