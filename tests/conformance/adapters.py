#!/usr/bin/env python3
"""LoRA adapters against peft: what it computes with the adapter beside the model, in float64; merging; what is refused."""

import json
import os
import pathlib
import random
import shutil
import sys
import tempfile
import warnings

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
from report import Report, pare

os.environ["HF_HUB_OFFLINE"] = "1"
warnings.simplefilter("ignore")  # of tied tensors and Conv1D: what peft does with them is what is compared
report = Report("adapters")
transformers = report.transformers()
[torch, peft, numpy, jsonschema, random_models, reference, importlib] = report.peers("torch", "peft", "numpy", "jsonschema", "random_models", "reference", "importlib")
SCHEMA = json.loads((HERE.parent.parent / "docs" / "json" / "certificate.schema.json").read_text())
from compare import compare
from safetensors.torch import load_file, save_file

# name: family, what changes of its configuration, its class or that drawn, and the adapter.
CASES = {
    "llama": ("llama", {"tie_word_embeddings": False}, None, dict(r=3, lora_alpha=7, target_modules=["q_proj", "v_proj", "down_proj"], rank_pattern={"v_proj": 5}, alpha_pattern={"down_proj": 2})),
    "llama, one layer by its name": ("llama", {}, None, dict(r=2, lora_alpha=3, target_modules=["k_proj", "up_proj"], alpha_pattern={"^model.layers.0.self_attn.k_proj": 9, "layers.1.mlp.up.proj": 5})),  # a dot is any character
    "gpt2, fan_in_fan_out": ("gpt2", {}, None, dict(r=2, target_modules=["c_attn", "c_proj"], fan_in_fan_out=True, bias="all")),
    "gpt2, rslora": ("gpt2", {}, None, dict(r=4, lora_alpha=5, target_modules=["c_attn", "c_fc"], use_rslora=True)),
    "gpt_neox, fused by heads": ("gpt_neox", {"attention_bias": True}, None, dict(r=2, target_modules=["query_key_value", "dense"], bias="lora_only")),
    "falcon, fused": ("falcon", {}, None, dict(r=2, target_modules=["query_key_value"])),
    "bert, a head": ("bert", {}, "BertForSequenceClassification", dict(r=2, target_modules=["query", "value"], modules_to_save=["classifier"])),
    "albert, shared layers": ("albert", {}, None, dict(r=2, target_modules=["query", "ffn"])),
    "opt, all that is linear": ("opt", {}, None, dict(r=2, target_modules="all-linear")),
    "vit": ("vit", {}, None, dict(r=2, target_modules=["q_proj", "fc1"])),
    "qwen2": ("qwen2", {}, None, dict(r=2, target_modules=["q_proj", "gate_proj"])),
    # Of a tied pair peft changes one: the result is not tied.
    "gpt2, the embedding of a tied pair": ("gpt2", {"tie_word_embeddings": True}, None, dict(r=2, target_modules=["wte", "c_attn"], fan_in_fan_out=True)),
    "llama, the head of a tied pair": ("llama", {"tie_word_embeddings": True}, None, dict(r=2, target_modules=["lm_head"])),
    "llama, a saved embedding of a tied pair": ("llama", {"tie_word_embeddings": True}, None, dict(r=2, target_modules=["q_proj"], modules_to_save=["embed_tokens"])),
}
MERGED = ["llama", "gpt2, fan_in_fan_out", "gpt_neox, fused by heads", "gpt2, the embedding of a tied pair", "bert, a head"]


class Drawn:
    """A base model in a folder, an adapter in another, and what peft makes of both."""

    def __init__(self, name, place, dtype=torch.float32):
        family, changes, class_name, settings = CASES[name]
        rng = random.Random(f"adapters/{name}")
        self.base, self.adapter = place / "base", place / "adapter"
        module = importlib.import_module(f"families.{family}")
        head = getattr(transformers, class_name) if class_name else None
        config, self.model_class, options = random_models.draw(module, rng, 0, head)
        for key, value in changes.items():
            setattr(config, key, value)
        with reference.Float64():
            model = self.model_class(config, **options)
        self.generator = torch.Generator().manual_seed(rng.getrandbits(32))
        random_models.randomise(model, dtype, self.generator)
        model.to(dtype).save_pretrained(self.base)
        model = reference.load(self.model_class, self.base, "eager", **options)
        wrapped = peft.get_peft_model(model, peft.LoraConfig(**settings))
        with torch.no_grad():
            for name, parameter in wrapped.named_parameters():
                if "lora_" in name or "modules_to_save" in name or (settings.get("bias", "none") != "none" and name.endswith("bias") and parameter.requires_grad):
                    values = 0.3 * torch.randn(parameter.shape, generator=self.generator, dtype=torch.float64)
                    parameter.copy_(values.to(torch.float32))
        wrapped.save_pretrained(self.adapter)
        wrapped.eval()
        # As training in float32 leaves it: the numbers are of that type already.
        file = self.adapter / "adapter_model.safetensors"
        save_file({name: tensor.float() for name, tensor in load_file(file).items()}, file)
        if family == "vit":  # its modules have other names in transformers 5 than in all files, which keep those of 4
            self.adapter = self.copy_of_adapter(
                lambda config: config.update(target_modules=["query", "intermediate.dense"]),
                lambda tensors: [renamed(old, new)(tensors) for old, new in (("vit.layers.", "vit.encoder.layer."), ("attention.q_proj", "attention.attention.query"), ("mlp.fc1", "intermediate.dense"))],
            )
        if hasattr(config, "image_size"):
            self.inputs = {"pixel_values": torch.randn((2, config.num_channels, config.image_size, config.image_size), generator=self.generator, dtype=torch.float64)}
        else:
            ids = torch.randint(config.vocab_size, (3, 9), generator=self.generator)
            if config.pad_token_id is not None:
                ids[ids == config.pad_token_id] = (config.pad_token_id + 1) % config.vocab_size
            self.inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        self.path = place / "in.safetensors"
        save_file(self.inputs, self.path)
        theirs = reference.run(wrapped.base_model.model, self.inputs)
        self.wanted = {f"{key}.{row}": tensor for key, batch in theirs.items() if "residual" not in key for row, tensor in enumerate(batch)}
        self.work = place / "work"

    def run(self, adapter=None):
        out = self.work.with_suffix(".out.safetensors")
        result = pare("run", self.base, "--adapter", adapter or self.adapter, "-o", out, "--inputs", self.path, "--dtype", "float64", "--force", "--taps", "final")
        return load_file(out) if result.returncode == 0 else f"pare ended with {result.returncode}: {result.stderr.strip()}"

    def copy_of_adapter(self, change_config=None, change_tensors=None):
        copy = self.adapter.with_name(f"adapter-{len(list(self.adapter.parent.iterdir()))}")
        shutil.copytree(self.adapter, copy)
        if change_config:
            config = json.loads((copy / "adapter_config.json").read_text())
            change_config(config)
            (copy / "adapter_config.json").write_text(json.dumps(config))
        if change_tensors:
            tensors = load_file(copy / "adapter_model.safetensors")
            change_tensors(tensors)
            save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, copy / "adapter_model.safetensors")
        return copy


def verdict(*arguments):
    result = pare("verify", *arguments, "--json")
    document = json.loads(result.stdout)
    return document.get("verdict"), document, result


def check_merged(name, drawn, place):
    """pare merges, transformers reads it, verify calls both the same, and a wrong one different."""
    merged = place / "merged"
    done = pare("rewrite", drawn.base, "--adapter", drawn.adapter, "-o", merged, "--json")
    report.check(f"{name}, merged", "" if done.returncode == 0 else done.stderr)
    if done.returncode != 0:
        return
    certificate = json.loads(done.stdout)
    jsonschema.validate(certificate, SCHEMA)
    adapter = certificate["reference"]["adapter"]
    files = certificate["reference"]["files"]
    report.check(f"{name}, certified", "" if adapter and adapter["alpha"] > 0 and "adapter_config.json" in files and "adapter_model.safetensors" in files and certificate["verdict"] in ("identical", "proved") else f"{adapter} {sorted(files)} {certificate['verdict']}")
    for order in ((drawn.base, "--adapter", drawn.adapter, merged), (merged, drawn.base, "--adapter", drawn.adapter)):
        found, document, result = verdict(*order)
        report.check(f"{name}, verified {'forth' if order[0] == drawn.base else 'back'}", "" if found in ("identical", "proved") and result.returncode == 0 else f"{found} {result.stderr}")
    # Its numbers are the sums, rounded once: NumPy computes them too.
    stored, base = load_file(merged / "model.safetensors"), load_file(drawn.base / "model.safetensors")
    tensors = load_file(drawn.adapter / "adapter_model.safetensors")
    settings = json.loads((drawn.adapter / "adapter_config.json").read_text())
    compared = 0
    for key, first in tensors.items():
        if not key.endswith(".lora_A.weight") or settings["rank_pattern"] or settings["alpha_pattern"]:
            continue
        module = key.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
        second = tensors[key.replace("lora_A", "lora_B")]
        delta = second.double().numpy() @ first.double().numpy() * (settings["lora_alpha"] / settings["r"])
        before = base[module + ".weight"].double().numpy()
        expected = before + (delta.T if settings["fan_in_fan_out"] else delta)
        found = stored[module + ".weight"].numpy()
        compared += 1
        if not numpy.array_equal(found, expected.astype(numpy.float32)) and numpy.abs(found - expected).max() > 2**-24 * numpy.abs(expected).max() * 1.0001:
            report.check(f"{name}, {module} by NumPy", f"off by {numpy.abs(found - expected).max()}")
    if compared:
        report.check(f"{name}, {compared} sums by NumPy", "")
    model = reference.load(drawn.model_class, merged, "eager")
    theirs = reference.run(model, drawn.inputs)
    logits = next(key for key in ("logits", "hidden") if key in theirs)
    worst = max((tensor - drawn.wanted[f"{logits}.{row}"]).abs().max() / drawn.wanted[f"{logits}.{row}"].abs().max() for row, tensor in enumerate(theirs[logits]))
    report.check(f"{name}, transformers reads it", "" if worst < 1e-4 else f"off by {worst}")
    doubled = drawn.copy_of_adapter(lambda config: config.update(lora_alpha=2 * config["lora_alpha"], alpha_pattern={}))
    report.check(f"{name}, twice the scale", "" if verdict(drawn.base, "--adapter", doubled, merged)[0] == "different" else "not noticed")


def check_transposed(place):
    """A square matrix takes an adapter either way round: only the right one is the same function."""
    drawn = Drawn("gpt2, fan_in_fan_out", place)
    merged = place / "merged"
    pare("rewrite", drawn.base, "--adapter", drawn.adapter, "-o", merged)

    def transpose(tensors):
        for key in [key for key in tensors if key.endswith("attn.c_proj.lora_A.weight")]:
            other = key.replace("lora_A", "lora_B")
            tensors[key], tensors[other] = tensors[other].t(), tensors[key].t()

    found, _, result = verdict(drawn.base, "--adapter", drawn.copy_of_adapter(change_tensors=transpose), merged)
    report.check("a transposed adapter", "" if found == "different" and result.returncode == 3 else found)
    # What the file says of it does not count, as in peft: the layer does.
    said = drawn.copy_of_adapter(lambda config: config.update(fan_in_fan_out=False))
    report.check("fan_in_fan_out that is wrong", compare(drawn.wanted, drawn.run(said), "gpt2, fan_in_fan_out that is wrong"))


def check_types(place):
    """Stored in bfloat16, where merging rounds: proved, and no more than proved."""
    drawn = Drawn("qwen2", place, torch.bfloat16)
    report.check("bfloat16", compare(drawn.wanted, drawn.run(), "bfloat16"))
    merged = place / "merged"
    done = pare("rewrite", drawn.base, "--adapter", drawn.adapter, "-o", merged)
    report.check("bfloat16, merged", done.stderr if done.returncode else "")
    types = {tensor.dtype for tensor in load_file(merged / "model.safetensors").values()} if done.returncode == 0 else None
    report.check("bfloat16, stored so", "" if types == {torch.bfloat16} else str(types))
    found, document, _ = verdict(drawn.base, "--adapter", drawn.adapter, merged)
    report.check("bfloat16, verified", "" if found == "proved" else found)
    # peft adds in the stored type, and rounds more than once.
    theirs = peft.PeftModel.from_pretrained(drawn.model_class.from_pretrained(drawn.base, dtype=torch.bfloat16), drawn.adapter).merge_and_unload()
    theirs.save_pretrained(place / "theirs")
    found = verdict(drawn.base, "--adapter", drawn.adapter, place / "theirs")[0]
    report.check("bfloat16, merged by peft", "" if found in ("proved", "within_noise") else found)
    torch.save(load_file(drawn.adapter / "adapter_model.safetensors"), drawn.adapter / "adapter_model.bin")
    (drawn.adapter / "adapter_model.safetensors").unlink()
    report.check("adapter_model.bin", compare(drawn.wanted, drawn.run(), "adapter_model.bin"))


def setting(**keys):
    return lambda config: config.update(keys)


def renamed(old, new):
    def change(tensors):
        for key in [key for key in tensors if old in key]:
            tensors[key.replace(old, new)] = tensors.pop(key)

    return change


REFUSED = [
    ("DoRA", setting(use_dora=True), None, "DoRA is not supported"),
    ("IA3", setting(peft_type="IA3"), None, 'peft_type is "IA3"'),
    ("prefix tuning", setting(peft_type="PREFIX_TUNING"), None, "PREFIX_TUNING"),
    ("LoHa", setting(peft_type="LOHA"), None, "LOHA"),
    ("LoftQ", setting(loftq_config={"loftq_bits": 4}), None, "LoftQ"),
    ("PiSSA", setting(init_lora_weights="pissa"), None, "changes the base model too"),
    ("OLoRA", setting(init_lora_weights="olora"), None, "changes the base model too"),
    ("trainable tokens", setting(trainable_token_indices=[1]), None, "trainable_token_indices"),
    ("layers that are repeated", setting(layer_replication=[[0, 2]]), None, "layer_replication"),
    ("a bias of its own", setting(lora_bias=True), None, "lora_bias"),
    ("QA-LoRA", setting(use_qalora=True), None, "QA-LoRA"),
    ("parameters", setting(target_parameters=["mlp.experts"]), None, "target_parameters"),
    ("a key of tomorrow", setting(use_xlora=True), None, "key 'use_xlora' is not known"),
    ("a rank of zero", setting(r=0), None, "r is 0"),
    ("another rank", setting(r=7), None, "has rank"),
    ("an alpha that is none", setting(lora_alpha="much"), None, "lora_alpha is"),
    ("a pattern of Python", setting(alpha_pattern={r"layers\.[01]\..*": 3}), None, "alpha_pattern has the pattern"),
    ("a module that is not targeted", setting(target_modules=["q_proj"]), None, "is none that target_modules names"),
    ("a target without tensors", setting(target_modules=["q_proj", "gate_proj", "o_proj"]), None, "of which the file has no tensors"),
    ("another model's modules", None, renamed("self_attn", "attention"), "is none of the base model's"),
    ("another prefix", None, renamed("base_model.model.", ""), "is no tensor of LoRA"),
    ("a magnitude", None, lambda tensors: tensors.update({"base_model.model.model.layers.0.self_attn.q_proj.lora_magnitude_vector": torch.ones(3)}), "DoRA is not supported"),
    ("one of two", None, lambda tensors: tensors.pop(next(key for key in tensors if "lora_A" in key)), "expected lora_A and lora_B"),
    ("another width", None, lambda tensors: tensors.update({key: tensor[:, :-1] for key, tensor in tensors.items() if "lora_A" in key}), "but the base model's has"),
    ("ranks that differ", None, lambda tensors: tensors.update({key: tensor[:, :1] for key, tensor in tensors.items() if "lora_B" in key}), "expected [rank, inputs]"),
    ("a layer that is not transformed", setting(layers_to_transform=[0]), None, "in none of the layers that layers_to_transform names"),
    ("layers that are no numbers", setting(layers_to_transform="all"), None, "layers_to_transform is"),
    ("a module that is excluded", setting(exclude_modules=["gate_proj"]), None, "is one that exclude_modules names"),
    ("a weight beside its adapter", None, lambda tensors: tensors.update({key.replace("lora_A.weight", "weight"): torch.ones(2, 2) for key in list(tensors) if "layers.0.self_attn.q_proj.lora_A" in key}), "is of a module with an adapter"),
    ("a linear module as an embedding", None, lambda tensors: [renamed(f"self_attn.q_proj.lora_{letter}.weight", f"self_attn.q_proj.lora_embedding_{letter}")(tensors) for letter in "AB"], "but is no embedding"),
    ("a tensor of nobody", None, lambda tensors: tensors.update({"base_model.model.model.extra.weight": torch.ones(2)}), "none of the base model's"),
]


def check_refused(place):
    drawn = Drawn("qwen2", place)
    for name, config, tensors, words in REFUSED:
        result = pare("audit", drawn.base, "--adapter", drawn.copy_of_adapter(config, tensors))
        report.check(f"refused: {name}", "" if result.returncode == 1 and words in result.stderr else f"{result.returncode}: {result.stderr}{result.stdout[-200:]}")
    endless = drawn.copy_of_adapter(change_tensors=lambda tensors: tensors.update({key: tensor.double() * 1e300 for key, tensor in tensors.items()}))
    for command in (("verify", drawn.base, "--adapter", endless, drawn.base), ("rewrite", drawn.base, "--adapter", endless, "-o", place / "endless")):
        result = pare(*command)
        report.check(f"refused: sums that are no numbers, {command[0]}", "" if result.returncode == 1 and "is not finite" in result.stderr and "with the adapter" in result.stderr else f"{result.returncode}: {result.stderr}")
    unknown = drawn.copy_of_adapter(setting(use_xlora=True))
    report.check("a key of tomorrow, ignored", "" if pare("audit", drawn.base, "--adapter", unknown, "--ignore-unknown-keys").returncode == 0 else "refused")
    beside = place / "beside"
    shutil.copytree(drawn.base, beside)
    shutil.copy(drawn.adapter / "adapter_config.json", beside)
    for words, folder in (("--adapter", beside), ("--adapter", drawn.adapter)):
        result = pare("audit", folder)
        report.check(f"advice for {folder.name}", "" if result.returncode == 1 and words in result.stderr else result.stderr)
    result = pare("audit", "gpt2", "--adapter", drawn.adapter)
    report.check("a preset", "" if result.returncode == 1 and "an adapter changes weights" in result.stderr else result.stderr)
    result = pare("rewrite", drawn.base, "-o", place / "nothing")
    report.check("nothing to do", "" if result.returncode == 1 and "--passes is required" in result.stderr else result.stderr)
    inside = pare("rewrite", drawn.base, "--adapter", drawn.adapter, "-o", drawn.adapter / "out")
    report.check("the adapter is never written to", "" if inside.returncode == 1 and "never changed" in inside.stderr else inside.stderr)


def in_folder(function, *arguments):
    with tempfile.TemporaryDirectory() as place:
        function(*arguments, pathlib.Path(place))


def check_case(name, place):
    drawn = Drawn(name, place)
    report.check(name, compare(drawn.wanted, drawn.run(), name))
    if name in MERGED:
        check_merged(name, drawn, place)


def main():
    for name in CASES:
        in_folder(check_case, name)
    in_folder(check_transposed)
    in_folder(check_types)
    in_folder(check_refused)
    report.finish()


if __name__ == "__main__":
    main()
