"""One random model: drawn, stored by transformers, run by both, compared tensor by tensor."""

import copy
import json

import draws
import reference
import torch
from compare import compare
from report import pare
from safetensors.torch import load_file, save_file

STORAGE = [torch.float32, torch.bfloat16, torch.float64, torch.float16]


def randomise(model, dtype, generator):
    """Every parameter drawn anew, so that no gain is one and no bias zero, and rounded to the stored type."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            values = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            if parameter.dim() == 1:
                values = 0.2 * values if name.endswith("bias") else 1 + 0.3 * values
            else:
                values *= 1.3 / parameter.shape[1:].numel() ** 0.5
            parameter.copy_(values.to(dtype))
        for name, buffer in model.named_buffers():  # of xIELU, stored like what is trained
            if name.endswith(("act_fn.beta", "act_fn.eps")):
                buffer.mul_(1.5 if name.endswith("beta") else 1e5)


def store(config, model_class, options, rng, index, folder, older_keys):
    with reference.Float64():
        model = model_class(copy.deepcopy(config), **options)
    dtype = STORAGE[index % len(STORAGE)]
    randomise(model, dtype, torch.Generator().manual_seed(rng.getrandbits(32)))
    model.to(dtype).save_pretrained(folder, max_shard_size=rng.choice(["20KB", "1GB"]))
    if rng.random() < 0.5:
        spell_rope_as_before(folder / "config.json", older_keys)
    if getattr(config.get_text_config(), "layer_types", None) and rng.random() < 0.5:
        leave_out_layer_types(folder / "config.json", type(config))


def leave_out_layer_types(path, config_class):
    """Older files have no such list; other keys say the same where transformers makes the same list of them."""
    config = json.loads(path.read_text())
    types = config.get("text_config", config).pop("layer_types")
    if config_class.from_dict(copy.deepcopy(config)).get_text_config().layer_types == types:
        path.write_text(json.dumps(config))


def spell_rope_as_before(path, older_keys):
    """rope_parameters as rope_theta, partial_rotary_factor and rope_scaling, the way most published files have them."""
    whole = json.loads(path.read_text())
    config = whole.get("text_config", whole)
    parameters = config.pop("rope_parameters", None)
    if parameters and "sliding_attention" in parameters:
        sliding = parameters["sliding_attention"]
        if sliding["rope_type"] != "default":  # which older files cannot say
            return
        if older_keys["sliding_theta"]:
            config[older_keys["sliding_theta"]] = sliding["rope_theta"]
        parameters = parameters["full_attention"]
    if parameters:
        for key in ("rope_theta", "partial_rotary_factor"):
            if key in parameters:
                config[older_keys.get(key, key)] = parameters.pop(key)
        if parameters["rope_type"] != "default":
            config["rope_scaling"] = parameters | {"type": parameters["rope_type"]}
        path.write_text(json.dumps(whole))


def leaves_padding_out(model):
    """RoBERTa's positions: counted by the model itself over all tokens but its padding, from the row after that."""
    if model.config.model_type == "esm":
        return model.config.position_embedding_type == "absolute"
    return hasattr(getattr(model.base_model, "embeddings", None), "create_position_ids_from_input_ids")


def context_of(config):
    """How far a model can count, or was trained to, under the name that its family has for it."""
    return next(getattr(config, key) for key in ("max_position_embeddings", "max_seq_len", "seq_length") if hasattr(config, key))


def reads_last_token(model):
    """A decoder's classifier of sequences, which finds that token by what is no padding."""
    name = type(model).__name__
    return name.endswith("ForSequenceClassification") and (hasattr(model, "score") or name.startswith("ModernBertDecoder"))


def place_of_sequence(model):
    """Where transformers finds the token that stands for a sequence, whatever is padding; None: it looks for it."""
    if reads_last_token(model) or model.config.model_type == "clip_text_model":
        return None
    return -1 if model.config.model_type == "siglip_text_model" else 0


def end_with_last_token(config, ids, mask):
    """Every text of CLIP ends in the token that stands for it, or, where that is 2, in the highest id."""
    ids[mask == 0] = 0
    last = config.vocab_size - 1 if config.eos_token_id == 2 else config.eos_token_id
    for row, places in enumerate(mask):
        ids[row, places.nonzero().max()] = last


def draw_tokens(model, rng, generator):
    """A padded batch: every row on its own side, with anything at all in the masked places."""
    config, padded = model.config.get_text_config(), leaves_padding_out(model)
    context = context_of(config) - (config.pad_token_id + 1 if padded else 0)
    # Learned positions end; rotary ones go on, and some kinds change where the context ends.
    most = context * 3 // 2 if getattr(config, "rope_parameters", None) else context
    lengths = [rng.randint(1, most) for _ in range(4)] + [most]
    ids = torch.randint(config.vocab_size, (len(lengths), most), generator=generator)
    mask = torch.zeros_like(ids)
    for row, length in enumerate(lengths):
        left = rng.random() < 0.5
        mask[row, most - length :] = 1 if left else 0
        mask[row, :length] = mask[row, :length] if left else 1
    if reads_last_token(model):
        ids[ids == config.pad_token_id] = (config.pad_token_id + 1) % config.vocab_size
    # With token dropout transformers counts masked tokens in the padding too, of which no tokenizer puts any there.
    if padded or reads_last_token(model) or getattr(config, "token_dropout", False):
        ids[mask == 0] = config.pad_token_id
    if config.model_type == "clip_text_model":
        end_with_last_token(config, ids, mask)
    inputs = {"input_ids": ids, "attention_mask": mask}
    if getattr(config, "type_vocab_size", 0):
        inputs["token_type_ids"] = torch.randint(config.type_vocab_size, ids.shape, generator=generator)
    return inputs


def without_padding(results, mask, place):
    """For every sequence, under pare's name: the places where there are tokens.

    Where the first token stands for a sequence, transformers reads place 0: of no use where that is padding.
    """
    separate = {}
    for name, batch in results.items():
        for row, tensor in enumerate(batch):
            places = mask[row].bool() if mask is not None else None
            if mask is not None and name.endswith("probabilities"):
                tensor = tensor[:, places][:, :, places]
            elif mask is not None and batch.dim() == 3:
                tensor = tensor[places]
            elif mask is not None and place is not None and not places[place]:
                continue
            separate[f"{name}.{row}"] = tensor
    return separate


def run_pare(model, kind, inputs, taps, work):
    """What pare computes, or the words in which it refuses."""
    out = work.with_suffix(".out.safetensors")
    result = pare("run", model, "-o", out, kind, inputs, "--dtype", "float64", "--force", "--taps", ",".join(taps))
    if result.returncode != 0:
        return f"pare ended with {result.returncode}: {result.stderr.strip()}"
    return load_file(out)


def check_batch(case, model, folder, inputs, work):
    """One padded batch, or images: every hidden state, and the attention probabilities where the peer has them."""
    path = work.with_suffix(".in.safetensors")
    save_file(inputs, path)
    explicit = model.config._attn_implementation == "eager"
    mask = inputs.get("attention_mask")
    theirs_inputs = dict(inputs)
    if mask is not None and not leaves_padding_out(model):
        # What transformers' own generation passes; pare counts the real tokens by itself.
        theirs_inputs["position_ids"] = (mask.cumsum(1) - 1).clamp(min=0)
    theirs = reference.run(model, theirs_inputs, with_attentions=explicit)
    taps = [name for name in theirs if name.split(".")[0] in ("residual", "final", "blocks")]
    wanted = without_padding(theirs, mask, place_of_sequence(model))
    return compare(wanted, run_pare(folder, "--inputs", path, taps, work), case)


def check_lists(case, model, folder, inputs):
    """The same sequences one by one and without padding, shortest first: dynamic frequencies only ever grow."""
    rows = [ids[mask.bool()] for ids, mask in zip(inputs["input_ids"], inputs["attention_mask"])]
    rows.sort(key=len)
    path = folder.with_suffix(".json")
    path.write_text(json.dumps([row.tolist() for row in rows]))
    theirs = {}
    for number, row in enumerate(rows):
        one = reference.run(model, {"input_ids": row[None]})
        theirs |= {f"{name}.{number}": tensor[0] for name, tensor in one.items()}
    kept = {name: tensor for name, tensor in theirs.items() if not name.startswith("residual.")}
    return compare(kept, run_pare(folder, "--tokens", path, ["final"], folder), case)


def without_class(folder):
    """As some files are: config.json names no class, and the tensors have to tell."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    del config["architectures"]
    path.write_text(json.dumps(config))


def draw(family, rng, index, head):
    """A configuration, its class and its options; with `head`, of that class in place of the one drawn."""
    config, model_class, *rest = family.draw(rng, index)
    if head:
        return draws.with_head(rng, config, head), head, {}
    return config, model_class, rest[0] if rest else {}


def check(report, case, family, rng, index, folder, head=None):
    config, model_class, options = draw(family, rng, index, head)
    implementation = config._attn_implementation or ("sdpa" if index % 4 == 3 else "eager")
    store(config, model_class, options, rng, index, folder, getattr(family, "OLDER_ROPE_KEYS", {}))
    generator = torch.Generator().manual_seed(rng.getrandbits(32))
    model = reference.load(model_class, folder, implementation, **options)
    about = f"{case} ({model_class.__name__}, {str(STORAGE[index % len(STORAGE)])[6:]}, {implementation})"
    if hasattr(config, "image_size"):
        shape = (3, config.num_channels, config.image_size, config.image_size)
        inputs = {"pixel_values": torch.randn(shape, generator=generator, dtype=torch.float64)}
    else:
        inputs = draw_tokens(model, rng, generator)
    problem = check_batch(about, model, folder, inputs, folder)
    report.check(about, problem and f"{problem}\n  {(folder / 'config.json').read_text()}")
    if "input_ids" in inputs:
        model = reference.load(model_class, folder, implementation, **options)
        report.check(f"{about}, one by one", check_lists(about, model, folder, inputs))
    if head or model is model.base_model or model_class.__name__.endswith("WithProjection"):
        without_class(folder)
        report.check(f"{about}, no class named", check_batch(about, model, folder, inputs, folder))
    if index == 0:
        report.check(f"{case}, disturbed reference", check_disturbed(about, model, folder, inputs))


def check_disturbed(about, model, folder, inputs):
    """A comparison that cannot fail is worth nothing: one element of one weight off by a millionth must show."""
    with torch.no_grad():
        first_layer = [p for name, p in model.base_model.named_parameters() if ".0." in name and p.dim() == 2]
        # The last matrix writes into the stream. Not so a query's, which has nothing to choose in a window of one.
        first_layer[-1][0, 0] += 1e-6
    return "" if check_batch(about, model, folder, inputs, folder) else "the comparison did not notice"
