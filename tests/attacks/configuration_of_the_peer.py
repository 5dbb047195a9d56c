#!/usr/bin/env python3
"""Keys of config.json that make transformers compute something else: refused, and never read on.

Each attack is a copy of a model with other keys and the same weights. First transformers shows that the copy is another
function, then `pare verify` refuses it by the name of the key. The same model against itself, and the same keys with
values that say nothing new, stay fine.
"""

import json
import os
import pathlib
import shutil
import sys
import tempfile

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent.parent / name) for name in ("", "conformance")]
os.environ["HF_HUB_OFFLINE"] = "1"
from report import Report, ended, pare  # noqa: E402  (the folders above are not a package)

BERT = dict(hidden_size=16, num_attention_heads=2, num_hidden_layers=2, intermediate_size=20, vocab_size=40,
            max_position_embeddings=24)
FALCON = dict(hidden_size=16, num_attention_heads=2, num_hidden_layers=2, vocab_size=40, max_position_embeddings=24,
              bos_token_id=0, eos_token_id=0)
CAUSAL = ["is_causal is true; only false is supported"]
BOTH_WAYS = ["is_causal is", "only true is supported"]
TWICE = ["adds Falcon's ALiBi twice"]
UNHIDDEN = ["output_attentions is true", "hides no later token, or adds ALiBi twice"]
ELSEWHERE = ["transformers_weights", "reads its weights from that file"]

ATTACKS = [  # the model, the keys, words of the refusal
    ("bert", {"is_causal": True}, CAUSAL),
    ("roberta", {"is_causal": True}, CAUSAL),
    ("albert", {"is_causal": True}, CAUSAL),
    ("vit", {"is_causal": True}, CAUSAL),
    ("llama", {"is_causal": False}, BOTH_WAYS),
    ("llama", {"is_causal": None}, BOTH_WAYS),
    ("gpt2", {"is_causal": None}, BOTH_WAYS),
    ("falcon", {"is_causal": None}, BOTH_WAYS),
    ("falcon", {"output_attentions": True}, UNHIDDEN),
    ("falcon-alibi", {"output_attentions": True}, UNHIDDEN),
    ("falcon-alibi", {"attn_implementation": "eager"}, TWICE),
    ("falcon-alibi", {"_attn_implementation": "eager"}, TWICE),
    ("llama", {"transformers_weights": "other.safetensors"}, ELSEWHERE),
    ("bert", {"transformers_weights": "other.safetensors"}, ELSEWHERE),
    ("llama", {"configuration_files": ["config.4.0.0.json"]}, ["configuration_files", "another file in place of this"]),
    ("llama", {"attribute_map": {"hidden_act": "other_act"}, "other_act": "relu"}, ["'attribute_map', 'other_act'"]),
]
HARMLESS = [  # the same keys, saying what holds already
    ("bert", {"is_causal": False}),
    ("bert", {"is_causal": None}),
    ("vit", {"is_causal": False}),
    ("llama", {"is_causal": True}),
    ("llama", {"output_attentions": True}),
    ("llama", {"attn_implementation": "eager"}),
    ("llama", {"transformers_weights": None}),
    ("falcon", {"output_attentions": False, "attn_implementation": "eager"}),
    ("falcon-alibi", {"attn_implementation": "sdpa"}),
]


def models():
    import transformers as hf

    return {
        "bert": (hf.BertForMaskedLM, hf.BertConfig(**BERT)),
        "roberta": (hf.RobertaForMaskedLM, hf.RobertaConfig(**BERT)),
        "albert": (hf.AlbertForMaskedLM, hf.AlbertConfig(**BERT, embedding_size=6)),
        "vit": (hf.ViTForImageClassification,
                hf.ViTConfig(hidden_size=16, num_attention_heads=2, num_hidden_layers=2, intermediate_size=20,
                             image_size=12, patch_size=3)),
        "llama": (hf.LlamaForCausalLM, hf.LlamaConfig(**BERT)),
        "gpt2": (hf.GPT2LMHeadModel, hf.GPT2Config(n_embd=16, n_head=2, n_layer=2, vocab_size=40, n_positions=24,
                                                   bos_token_id=0, eos_token_id=0)),
        "falcon": (hf.FalconForCausalLM, hf.FalconConfig(**FALCON)),
        "falcon-alibi": (hf.FalconForCausalLM, hf.FalconConfig(**FALCON, alibi=True, multi_query=False)),
    }


def store(folder, model_class, config):
    """A random model, and beside it what an attack may point to: other weights, and another configuration."""
    import torch
    from random_models import randomise
    from safetensors.torch import load_file, save_file

    model = model_class(config)
    randomise(model, torch.float32, torch.Generator().manual_seed(0))
    model.save_pretrained(folder)
    weights = load_file(folder / "model.safetensors")
    save_file({name: 2 * tensor for name, tensor in weights.items()}, folder / "other.safetensors", {"format": "pt"})
    other = json.loads((folder / "config.json").read_text()) | {"hidden_act": "relu"}
    (folder / "config.4.0.0.json").write_text(json.dumps(other))


def changed(folder, keys):
    copy = folder.with_name("changed")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(folder, copy)
    path = copy / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | keys))
    return copy


def logits(model_class, folder):
    """What transformers computes as anybody would run it: for images, or for a batch of texts with and without padding."""
    import reference
    import torch

    with reference.Float64(), torch.no_grad():
        model = model_class.from_pretrained(folder, dtype=torch.float64, local_files_only=True).eval()
        generator = torch.Generator().manual_seed(1)
        if hasattr(model.config, "image_size"):
            return model(torch.randn(2, 3, 12, 12, generator=generator, dtype=torch.float64)).logits
        ids = torch.randint(2, 40, (2, 12), generator=generator)
        mask = torch.ones_like(ids)
        mask[1, 8:] = 0
        padded = model(ids, attention_mask=mask).logits
        return torch.cat([model(ids).logits.flatten(0, 1), padded[mask.bool()]])


NAMES = {"id2label": {"0": "NEGATIVE", "1": "POSITIVE"}, "label2id": {"NEGATIVE": 0, "POSITIVE": 1}}
SWAPPED = {"id2label": {"0": "POSITIVE", "1": "NEGATIVE"}, "label2id": {"POSITIVE": 0, "NEGATIVE": 1}}


def verdict(result):
    try:
        return json.loads(result.stdout)["verdict"]
    except (ValueError, KeyError):
        return result.stdout + result.stderr


def check_answers(report, work):
    """What transformers makes of the same logits: which token speaks for a text, and what its class is called."""
    import torch
    import transformers as hf

    sizes = dict(BERT, num_labels=2)
    known = {
        "classifier": (hf.LlamaForSequenceClassification, hf.LlamaConfig(**sizes, pad_token_id=3)),
        "bert": (hf.BertForSequenceClassification, hf.BertConfig(**sizes, pad_token_id=3)),
        "tokens": (hf.BertForTokenClassification, hf.BertConfig(**sizes)),
    }
    for name, (model_class, config) in known.items():
        config.id2label, config.label2id = {0: "NEGATIVE", 1: "POSITIVE"}, NAMES["label2id"]
        store(work / name, model_class, config)

    def answered(folder, model_class, ids):
        """The class that a user is told, and its score."""
        with torch.no_grad():
            model = model_class.from_pretrained(folder, local_files_only=True).eval()
            logits = model(torch.tensor([ids])).logits[0]
        return model.config.id2label[int(logits.argmax())] if logits.dim() == 1 else "", logits

    ids = [5, 6, 7, 8, 9, 7]
    for case, name, keys, words in (
            ("another pad_token_id", "classifier", {"pad_token_id": 7}, "pad_token_id"),
            ("no pad_token_id", "classifier", {"pad_token_id": None}, "pad_token_id"),
            ("swapped names", "classifier", SWAPPED, "id2label"),
            ("swapped names", "bert", SWAPPED, "id2label"),
            ("swapped names", "tokens", SWAPPED, "id2label"),
            ("several classes at once", "bert", {"problem_type": "multi_label_classification"}, "problem_type")):
        model, copy = work / name, changed(work / name, keys)
        text = [*ids[:-1], 3] if keys.get("pad_token_id", 0) is None else ids
        right, wrong = answered(model, known[name][0], text), answered(copy, known[name][0], text)
        if "pad_token_id" in keys:
            report.check(f"{name}, {case}: no attack", "" if (right[1] - wrong[1]).abs().max() > 1e-3 else "the same logits")
        elif name != "tokens" and keys == SWAPPED:
            report.check(f"{name}, {case}: no attack", "" if right[0] != wrong[0] else "the same class")
        for one, other in ((model, copy), (copy, model)):
            result = pare("verify", one, other, "--json", "--quiet")
            report.check(f"{name}, {case}", "" if result.returncode == 3 and verdict(result) == "different"
                         and words in result.stdout else f"exit code {result.returncode}: {verdict(result)}")
    for case, name, keys in (("the same names", "bert", NAMES), ("another pad_token_id", "bert", {"pad_token_id": 7}),
                             ("one class at a time", "bert", {"problem_type": "single_label_classification"})):
        result = pare("verify", work / name, changed(work / name, keys), "--json", "--quiet")
        report.check(f"{name}, {case}: the same", "" if verdict(result) == "identical" else verdict(result))
    written = pare("rewrite", work / "classifier", "-o", work / "compat", "--passes", "fold_norm_gain", "--form", "compat", "--quiet")
    report.check("rewrite keeps them", written.stderr if written.returncode else "")
    kept = json.loads((work / "compat" / "config.json").read_text())
    report.check("the names are kept", "" if kept["id2label"] == NAMES["id2label"] and kept["pad_token_id"] == 3 else f"{kept}")
    result = pare("verify", work / "classifier", work / "compat", "--json", "--quiet")
    report.check("what rewrite wrote", "" if verdict(result) == "proved" else verdict(result))


def check_types(report, model, model_class):
    """The type that config.json names is what transformers rounds weights to: no less than it says of the reference."""
    import safetensors.torch
    import torch

    def answered(folder):
        with torch.no_grad():
            return model_class.from_pretrained(folder, local_files_only=True).eval()(torch.arange(2, 22)[None]).logits.double()

    right = answered(model)
    for keys in ({"dtype": "bfloat16"}, {"dtype": None, "torch_dtype": "float16"}, {"dtype": "half"}):
        copy = changed(model, keys)
        far = ((answered(copy) - right).abs().max() / right.abs().max()).item()
        report.check(f"{keys}: no attack", "" if far > 1e-3 else f"transformers differs by {far:.1e}")
        result = pare("verify", model, copy, "--json", "--quiet")
        report.check(f"{keys}", "" if result.returncode == 3 and verdict(result) == "different" and "dtype" in result.stdout
                     else f"exit code {result.returncode}: {verdict(result)}")
        result = pare("verify", copy, model, "--json", "--quiet")
        report.check(f"less rounding than with {keys}", "" if verdict(result) == "identical" else verdict(result))
        result = pare("verify", copy, copy, "--json", "--quiet")
        report.check(f"the same, with {keys}", "" if verdict(result) == "identical" else verdict(result))
    for keys in ({"dtype": None}, {"dtype": "float32"}, {"dtype": "float64"}):
        copy = changed(model, keys)
        result = pare("verify", model, copy, "--json", "--quiet")
        report.check(f"{keys}: the same", "" if verdict(result) == "identical" else verdict(result))
    wide = changed(model, {"dtype": "float32"})  # a wider file that holds nothing which float32 cannot
    tensors = safetensors.torch.load_file(wide / "model.safetensors")
    safetensors.torch.save_file({name: tensor.double() for name, tensor in tensors.items()}, wide / "model.safetensors", {"format": "pt"})
    report.check("float32 numbers in float64, read as float32", ended(pare("verify", model, wide), 0))
    copy = changed(model, {"dtype": "int8"})  # of which transformers says that it is none
    report.check("no type of floats", ended(pare("verify", model, copy), 3, ["dtype"]))
    for dtype in ("bfloat16", "float64"):
        out = model.with_name(f"as-{dtype}")
        written = pare("rewrite", model, "-o", out, "--passes", "fold_norm_gain", "--form", "compat", "--dtype", dtype, "--quiet")
        report.check(f"rewrite --dtype {dtype}", written.stderr if written.returncode else "")
        report.check(f"what it wrote in {dtype}", ended(pare("verify", model, out), 0))


def check_unknown(report, model):
    """What nobody knows is refused by every command that opens a model, and read on where that is asked for."""
    copy = changed(model, {"a_new_switch": True, "another": None})
    words = ["keys that pare does not know for this family: 'a_new_switch', 'another'", "--ignore-unknown-keys"]
    tokens = model.with_name("tokens.json")
    tokens.write_text("[[1, 2, 3]]")
    commands = {
        "audit": ["audit", copy],
        "verify, of the candidate": ["verify", model, copy],
        "verify, of the reference": ["verify", copy, model],
        "run": ["run", copy, "-o", model.with_name("run.safetensors"), "--tokens", tokens],
        "rewrite": ["rewrite", copy, "-o", model.with_name("rewritten"), "--passes", "auto"],
        "rewrite, compat": ["rewrite", copy, "-o", model.with_name("compat"), "--passes", "auto", "--form", "compat"],
    }
    for name, command in commands.items():
        report.check(f"{name} refuses unknown keys", ended(pare(*command), 1, words))
        ignoring = pare(*command, "--ignore-unknown-keys")
        report.check(f"{name} ignores unknown keys", ended(ignoring, 0, ["ignored keys", "'a_new_switch', 'another'"]))
    refused = pare("verify", model, copy, "--json")
    reasons = json.loads(refused.stdout).get("error", {}).get("reasons", [])
    report.check("the reasons as JSON", "" if len(reasons) == 1 and words[0] in json.dumps(reasons) else refused.stdout)
    known = changed(model, {"num_local_experts": 8, "a_new_switch": True})
    report.check("what is known to matter is never ignored",
                 ended(pare("audit", known, "--ignore-unknown-keys"), 1, ["mixtures of experts"], ["a_new_switch'; "]))


def main():
    report = Report("configuration_of_the_peer")
    report.transformers()
    with tempfile.TemporaryDirectory() as work:
        known = models()
        for name, (model_class, config) in known.items():
            store(pathlib.Path(work, name), model_class, config)
            report.check(f"{name} is itself", ended(pare("verify", pathlib.Path(work, name), pathlib.Path(work, name)), 0))
        for name, keys, words in ATTACKS:
            model, model_class = pathlib.Path(work, name), known[name][0]
            copy = changed(model, keys)
            right, wrong = logits(model_class, model), logits(model_class, copy)
            moved = ((wrong - right).abs().max() / right.abs().max()).item()
            report.check(f"{name} with {keys}: no attack", "" if moved > 1e-3 else f"transformers differs by {moved:.1e}")
            report.check(f"{name} with {keys}, as candidate", ended(pare("verify", model, copy), 1, words))
            report.check(f"{name} with {keys}, as reference", ended(pare("verify", copy, model), 1, words))
        for name, keys in HARMLESS:
            model, model_class = pathlib.Path(work, name), known[name][0]
            copy = changed(model, keys)
            moved = (logits(model_class, copy) - logits(model_class, model)).abs().max().item()
            report.check(f"{name} with {keys}: harmless", "" if moved < 1e-10 else f"transformers differs by {moved:.1e}")
            report.check(f"{name} with {keys}", ended(pare("verify", model, copy), 0))
        check_unknown(report, pathlib.Path(work, "llama"))
        check_types(report, pathlib.Path(work, "llama"), known["llama"][0])
        answers = pathlib.Path(work, "answers")
        answers.mkdir()
        check_answers(report, answers)
    report.finish()


if __name__ == "__main__":
    main()
