"""Models of transformers written as GGUF, by the conventions of llama.cpp's converter; names are those of PyPI's gguf.

Also quantisers, in NumPy, for the types that gguf only reads.
"""

import gguf
import numpy
import torch

TYPES = gguf.GGMLQuantizationType
PLAIN = {TYPES.F32: torch.float32, TYPES.F16: torch.float16, TYPES.BF16: torch.bfloat16}


def value_of(config, *names):
    for name in names:
        if getattr(config, name, None) is not None:
            return getattr(config, name)
    return None


# ---- what the converter does to tensors


def interleaved_halves(weight, heads):
    return weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


def stacked_by_kind(weight, heads, kv_heads):
    """Queries, key and value of each key head in turn, to all queries, all keys, all values."""
    width = weight.shape[0] // (heads + 2 * kv_heads)
    groups = weight.reshape(kv_heads, heads // kv_heads + 2, width, *weight.shape[1:])
    parts = [groups[:, :-2], groups[:, -2:-1], groups[:, -1:]]
    return torch.cat([part.reshape(-1, *weight.shape[1:]) for part in parts])


def changed(model_type, name, weight, config):
    heads = value_of(config, "num_attention_heads", "n_head")
    kv_heads = value_of(config, "num_key_value_heads", "num_kv_heads") or heads
    if model_type in ("llama", "mistral") and ".q_proj." in name:
        return interleaved_halves(weight, heads)
    if model_type in ("llama", "mistral") and ".k_proj." in name:
        return interleaved_halves(weight, kv_heads)
    if model_type in ("gemma", "gemma2") and name.endswith("norm.weight"):
        return weight + 1
    if model_type == "gpt2" and name.endswith((".c_attn.weight", ".c_proj.weight", ".c_fc.weight")):
        return weight.T
    if model_type == "gpt_neox" and "query_key_value" in name:
        return stacked_by_kind(weight, heads, heads)
    if model_type == "falcon" and "query_key_value" in name:
        kv_heads = config.num_kv_heads if config.new_decoder_architecture else 1 if config.multi_query else heads
        return stacked_by_kind(weight, heads, kv_heads)
    return weight


ARCHITECTURES = {
    "llama": "LLAMA",
    "mistral": "LLAMA",
    "qwen2": "QWEN2",
    "qwen3": "QWEN3",
    "gemma": "GEMMA",
    "gemma2": "GEMMA2",
    "gpt2": "GPT2",
    "gpt_neox": "GPTNEOX",
    "falcon": "FALCON",
    "phi": "PHI2",
    "starcoder2": "STARCODER2",
    "bert": "BERT",
}


def gguf_tensors(model):
    """By the names of GGUF: what the converter makes of a model's tensors, in float32 and float64 as they were."""
    config, model_type = model.config, model.config.model_type
    layers = value_of(config, "num_hidden_layers", "n_layer")
    names = gguf.get_tensor_name_map(getattr(gguf.MODEL_ARCH, ARCHITECTURES[model_type]), layers)
    tensors = {}
    for name, weight in model.state_dict().items():
        if name.endswith((".attn.bias", ".masked_bias", "rotary_emb.inv_freq", "position_ids")) or "pooler" in name:
            continue
        if name == "lm_head.weight" and getattr(config, "tie_word_embeddings", False):
            continue
        spelled = name.replace("lm_head", "embed_out") if model_type == "gpt_neox" else name
        known = names.get_name(spelled, try_suffixes=(".weight", ".bias"))
        assert known, f"gguf has no name for {name} of {model_type}"
        tensors[known] = changed(model_type, name, weight, config).contiguous()
    return tensors


def rope_factors(parameters, width):
    """What the converter writes for Llama 3's way of scaling."""
    factor, low, high, original = (parameters[key] for key in ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"))
    factors = []
    for frequency in 1.0 / (parameters["rope_theta"] ** (torch.arange(0, width, 2, dtype=torch.float32) / width)):
        wavelength = 2 * numpy.pi / frequency
        smooth = (original / wavelength - low) / (high - low)
        factors.append(1 if wavelength < original / high else factor if wavelength > original / low else 1 / ((1 - smooth) / factor + smooth))
    return torch.tensor(factors, dtype=torch.float32)


def add_keys(writer, config):
    """What the converter says of a model."""
    width = value_of(config, "hidden_size", "n_embd")
    heads = value_of(config, "num_attention_heads", "n_head")
    head_width = getattr(config, "head_dim", None) or width // heads
    model_type = config.model_type
    writer.add_block_count(value_of(config, "num_hidden_layers", "n_layer"))
    writer.add_context_length(value_of(config, "max_position_embeddings", "n_positions"))
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(value_of(config, "intermediate_size", "ffn_hidden_size", "n_inner") or 4 * width)
    writer.add_head_count(heads)
    writer.add_file_type(0)
    if model_type == "falcon":
        writer.add_tensor_data_layout("jploski")
        writer.add_head_count_kv(config.num_kv_heads if config.new_decoder_architecture else 1 if config.multi_query else heads)
    elif model_type not in ("gpt2", "gpt_neox", "bert"):
        writer.add_head_count_kv(config.num_key_value_heads)
    if model_type in ("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2"):
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    else:
        writer.add_layer_norm_eps(value_of(config, "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon"))
    if model_type in ("qwen3", "gemma", "gemma2") or head_width * heads != width:
        writer.add_key_length(head_width)
        writer.add_value_length(head_width)
    rope = getattr(config, "rope_parameters", None) or {}
    if rope and model_type not in ("gpt2", "bert"):
        if model_type not in ("gpt_neox", "falcon", "phi"):
            writer.add_rope_freq_base(rope["rope_theta"])
        part = rope.get("partial_rotary_factor", 1.0)
        if model_type in ("llama", "mistral", "gpt_neox", "phi"):
            writer.add_rope_dimension_count(int(part * head_width))
        if rope["rope_type"] in ("linear", "yarn"):
            writer.add_rope_scaling_type(gguf.RopeScalingType(rope["rope_type"]))
            writer.add_rope_scaling_factor(rope["factor"])
        if rope["rope_type"] == "yarn":
            writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if model_type == "gpt_neox":
        writer.add_parallel_residual(config.use_parallel_residual)
    if model_type in ("llama", "mistral"):
        writer.add_vocab_size(config.vocab_size)
    if model_type == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
        writer.add_sliding_window(config.sliding_window)
    if model_type == "bert":
        writer.add_causal_attention(False)
        writer.add_pooling_type(gguf.PoolingType.MEAN)
        writer.add_token_type_count(config.type_vocab_size)


def stored(name, weight, wanted):
    """Bytes, and the type: norms, biases and positions stay in float32, as the converter has it."""
    if weight.dim() < 2 or wanted == TYPES.F32 or name.startswith(("position_embd", "token_types")):
        wanted = TYPES.F64 if weight.dtype == torch.float64 and wanted == TYPES.F64 else TYPES.F32
    if wanted == TYPES.F64:
        return weight.double().numpy(), wanted
    values = weight.float().numpy()
    if wanted in (TYPES.F32, TYPES.F16):
        return values.astype(numpy.float32 if wanted == TYPES.F32 else numpy.float16), wanted
    if values.shape[-1] % gguf.GGML_QUANT_SIZES[wanted][0]:  # as llama.cpp's own quantiser falls back
        return values.astype(numpy.float16), TYPES.F16
    return quantised(values, wanted), wanted


def write(path, model, wanted=TYPES.F32, tokenizer=None, tensors=None, extra=None, **options):
    """The model as a file; hands back what its tensors are once they are read again."""
    config = model.config
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[getattr(gguf.MODEL_ARCH, ARCHITECTURES[config.model_type])], **options)
    writer.add_type("model")
    writer.add_name("drawn")
    add_keys(writer, config)
    if extra:
        extra(writer)
    if tokenizer:
        tokenizer(writer)
    tensors = gguf_tensors(model) if tensors is None else dict(tensors)
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") == "llama3":
        tensors["rope_freqs.weight"] = rope_factors(rope, config.head_dim)
    for name, weight in tensors.items():
        data, kind = stored(name, weight, wanted)
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def read_again(path):
    """Every tensor of a file as gguf reads it, in float64."""
    tensors = {}
    for tensor in gguf.GGUFReader(path).tensors:
        shape = [int(size) for size in reversed(tensor.shape)]
        if tensor.tensor_type == TYPES.F64:
            values = numpy.array(tensor.data)
        else:
            values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        tensors[tensor.name] = torch.from_numpy(numpy.array(values, numpy.float64).reshape(shape))
    return tensors


# ---- quantisers of our own; how good they are does not matter, what they write does


def halves_together(levels):
    """Levels of a block of 32 as bytes: the first half low, the second half high."""
    return (levels[..., :16] | levels[..., 16:] << 4).astype(numpy.uint8)


def as_half(values):
    return values.astype(numpy.float16).view(numpy.uint8).reshape(*values.shape, 2)


def safe(scale):
    return numpy.where(scale == 0, 1, scale)


def six_bits(scales, minima):
    """Eight of either, in twelve bytes."""
    low = scales[:, :4] | (scales[:, 4:] >> 4) << 6
    middle = minima[:, :4] | (minima[:, 4:] >> 4) << 6
    return numpy.concatenate([low, middle, (scales[:, 4:] & 15) | (minima[:, 4:] & 15) << 4], 1).astype(numpy.uint8)


def with_minima(blocks, groups, top, scale_top):
    """Scales and minima of groups, both as whole numbers times one number of the block, and the levels."""
    parts = blocks.reshape(len(blocks), groups, -1)
    minimum = numpy.maximum(-parts.min(-1), 0)
    scale = numpy.maximum(parts.max(-1) + minimum, 0) / top
    whole, least = scale.max(-1) / scale_top, minimum.max(-1) / scale_top
    whole, least = whole.astype(numpy.float16), least.astype(numpy.float16)
    scales = numpy.clip(numpy.rint(scale / safe(whole.astype(numpy.float32))[:, None]), 0, scale_top).astype(numpy.uint8)
    minima = numpy.clip(numpy.rint(minimum / safe(least.astype(numpy.float32))[:, None]), 0, scale_top).astype(numpy.uint8)
    real = (whole[:, None] * scales).astype(numpy.float32)[..., None], (least[:, None] * minima).astype(numpy.float32)[..., None]
    levels = numpy.clip(numpy.rint((parts + real[1]) / safe(real[0])), 0, top).astype(numpy.uint8)
    return as_half(whole), as_half(least), scales, minima, levels.reshape(len(blocks), -1)


def around_zero(blocks, groups, bottom, scale_bottom):
    """Signed scales of groups, of 6 or 8 bits, times one number of the block; levels from -bottom to bottom - 1."""
    parts = blocks.reshape(len(blocks), groups, -1)
    scale = numpy.abs(parts).max(-1) / bottom
    whole = (scale.max(-1) / (scale_bottom - 1)).astype(numpy.float16)
    scales = numpy.clip(numpy.rint(scale / safe(whole.astype(numpy.float32))[:, None]), -scale_bottom, scale_bottom - 1).astype(numpy.int8)
    real = (whole.astype(numpy.float32)[:, None] * scales)[..., None]
    levels = numpy.clip(numpy.rint(parts / safe(real)), -bottom, bottom - 1).astype(numpy.int8)
    return as_half(whole), scales, levels.reshape(len(blocks), -1)


def pairs_of_bits(levels):
    """Four levels of two bits in a byte: elements 32 apart, in each half of 256."""
    parts = levels.reshape(len(levels), 2, 4, 32).astype(numpy.uint8)
    return (parts[:, :, 0] | parts[:, :, 1] << 2 | parts[:, :, 2] << 4 | parts[:, :, 3] << 6).reshape(len(levels), 64)


def fourths(levels):
    """Two levels of four bits in a byte: elements 32 apart, in each quarter of 256."""
    parts = levels.reshape(len(levels), 4, 2, 32)
    return (parts[:, :, 0] | parts[:, :, 1] << 4).reshape(len(levels), 128).astype(numpy.uint8)


def top_bits(levels):
    """One bit of each of 256: byte n has those of elements n, n + 32, ..."""
    parts = levels.reshape(len(levels), 8, 32).astype(numpy.uint8)
    return sum(parts[:, n] << n for n in range(8)).astype(numpy.uint8)


def q2_k(blocks):
    whole, least, scales, minima, levels = with_minima(blocks, 16, 3, 15)
    return [scales | minima << 4, pairs_of_bits(levels), whole, least]


def q3_k(blocks):
    whole, scales, levels = around_zero(blocks, 16, 4, 32)
    raised = (scales + 32).astype(numpy.uint8)
    low = (raised & 15)[:, :8] | (raised & 15)[:, 8:] << 4
    high = sum((raised >> 4)[:, 4 * n : 4 * n + 4] << 2 * n for n in range(4)).astype(numpy.uint8)
    moved = (levels + 4).astype(numpy.uint8)
    return [top_bits(moved >> 2), pairs_of_bits(moved & 3), low, high, whole]


def q4_k(blocks):
    whole, least, scales, minima, levels = with_minima(blocks, 8, 15, 63)
    return [whole, least, six_bits(scales, minima), fourths(levels)]


def q5_k(blocks):
    whole, least, scales, minima, levels = with_minima(blocks, 8, 31, 63)
    return [whole, least, six_bits(scales, minima), top_bits(levels >> 4), fourths(levels & 15)]


def q6_k(blocks):
    whole, scales, levels = around_zero(blocks, 16, 32, 128)
    moved = (levels + 32).astype(numpy.uint8)
    low = (moved & 15).reshape(len(blocks), 2, 2, 64)
    return [(low[:, :, 0] | low[:, :, 1] << 4).reshape(len(blocks), 128), pairs_of_bits(moved >> 4), scales.view(numpy.uint8), whole]


def nearest_of(table, ratios):
    return numpy.abs(ratios[..., None] - numpy.array(table, numpy.float32)).argmin(-1).astype(numpy.uint8)


def iq4_nl(blocks):
    scale = (numpy.abs(blocks).max(-1) / 127).astype(numpy.float16)
    return [as_half(scale), halves_together(nearest_of(gguf.quants.IQ4_NL.kvalues, blocks / safe(scale.astype(numpy.float32))[:, None]))]


def iq4_xs(blocks):
    parts = blocks.reshape(len(blocks), 8, 32)
    scale = numpy.abs(parts).max(-1) / 127
    whole = (scale.max(-1) / 31).astype(numpy.float16)
    scales = numpy.clip(numpy.rint(scale / safe(whole.astype(numpy.float32))[:, None]), -32, 31).astype(numpy.int8)
    real = (whole.astype(numpy.float32)[:, None] * scales)[..., None]
    levels = nearest_of(gguf.quants.IQ4_NL.kvalues, parts / safe(real))
    raised = (scales + 32).astype(numpy.uint8)
    high = sum((raised >> 4)[:, n].astype(numpy.uint16) << 2 * n for n in range(8))
    low = (raised & 15)[:, ::2] | (raised & 15)[:, 1::2] << 4
    return [as_half(whole), high.astype(numpy.uint16).view(numpy.uint8).reshape(-1, 2), low, halves_together(levels).reshape(len(blocks), 128)]


OWN = {TYPES.Q2_K: q2_k, TYPES.Q3_K: q3_k, TYPES.Q4_K: q4_k, TYPES.Q5_K: q5_k, TYPES.Q6_K: q6_k, TYPES.IQ4_NL: iq4_nl, TYPES.IQ4_XS: iq4_xs}


def quantised(values, wanted):
    if wanted not in OWN:
        return gguf.quants.quantize(values, wanted)
    elements, size = gguf.GGML_QUANT_SIZES[wanted]
    data = numpy.concatenate(OWN[wanted](values.reshape(-1, elements)), -1)
    assert data.shape[-1] == size, (wanted, data.shape)
    return data.reshape(*values.shape[:-1], values.shape[-1] // elements * size)
