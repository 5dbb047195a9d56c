#!/usr/bin/env python3
"""Every key that transformers looks at, with other values: pare computes what transformers then does, or refuses.

    python tests/slow/configuration_search.py [--family NAME] [--first] [--key KEY] [--seed N]

For every family small random models are stored, of every class. The keys are all that the configuration class writes,
all attributes of a configuration that transformers asks for while it loads and runs the model, all that its source
names, and all that pare's own source names. Each is given other values in config.json, and transformers loads the
folder as anybody would. Where it cannot, or would start tensors at random, anything is right. Else pare has to agree to
1e-10, or to refuse. Keys that pare reads past are changed many at once, and where that matters by halves. Needs about
half an hour.
"""

import argparse
import importlib
import json
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "conformance"), str(HERE.parent)]
os.environ["HF_HUB_OFFLINE"] = "1"
import report  # noqa: E402  (the folders above are not a package)

# Which of a family's drawn models: those whose features differ most. Then one of each class in its HEADS.
MODELS = {"falcon": [0, 2, 3], "gemma2": [0, 3], "bert": [1, 2, 4], "albert": [1, 2, 4], "roberta": [1, 2, 4],
          "vit": [0, 1], "llama": [0, 2, 3, 4, 7], "qwen2": [1, 2], "opt": [0, 1], "phi": [0, 3], "cohere": [0, 1],
          "cohere2": [1, 2], "olmo3": [1, 2], "stablelm": [1, 2]}
READERS = ["masking_utils", "modeling_layers", "modeling_rope_utils", "cache_utils", "utils/generic",
           "utils/output_capturing", "configuration_utils", "integrations/sdpa_attention", "modeling_utils"]
ROPE_KEYS = {"attention_factor", "beta_fast", "beta_slow", "factor", "finetuned", "full_attention", "high_freq_factor",
             "long_factor", "low_freq_factor", "max_position_embeddings", "mrope_section", "mscale", "mscale_all_dim",
             "original_max_position_embeddings", "partial_rotary_factor", "rope_theta", "rope_type", "short_factor",
             "sliding_attention", "truncate", "type"}
# transformers finds the last token of a text by the id of padding, pare by the mask: see docs/formats.md, Hugging Face
# folders. No text here ends in padding, but here any id may be named as it.
BY_DESIGN = {("pad_token_id", "ForSequenceClassification")}
ABSENT = object()


def values_near(value):
    """Other values of the kind that is there: of every kind where there is none."""
    if isinstance(value, bool):
        return [not value, None]
    if isinstance(value, int):
        return [value + 1, value - 1, value * 2, 1, 0, None]
    if isinstance(value, float):
        return [value * 2, value / 2, 1.0, 0.0, None, 2]
    if isinstance(value, str):
        return [word for word in ("relu", "sdpa", "eager", "linear", "float16", "") if word != value] + [None]
    if isinstance(value, list):
        return [value[::-1], value[:1], [], None]
    if isinstance(value, dict):
        return [{}, None]
    return [True, False, None, 2, 0.5, "eager", {"0": 1}, ["sliding_attention"] * 3]


def changes(config, names):
    """(key, new value) for each name; ABSENT takes the key away."""
    for key in sorted(names):
        found = config.get(key)
        for value in values_near(found):
            if key not in config or found != value or type(found) is not type(value):
                yield key, value
        if key in config:
            yield key, ABSENT
        if key in ("rope_parameters", "rope_scaling") and isinstance(found, dict):
            for inner, value in changes(found, set(found) | ROPE_KEYS):
                yield key, changed(found, {inner: value})


def changed(config, new):
    return {key: value for key, value in {**config, **new}.items() if value is not ABSENT}


def shown(new):
    return ", ".join(f"no {key}" if value is ABSENT else f"{key}={json.dumps(value)}" for key, value in new.items())


class Asked:
    """Collects the attributes that anybody asks of any configuration."""

    def __enter__(self):
        from transformers import PreTrainedConfig

        self.config, self.names = PreTrainedConfig, set()
        self.original = original = PreTrainedConfig.__getattribute__

        def recording(config, name):
            self.names.add(name)
            return original(config, name)

        PreTrainedConfig.__getattribute__ = recording
        return self

    def __exit__(self, *error):
        self.config.__getattribute__ = self.original


def source_names(model_class):
    """What transformers' source and pare's call a setting of a configuration."""
    import transformers

    root = pathlib.Path(transformers.__file__).parent
    files = [pathlib.Path(sys.modules[model_class.__module__].__file__)] + [root / f"{name}.py" for name in READERS]
    names = set()
    for text in (path.read_text() for path in files):
        names |= set(re.findall(r"config\.([a-zA-Z]\w*)", text))
        names |= set(re.findall(r"(?:getattr|hasattr)\([\w.]*config, *\"(\w+)\"", text))
    checkpoint = report.ROOT / "pare" / "checkpoint"
    for path in [*checkpoint.glob("*config*.cpp"), *checkpoint.glob("*fields.cpp"), checkpoint / "known_keys.cpp",
                 *checkpoint.glob("families/**/*.cpp")]:
        names |= set(re.findall(r'"(_?[a-z][a-z0-9]*(?:_[a-z0-9]+)+|alibi|bias|rotary|activation)"', path.read_text()))
    return names


class Subject:
    """A stored model, what goes into it, and what comes out of transformers."""

    def __init__(self, family, index, head, seed, folder):
        import random_models
        import torch
        from safetensors.torch import save_file

        rng = random.Random(f"{seed}/{family.__name__}/{head.__name__ if head else index}")
        config, self.model_class, self.options = random_models.draw(family, rng, index, head)
        config._attn_implementation = None
        self.folder, self.inputs_path = folder, folder.with_suffix(".in.safetensors")
        older = getattr(family, "OLDER_ROPE_KEYS", {})
        random_models.store(config, self.model_class, self.options, random.Random(3), 2, folder, older)
        self.stored = json.loads((folder / "config.json").read_text())
        # With every key that the class writes, so that each has a value to change.
        written = json.loads(config.to_json_string(use_diff=False)) | self.stored
        self.config = {key: value for key, value in written.items() if value is not None or key in self.stored}
        generator = torch.Generator().manual_seed(5)
        if hasattr(config, "image_size"):
            shape = (3, config.num_channels, config.image_size, config.image_size)
            self.inputs = {"pixel_values": torch.randn(shape, generator=generator, dtype=torch.float64)}
        else:
            self.inputs = self.texts(config, generator)
        save_file(self.inputs, self.inputs_path)

    def texts(self, config, generator):
        """Two, the second padded on the right: there positions count alike in both programs."""
        import torch

        padding = config.pad_token_id or 0
        ids = torch.randint(1, config.vocab_size, (2, 12), generator=generator)
        ids[ids == padding] = (padding + 1) % config.vocab_size
        mask = torch.ones_like(ids)
        mask[1, 8:] = 0
        ids[mask == 0] = padding
        return {"input_ids": ids, "attention_mask": mask}

    def theirs(self, folder):
        """What transformers computes, by pare's names: of the batch, and of its first text alone and without a mask.

        Nothing, where it cannot.
        """
        import reference
        import torch

        try:
            with reference.Float64(), torch.no_grad():
                model, found = self.model_class.from_pretrained(
                    folder, dtype=torch.float64, local_files_only=True, output_loading_info=True, **self.options
                )
                if found["missing_keys"] or found["mismatched_keys"]:
                    return None
                model.eval()
                results = [self.run(model, self.inputs)]
                if "input_ids" in self.inputs:
                    results.append(self.run(model, {"input_ids": self.inputs["input_ids"][:1]}))
            return results
        except Exception:  # whatever it is: transformers does not run this
            return None

    def run(self, model, inputs):
        import random_models
        import reference

        outputs = model(**inputs, return_dict=True)
        if model is not model.base_model:
            results = reference.logits_of(outputs)
        else:
            results = {"hidden": outputs.last_hidden_state, "pooled": getattr(outputs, "pooler_output", None)}
            results = {name: tensor for name, tensor in results.items() if tensor is not None}
        mask = inputs.get("attention_mask")
        return random_models.without_padding(results, mask, random_models.place_of_sequence(model))


class Pare:
    """What pare makes of a folder: by tests/tools/read_configs, which reads thousands, and by running each result once."""

    def __init__(self):
        self.process = subprocess.Popen([str(report.PARE.parent / "read_configs")], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)
        self.computed = {}

    def read(self, folder):
        """The Architecture as text; nothing where pare refuses."""
        self.process.stdin.write(f"{folder}\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        return json.dumps(answer["architecture"]) if "architecture" in answer else None

    def run(self, architecture, subject, folder):
        import random_models

        key = (subject.folder, architecture)
        if key not in self.computed:
            self.computed[key] = random_models.run_pare(folder, "--inputs", subject.inputs_path, ["final"], folder)
        return self.computed[key]


def difference(theirs, ours):
    """Empty where all that transformers computed is what pare did, relative to the largest value."""
    if isinstance(ours, str):
        return ours
    for name, tensor in ((name, tensor) for results in theirs for name, tensor in results.items()):
        if name not in ours or ours[name].shape != tensor.shape:
            return f"no {name} of that shape"
        distance = ((tensor - ours[name].double()).abs().max() / tensor.abs().max().clamp(min=1e-30)).item()
        if not distance <= 1e-10:
            return f"{name} is off by {distance:.1e}"
    return ""


class Search:
    def __init__(self, result, about, subject, program):
        self.result, self.about, self.subject, self.program = result, about, subject, program
        self.folder = subject.folder.with_name(subject.folder.name + "-changed")
        shutil.copytree(subject.folder, self.folder)

    def put(self, new, base=None):
        (self.folder / "config.json").write_text(json.dumps(changed(self.subject.config if base is None else base, new)))

    def check(self, new, architecture):
        """One change, of which pare made this Architecture. False where transformers does not run it."""
        self.put(new)
        theirs = self.subject.theirs(self.folder)
        if theirs is not None:
            problem = difference(theirs, self.program.run(architecture, self.subject, self.folder))
            self.result.check(f"{self.about}, {shown(new)}", problem)
        return theirs is not None

    def check_without_effect(self, group, architecture):
        """Changes of different keys that leave pare's Architecture as it is: all at once, else by halves."""
        if len(group) == 1:
            self.check(dict(group), architecture)
            return
        self.put(dict(group))
        theirs = self.subject.theirs(self.folder)
        if theirs is not None and not difference(theirs, self.program.run(architecture, self.subject, self.folder)):
            self.result.passed += len(group)
            return
        middle = len(group) // 2
        self.check_without_effect(group[:middle], architecture)
        self.check_without_effect(group[middle:], architecture)

    def run(self, only, rng):
        self.put({}, self.subject.stored)
        with Asked() as asked:
            plain = self.subject.theirs(self.folder)
        base = self.program.read(self.folder)
        self.put({})
        for name, theirs in (("as stored", plain), ("every key written out", self.subject.theirs(self.folder))):
            if base is None or theirs is None or self.program.read(self.folder) != base:
                self.result.check(f"{self.about}, {name}", "pare or transformers refuses it, or pare reads another model")
                return
            ours = self.program.run(base, self.subject, self.folder)
            self.result.check(f"{self.about}, {name}", difference(theirs, ours))
        names = {name for name in asked.names if not name.startswith("__")} | source_names(self.subject.model_class)
        neutral = {}
        for key, value in changes(self.subject.config, {only} if only else names | set(self.subject.config)):
            if any(key == one and self.subject.model_class.__name__.endswith(end) for one, end in BY_DESIGN):
                continue
            self.put({key: value})
            architecture = self.program.read(self.folder)
            if architecture == base:
                neutral.setdefault(key, []).append(value)
            elif architecture is not None:
                self.check({key: value}, architecture)
        while neutral:
            group = [(key, values.pop()) for key, values in neutral.items()]
            rng.shuffle(group)
            self.check_without_effect(group, base)
            neutral = {key: values for key, values in neutral.items() if values}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--family", help="only this one")
    parser.add_argument("--first", action="store_true", help="only the first model of each family")
    parser.add_argument("--key", help="only this one")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    result = report.Report("configuration_search")
    [transformers] = result.peers("transformers")
    transformers.logging.set_verbosity(transformers.logging.CRITICAL)
    transformers.logging.disable_progress_bar()
    names = sorted(path.stem for path in (HERE.parent / "conformance" / "families").glob("*.py"))
    program = Pare()
    with tempfile.TemporaryDirectory() as folder:
        for name in [options.family] if options.family else names:
            family = importlib.import_module(f"families.{name}")
            subjects = [(index, None) for index in MODELS.get(name, [0])] + [(0, head) for head in family.HEADS]
            for index, head in subjects[:1] if options.first else subjects:
                about = f"{name} {head.__name__ if head else index}"
                subject = Subject(family, index, head, options.seed, pathlib.Path(folder, about.replace(" ", "-")))
                Search(result, about, subject, program).run(options.key, random.Random(about))
                print(f"  {about}: {result.passed} passed, {result.failed} failed", flush=True)
    result.finish()


if __name__ == "__main__":
    main()
