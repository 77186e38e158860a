"""A model's weights by the names that GGUF files use, from either kind of file; quantised ones stay quantised."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Final, NamedTuple, Protocol

from gradlet.base.errors import FileFormatError
from gradlet.io import blocks, gguf
from gradlet.io.kept import Kept
from gradlet.llm.config import Config
from gradlet.nn.quantized import Layout, QuantizedWeight
from gradlet.tensor.function import jit
from gradlet.tensor.tensor import Tensor


class Raw(NamedTuple):
    """A tensor as a file has it: elements or bytes of blocks, its shape, and the type of the blocks or None.

    `heads` is the number of heads among whose rows those turned together are neighbours; 0 where nothing is to be done.
    """

    data: Tensor
    shape: tuple[int, ...]
    quantized: str | None
    heads: int = 0

    def tensor(self) -> Tensor:
        """The tensor; quantised ones in float32."""
        return self.in_order().tensor()

    def in_order(self) -> gguf.Raw:
        """With rows turned together half a head apart."""
        return gguf.Raw(_apart(self.data, self.shape[0], self.heads), self.shape, self.quantized)


def _apart(data: Tensor, rows: int, heads: int) -> Tensor:
    """Data of rows, of which every head's even ones come first."""
    if not heads:
        return data
    size = data.numel()
    return data.reshape(heads, rows // heads // 2, 2, size // rows).permute(0, 2, 1, 3).reshape(size)


class Matrix(Protocol):
    """A matrix [results, inputs] of a layer, in whatever form it is kept."""

    def linear(self, x: Tensor) -> Tensor:
        """`x @ matrix.T` in float32."""

    def rows(self, numbers: Tensor) -> Tensor:
        """Some rows in float32, as an embedding: [..., inputs]."""


class DenseMatrix:
    """A matrix whose elements are numbers; those narrower than float32 are widened where they are used."""

    def __init__(self, values: Tensor) -> None:
        self.values = values
        self.shape = tuple(values.shape)

    def linear(self, x: Tensor) -> Tensor:
        return x @ self.values.cast("float32").transpose(-1, -2)

    def rows(self, numbers: Tensor) -> Tensor:
        return self.values[numbers].cast("float32")


class BlockMatrix:
    """A matrix of quantised blocks as they stand in the file: uint8 [rows, bytes]."""

    def __init__(self, raw: Tensor, type: str, shape: tuple[int, ...]) -> None:
        self.raw, self.type, self.shape = raw.reshape(shape[0], raw.numel() // shape[0]), type, shape

    def linear(self, x: Tensor) -> Tensor:
        return x @ blocks.dequantize(self.raw, self.type).reshape(*self.shape).transpose(0, 1)

    def rows(self, numbers: Tensor) -> Tensor:
        return blocks.dequantize(self.raw[numbers], self.type).reshape(*numbers.shape, self.shape[1])


class ExpertMatrices:
    """Matrices [experts, results, inputs], of which every row of a batch meets its own few."""

    def __init__(self, raw: Tensor, type: str | None, shape: tuple[int, ...]) -> None:
        self.raw, self.type, self.shape = raw.reshape(shape[0], raw.numel() // shape[0]), type, shape

    def chosen(self, numbers: Tensor) -> Tensor:
        """The matrices of some experts in float32, [..., results, inputs]; only theirs are read."""
        part = self.raw[numbers]
        values = part.cast("float32") if self.type is None else blocks.dequantize(part, self.type)
        return values.reshape(*numbers.shape, *self.shape[1:])

    def linear(self, x: Tensor, numbers: Tensor) -> Tensor:
        """x [rows, chosen or 1, inputs] by the experts [rows, chosen]: [rows, chosen, results]."""
        return (self.chosen(numbers) * x.unsqueeze(-2)).sum(-1)


class Weights:
    """A model's weights by GGUF's names.

    Args:
        read: what a name stands for, or None: its data, shape and type of blocks.
        where: the file, for messages.
        packs: whether quantised matrices may be laid out anew for fast products.
    """

    def __init__(self, read: Callable[[str], Raw | None], where: str, packs: bool = True) -> None:
        self._read, self._where, self._packs = cache(read), where, packs
        self._layouts: dict[Any, Kept] = {}

    def find(self, *names: str) -> Raw:
        """The first of some names that the file has.

        Raises:
            FileFormatError: it has none.
        """
        for name in names:
            raw = self._read(name)
            if raw is not None:
                return raw
        raise FileFormatError(f"{self._where}: there is no tensor {' or '.join(map(repr, names))}")

    def has(self, name: str) -> bool:
        return self._read(name) is not None

    def matrix(self, name: str, shape: tuple[int, int], *more: str) -> Matrix:
        """A matrix, whose shape is checked."""
        return self._laid_out(self._shaped(name, shape, *more), shape)

    def _laid_out(self, raw: Raw, shape: tuple[int, int]) -> Matrix:
        """What a file has, in the form that products use."""
        if raw.quantized is None:
            return DenseMatrix(raw.tensor())
        if self._packs and raw.quantized in blocks.BLOCK_TYPES:
            return self._packed([raw], shape)
        return BlockMatrix(raw.in_order().data, raw.quantized, shape)

    def _packed(self, raws: Sequence[Raw], shape: tuple[int, int]) -> QuantizedWeight:
        """Quantised matrices, one below the other, as one laid out anew. One process traces each sort of them, once."""
        kind = raws[0].quantized
        assert kind is not None
        sort = kind, shape, tuple([(raw.shape, raw.heads) for raw in raws])
        if sort not in self._layouts:
            forms = [(raw.shape[0], raw.heads) for raw in raws]

            def lay_out(*parts: Tensor) -> tuple[Any, ...]:
                plain = [_apart(part, *form) for part, form in zip(parts, forms, strict=True)]
                whole = plain[0] if len(plain) == 1 else Tensor.cat(*plain)
                return tuple(QuantizedWeight.from_gguf_blocks(whole, kind, shape).layout())

            self._layouts[sort] = Kept(jit(lay_out), None, f"layout {sort!r}")
        layout = self._layouts[sort](*[raw.data for raw in raws])
        return QuantizedWeight.from_layout(kind, shape, Layout(*layout))

    def joined(self, parts: Mapping[str, int], inputs: int) -> Matrix | None:
        """Quantised matrices of one type, given by name and rows, as one below the other; None where they are not that.

        What reads the same values is then one matrix: there is less to look at in every step.
        """
        raws = [self._read(name) for name in parts]
        found = [raw for raw in raws if raw is not None and raw.quantized in blocks.BLOCK_TYPES]
        if not self._packs or len(found) < len(raws) or len({raw.quantized for raw in found}) != 1:
            return None
        for name, rows in parts.items():
            self._shaped(name, (rows, inputs))
        return self._packed(found, (sum(parts.values()), inputs))

    def experts(self, name: str, shape: tuple[int, int, int]) -> ExpertMatrices:
        """Matrices of experts, whose shape is checked."""
        raw = self._shaped(name, shape)
        return ExpertMatrices(raw.in_order().data, raw.quantized, shape)

    def vector(self, name: str, shape: tuple[int, ...], *more: str) -> Tensor:
        """A tensor in float32, whose shape is checked."""
        return self._shaped(name, shape, *more).tensor().cast("float32").contiguous().realize()

    def maybe_vector(self, name: str, shape: tuple[int, ...], *more: str) -> Tensor | None:
        """The same, or None where the file has no such tensor."""
        return self.vector(name, shape, *more) if any(map(self.has, (name, *more))) else None

    def _shaped(self, name: str, shape: tuple[int, ...], *more: str) -> Raw:
        raw = self.find(name, *more)
        if tuple(raw.shape) != tuple(shape):
            raise FileFormatError(
                f"{self._where}: tensor {name!r} has shape {tuple(raw.shape)}, the model needs {shape}"
            )
        return raw


def from_gguf(file: gguf.File, config: Config) -> Weights:
    """The weights of a GGUF file.

    Some families' queries and keys are written so that neighbouring features are turned together. Their rows are put
    where features half a head apart are: products of queries and keys stay the same, and lanes read neighbours.
    """
    if config.rope.pairs and config.rope.width != config.head_width:
        raise FileFormatError(f"{file.path}: {config.rope.width} of {config.head_width} features are turned, in pairs")

    def read(name: str) -> Raw | None:
        found = file.get(name)
        if found is None:
            return None
        raw = Raw(*found)
        if not config.rope.pairs or not re.fullmatch(r"blk\.\d+\.attn_[qk]\.(weight|bias)", name):
            return raw
        if raw.shape[0] % config.head_width or not raw.data.numel():
            raise FileFormatError(f"{file.path}: tensor {name!r} has {raw.shape[0]} rows, no multiple of a head's")
        return raw._replace(heads=raw.shape[0] // config.head_width)

    return Weights(read, file.path)


# Names of Hugging Face's files, as patterns, and what GGUF calls them.
_HF: Final = [
    (r"model\.embed_tokens\.", "token_embd."),
    (r"model\.(final_layer)?norm\.", "output_norm."),
    (r"lm_head\.", "output."),
    (r"model\.layers\.(\d+)\.", r"blk.\1."),
    (r"\.self_attn\.(q|k|v)_proj\.", r".attn_\1."),
    (r"\.self_attn\.qkv_proj\.", ".attn_qkv."),
    (r"\.self_attn\.(o_proj|dense)\.", ".attn_output."),
    (r"\.self_attn\.(q|k)_norm\.", r".attn_\1_norm."),
    (r"\.self_attn\.sinks$", ".attn_sinks.weight"),
    (r"\.input_layernorm\.", ".attn_norm."),
    (r"\.pre_feedforward_layernorm\.", ".ffn_norm."),
    (r"\.post_feedforward_layernorm\.", ".post_ffw_norm."),
    (r"\.post_attention_layernorm\.", ".post_attention_norm."),
    (r"\.(block_sparse_moe|mlp)\.(gate|router)\.", ".ffn_gate_inp."),
    (r"\.mlp\.shared_expert_gate\.", ".ffn_gate_inp_shexp."),
    (r"\.mlp\.shared_expert\.(gate|up|down)_proj\.", r".ffn_\1_shexp."),
    (r"\.mlp\.gate_up_proj\.", ".ffn_up."),
    (r"\.mlp\.(gate|up|down)_proj\.", r".ffn_\1."),
    (r"\.mlp\.fc1\.", ".ffn_up."),
    (r"\.mlp\.fc2\.", ".ffn_down."),
    (r"\.block_sparse_moe\.experts\.(\d+)\.w1\.weight$", r".ffn_gate_exps.\1"),
    (r"\.block_sparse_moe\.experts\.(\d+)\.w3\.weight$", r".ffn_up_exps.\1"),
    (r"\.block_sparse_moe\.experts\.(\d+)\.w2\.weight$", r".ffn_down_exps.\1"),
    (r"\.mlp\.experts\.(\d+)\.(gate|up|down)_proj\.weight$", r".ffn_\2_exps.\1"),
]


def gguf_name(name: str) -> str:
    """What GGUF calls a tensor of a Hugging Face file; an expert's number stands at the end."""
    for pattern, new in _HF:
        name = re.sub(pattern, new, name)
    return name


def from_hf(tensors: Mapping[str, Tensor], config: Config, where: str = "weights") -> Weights:
    """The weights of files as Hugging Face's libraries write them, by their names there."""
    named: dict[str, Tensor] = {}
    experts: dict[str, dict[int, Tensor]] = {}
    for name, tensor in tensors.items():
        new = gguf_name(name)
        found = re.fullmatch(r"(blk\.\d+\.ffn_\w+_exps)\.(\d+)", new)
        if found:
            experts.setdefault(f"{found[1]}.weight", {})[int(found[2])] = tensor
        elif ".mlp.experts." in new:
            named.update(_together(new, tensor))
        elif config.family.startswith("gemma") and new.endswith("norm.weight"):
            named[new] = tensor.cast("float32") + 1.0  # these files keep what is added to one
        else:
            named[new] = tensor
    for name, parts in experts.items():
        if sorted(parts) != list(range(len(parts))):
            raise FileFormatError(f"{where}: {name!r} lacks experts; numbers {sorted(parts)} are there")
        named[name] = Tensor.stack(*[parts[number] for number in range(len(parts))]).realize()

    def read(name: str) -> Raw | None:
        tensor = named.get(name)
        if tensor is None:
            return None
        shape: tuple[Any, ...] = tuple(tensor.shape)
        return Raw(tensor.contiguous().reshape(tensor.numel()), shape, None)

    return Weights(read, where)


def _together(name: str, tensor: Tensor) -> dict[str, Tensor]:
    """Experts of GPT-OSS: gates and values take turns, matrices are [experts, inputs, results]."""
    block, _, part = name.partition(".mlp.experts.")
    if part == "gate_up_proj":
        turned = tensor.transpose(1, 2)
        return {f"{block}.ffn_gate_exps.weight": turned[:, ::2], f"{block}.ffn_up_exps.weight": turned[:, 1::2]}
    if part == "gate_up_proj_bias":
        return {f"{block}.ffn_gate_exps.bias": tensor[:, ::2], f"{block}.ffn_up_exps.bias": tensor[:, 1::2]}
    if part == "down_proj":
        return {f"{block}.ffn_down_exps.weight": tensor.transpose(1, 2)}
    return {f"{block}.ffn_down_exps.bias": tensor} if part == "down_proj_bias" else {name: tensor}
