#!/usr/bin/env python3
"""`pare export --to hf` in transformers, in float64: every stored form, every task, every pass. It computes what `pare run` computes,
generates with its cache, is trained, stored and read again by both; and each family of transformers becomes our own code and back.

    python tests/conformance/export_hf.py [NAME]     only the models whose name contains it
"""

import copy
import importlib
import json
import os
import pathlib
import random
import shutil
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
from report import Report, ended, expect, pare  # noqa: E402  (the folder above is not a package)

WORK = tempfile.TemporaryDirectory()
os.environ |= {"HF_HUB_OFFLINE": "1", "HF_MODULES_CACHE": f"{WORK.name}/modules"}  # where transformers puts the Python that it trusts
REPORT = Report("export_hf")
REPORT.peers("numpy", "safetensors", "torch", "accelerate", "peft")
transformers = REPORT.transformers()
import numpy  # noqa: E402
import random_models  # noqa: E402
import reference  # noqa: E402
import torch  # noqa: E402
from compare import TOLERANCE, compare, distance  # noqa: E402
from native_models import CALLS, EXECUTED, MODELS, PASSES, TOKENS, inputs_of  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
from transformers.loss import loss_utils  # noqa: E402

torch.set_num_threads(1)  # these models are too small for more
torch.manual_seed(0)

# What a rounding of every number costs these models, measured here: float16 has 11 bits, bfloat16 8.
NARROW = {torch.float16: 0.02, torch.bfloat16: 0.15}
CODE, SAID = "modeling_pare.py", 9
READ_AGAIN = ["slim caches", "first-layer table", "BERT's pre-training", "ViT's form"]  # by pare, once more
USED = {"GPT-2's form": "used", "Llama's classifier": "classifier"}  # folders that are needed again at the end
# Who says a model of these unasked: the first in the alphabet that can, and nobody where there is ALiBi, which transformers rounds. That
# every family says all that it can is in compat.py.
BACK = {"bert": "bert", "falcon": "pare", "gpt2": "gpt2", "llama": "llama", "mistral": "llama", "starcoder2": "falcon", "vit": "vit"}


def tensors_of(inputs):
    return {name: torch.from_numpy(numpy.asarray(array)) for name, array in inputs.items()}


def config_of(folder):
    return json.loads((folder / "config.json").read_text())


def made(case, result, words=()):
    problem = ended(result, 0, words)
    REPORT.check(case, problem)
    return not problem


def init(name, architecture, work):
    (work / "architecture.json").write_text(json.dumps(architecture))
    folder = work / "".join(c if c.isalnum() else "-" for c in name)
    if not made(f"{name}: init", pare("init", work / "architecture.json", "-o", folder, "--generic", "--force")):
        raise SystemExit(1)
    return folder


def exported(case, source, folder, *flags, words=()):
    return made(f"{case}: export", pare("export", source, "-o", folder, "--to", "hf", "--dtype", "float64", "--random", "2", "--budget", "1", "--force", *flags), words)


def answers_of_pare(case, folder, inputs, work, *flags):
    """By name and number of the sequence, without padding."""
    save_file(inputs, work / "in.safetensors")
    result = pare("run", folder, "--inputs", work / "in.safetensors", "-o", work / "out.safetensors", "--dtype", "float64", "--force", *flags)
    said = f"{result.stderr.strip()[-600:]}" if result.returncode or CODE in result.stderr else ""
    REPORT.check(f"{case}: run", said)
    return load_file(work / "out.safetensors") if not result.returncode else {}


def automatic(folder, ours=None):
    """The class of transformers that opens it."""
    config = config_of(folder)
    ours = ours or config["architectures"][0]
    return getattr(transformers, next(theirs for theirs, name in config["auto_map"].items() if name.endswith(f".{ours}")))


def load(folder, ours=None, beside=None, dtype=torch.float64):
    """As anybody would; `beside` a model that was loaded so, by a class of its module, which does not read the Python again."""
    opener = getattr(sys.modules[type(beside).__module__], ours or type(beside).__name__) if beside else automatic(folder, ours)
    model, info = opener.from_pretrained(folder, dtype=dtype, output_loading_info=True, **({} if beside else {"trust_remote_code": True}))
    wrong = {key: value for key, value in info.items() if value}
    REPORT.check(f"{folder.name}: every tensor has its place", f"{wrong}" if wrong else "")
    return model


def named(output):
    """An answer of transformers under pare's names."""
    results = {}
    if "last_hidden_state" in output:
        results["hidden"] = output.last_hidden_state
        if output.get("pooler_output") is not None:
            results["pooled"] = output.pooler_output
    else:
        results = reference.logits_of(output)
    if output.get("hidden_states") is not None:
        results |= {f"residual.{layer}": state for layer, state in enumerate(output.hidden_states[:-1])}
        results["final"] = output.hidden_states[-1]
    return {name: tensor.detach() for name, tensor in results.items() if tensor is not None}


def separate(results, mask):
    """One tensor for each sequence, without its padding, as pare writes them."""
    return {f"{name}.{row}": tensor[mask[row].bool()] if mask is not None and batch.dim() == 3 else tensor
            for name, batch in results.items() for row, tensor in enumerate(batch)}


def run(model, inputs, **options):
    with torch.no_grad():
        return model(**inputs, **options)


def check_same(case, wanted, model, inputs):
    """`wanted`: of pare, all that is compared."""
    found = separate(named(run(model, inputs, output_hidden_states=True)), inputs.get("attention_mask"))
    REPORT.check(case, compare(wanted, found, case))


# ---- What it computes.


def best_class(architecture):
    """With every head of the model."""
    return "PareForPreTraining" if architecture.get("head", {}).get("sequence") else None


def check_answers(case, model, wanted, inputs):
    check_same(f"{case}: {type(model).__name__}", wanted, model, inputs)
    if type(model).__name__ != "PareModel":
        taps = {name: tensor for name, tensor in wanted.items() if name.startswith(("residual.", "final."))}
        base = sys.modules[type(model).__module__].PareModel(model.config)
        sizes = {name: p.std().item() * p[0].numel() ** 0.5 for name, p in base.named_parameters() if name.endswith("weight") and p.dim() in (2, 4) and p.numel() > 50}
        gains = {float(gain) for norm in base.modules() if getattr(norm, "kind", None) if norm.weight is not None for gain in norm.weight.detach().flatten() + norm.spec.offset}
        REPORT.check(f"{case}: before training", expect([name for name, size in sizes.items() if not 0.7 < size < 1.4], []) or expect(gains <= {1.0}, True))
        base.load_state_dict(model.state_dict())
        check_same(f"{case}: PareModel", taps, base.to(torch.float64), inputs)
    tupled, output = run(model, inputs, return_dict=False), run(model, inputs)
    REPORT.check(f"{case}: as a tuple", "" if type(tupled) is tuple and torch.equal(tupled[0], next(iter(output.values()))) else "something else comes first")
    if "input_ids" in inputs:
        check_inputs(case, model, inputs, output)
    check_disturbed(case, model, wanted, inputs)


def check_inputs(case, model, inputs, output):
    """What may be left out, and what is refused."""
    plain = {name: tensor[:1] for name, tensor in inputs.items() if name != "attention_mask"}
    alone, masked = run(model, plain), run(model, plain | {"attention_mask": torch.ones_like(plain["input_ids"])})
    REPORT.check(f"{case}: without a mask", "" if torch.equal(alone[0], masked[0]) else "not as with one of ones")
    if model.embed.spec.position_pad is None:
        mask = inputs["attention_mask"]
        told = run(model, inputs | {"position_ids": (mask.cumsum(1) - 1).clamp(min=0)})
        REPORT.check(f"{case}: told its positions", "" if torch.equal(told[0], output[0]) else "not as counted")
    for what, wrong, words in [
            ("embeddings", {"inputs_embeds": torch.zeros(1, 2, 24)}, "inputs_embeds"),
            ("nothing", {"input_ids": None}, "input_ids"),
            ("a short mask", plain | {"attention_mask": torch.ones(1, 2)}, "attention_mask"),
            ("attentions", plain | {"output_attentions": True}, "output_attentions")]:
        try:
            run(model, wrong)
            REPORT.check(f"{case}: {what}", "not refused")
        except (TypeError, ValueError) as error:
            REPORT.check(f"{case}: {what}", "" if words in str(error) else f"{error}")


def check_disturbed(case, model, wanted, inputs):
    """A comparison that cannot fail is worth nothing: one element of one weight off by a millionth must show."""
    weight = next(tensor for name, tensor in model.named_parameters() if name.endswith(("output.weight", "vo.weight", "value.weight")))
    with torch.no_grad():
        before = weight.clone()
        weight.view(-1)[0] += 1e-6
        found = separate(named(run(model, inputs)), inputs.get("attention_mask"))
        weight.copy_(before)
    kept = {name: tensor for name, tensor in wanted.items() if name in found}
    error = max(distance(name, tensor, found[name]) for name, tensor in kept.items())
    REPORT.check(f"{case}: one weight off by a millionth", "" if error > TOLERANCE else f"not noticed: {error:.1e}")


def check_narrow(case, folder, inputs, model):
    """Loaded in half of the bits."""
    wide = named(run(model, inputs))
    mask = inputs.get("attention_mask")
    for dtype, allowed in NARROW.items():
        narrow = load(folder, None, model, dtype) if dtype == torch.bfloat16 else copy.deepcopy(model).to(dtype)
        found = named(run(narrow, inputs))
        types = {tensor.dtype for tensor in found.values()}
        errors = {name: distance(name, tensor, separate(found, mask)[name]) for name, tensor in separate(wide, mask).items()}
        worst = max(errors, key=errors.get)
        print(f"  {case}, {dtype}: {errors[worst]:.1e} in {worst}", flush=True)
        REPORT.check(f"{case}: in {dtype}", expect(types, {dtype}) or (f"{worst} is off by {errors[worst]:.1e}" if not errors[worst] <= allowed else ""))


# ---- Decoding.


def generated(model, ids, mask, **options):
    with torch.no_grad():
        said = model.generate(ids, attention_mask=mask, **{"max_new_tokens": SAID, "do_sample": False, "pad_token_id": 0} | options)
    return said[:, ids.shape[1]:].tolist()


def prompts_of(case, vocab):
    """Two, and both as one batch with padding on the left."""
    draw = torch.Generator().manual_seed(len(case))
    prompts = [torch.randint(vocab, (1, length), generator=draw) for length in (3, 7)]
    short = torch.nn.functional.pad(prompts[0], (4, 0))
    mask = torch.tensor([[0] * 4 + [1] * 3, [1] * 7])
    return prompts, torch.cat([short, prompts[1]]), mask


def check_generation(case, model):
    """What it says after the prompts, one by one: [two, prompt and nine more tokens]."""
    prompts, ids, mask = prompts_of(case, model.config.vocab_size)
    alone = [generated(model, prompt, torch.ones_like(prompt))[0] for prompt in prompts]
    together = generated(model, ids, mask)
    if "by length" not in case:  # else the shorter one turns by the longer one's angles
        REPORT.check(f"{case}: padded on the left", expect(together, alone))
    REPORT.check(f"{case}: without a cache", expect(generated(model, ids, mask, use_cache=False), together))
    beams = [generated(model, ids, mask, use_cache=use_cache, max_new_tokens=5, num_beams=2, num_return_sequences=2) for use_cache in (True, False)]
    REPORT.check(f"{case}: beams", expect(len(beams[0]), 4) or expect(beams[0], beams[1]))
    # Guesses that were wrong are taken out of the cache again.
    repeating = prompts[1].repeat(1, 2)
    said = [generated(model, repeating, torch.ones_like(repeating), max_new_tokens=5, **options) for options in ({"prompt_lookup_num_tokens": 3}, {"use_cache": False})]
    REPORT.check(f"{case}: guessed ahead", expect(said[0], said[1]))
    return [prompt[0].tolist() + rest for prompt, rest in zip(prompts, alone)]


def choices_of_pare(case, source, said, answers, work):
    """What pare says in the place of the last tokens of these: what it finds most likely after those before."""
    if answers:
        return [answers[f"logits.{row}"].argmax(-1)[-1 - SAID:-1].tolist() for row in range(4, 4 + len(said))]
    (work / "prompts.json").write_text(json.dumps([tokens[:-SAID] for tokens in said]))  # angles change with each token
    result = pare("generate", source, "--tokens", work / "prompts.json", "--json", "--dtype", "float64", "-n", SAID)
    return [each["tokens"] for each in json.loads(result.stdout)["generations"]] if made(f"{case}: pare generate", result) else []


def remembered(spec, width):
    """How many numbers a layer keeps of a token."""
    keys = spec.kv_heads * spec.head_width
    one = {"x": width, "k": keys, "v": keys}.get(spec.cache)
    shared = [width if form == "collapsed" else keys for form in (spec.scores, spec.values)]
    return one or (width if spec.scores == spec.values == "collapsed" else sum(shared))


def in_steps(model, inputs, cuts):
    """The same tokens in pieces, each after the cache of those before it."""
    cache, pieces = transformers.DynamicCache(config=model.config), []
    for begin, end in zip([0, *cuts], [*cuts, TOKENS]):
        piece = {name: tensor[:, begin:end] for name, tensor in inputs.items()} | {"attention_mask": inputs["attention_mask"][:, :end]}
        pieces.append(run(model, piece, past_key_values=cache).logits)
    kept = [sum(tensor.shape[1] * tensor.shape[3] for tensor in (layer.keys, layer.values)) for layer in cache.layers]
    return pieces, kept[:-1]  # the last has what each token is


def check_steps(case, model, wanted, inputs):
    logits = {name: tensor for name, tensor in wanted.items() if name.startswith("logits")}
    mask = inputs["attention_mask"]
    for cuts in [[1], [9], list(range(6, TOKENS))]:
        pieces, kept = in_steps(model, inputs, cuts)
        if "by length" in case:  # earlier ones were answered in a shorter text
            last = pieces[-1].shape[1]
            found = separate({"logits": pieces[-1]}, mask[:, -last:])
            theirs = {name: tensor[len(tensor) - len(found[name]):] for name, tensor in logits.items() if len(found[name])}
        else:
            found, theirs = separate({"logits": torch.cat(pieces, 1)}, mask), logits
        REPORT.check(f"{case}: cut at {cuts}", compare(theirs, found, f"{case}: cut at {cuts}"))
    last = run(model, inputs, logits_to_keep=1).logits
    REPORT.check(f"{case}: the last logits alone", "" if torch.equal(last, run(model, inputs).logits[:, -1:]) else "not those of the last token")
    wanted = [remembered(model.blocks[number].attention.spec, model.config.hidden_size) for number in model.order]
    REPORT.check(f"{case}: numbers kept of a token, by layer", expect(kept, wanted))
    for what, past in [("a tuple", ((torch.zeros(1, 1, 1, 1),) * 2,)), ("a static cache", transformers.StaticCache(config=model.config, max_cache_len=20))]:
        try:
            run(model, inputs, past_key_values=past)
            REPORT.check(f"{case}: {what}", "not refused")
        except ValueError as error:
            REPORT.check(f"{case}: {what}", "" if "DynamicCache" in str(error) else f"{error}")


# ---- Training.


def with_labels(model, inputs):
    """What makes a loss, for its head."""
    draw, many = torch.Generator().manual_seed(3), len(next(iter(inputs.values())))
    name, classes = type(model).__name__.removeprefix("Pare"), model.config.num_labels
    one_each = torch.randint(classes, (many,), generator=draw)
    if name == "Model":
        return inputs
    if name == "ForQuestionAnswering":
        return inputs | {"start_positions": one_each, "end_positions": one_each + 3}
    if name in ("ForSequenceClassification", "ForImageClassification", "ForNextSentencePrediction"):
        return inputs | {"labels": one_each}
    labels = inputs["input_ids"] if name != "ForTokenClassification" else torch.randint(classes, inputs["input_ids"].shape, generator=draw)
    inputs = inputs | {"labels": labels.masked_fill(inputs["attention_mask"] == 0, -100)}
    return inputs | ({"next_sentence_label": one_each % model.head.spec.sequence.classes} if name == "ForPreTraining" else {})


def loss_of_transformers(model, inputs, output, **items):
    """What its own models of that kind make of these logits."""
    kind, labels, config = model.loss_type, inputs.get("labels"), model.config
    compute = loss_utils.LOSS_MAPPING[kind]
    with reference.Float64():
        if kind == "ForQuestionAnswering":
            return compute(output.start_logits, output.end_logits, inputs["start_positions"], inputs["end_positions"], **items)
        if kind in ("ForSequenceClassification", "ForImageClassification"):
            return compute(labels, output.logits, config, **items)
        return compute(output.logits, labels, config if kind == "ForTokenClassification" else config.vocab_size, **items)


def check_losses(case, model, inputs):
    """Of each kind of label, of one batch and of a part of several."""
    if model.loss_type not in loss_utils.LOSS_MAPPING:
        return
    draw = torch.Generator().manual_seed(11)
    kinds = {"": inputs}
    if model.loss_type == "ForSequenceClassification":
        many = torch.rand((len(inputs["labels"]), model.config.num_labels), generator=draw, dtype=torch.float64)
        kinds |= {"multi_label_classification": inputs | {"labels": many}, "regression": inputs | {"labels": many}}
    if model.loss_type == "ForQuestionAnswering":
        kinds["past the end"] = inputs | {"end_positions": torch.tensor([3, TOKENS, 99, 0])}
    for kind, labelled in kinds.items():
        model.config.problem_type = kind if kind.count("_") or kind == "regression" else None
        for items in [{}] + [{"num_items_in_batch": torch.tensor(7)}] * (kind == "" and "labels" in inputs):
            output = run(model, labelled, **items)
            theirs = loss_of_transformers(model, labelled, output, **items).item()
            REPORT.check(f"{case}: loss {kind} {items}", f"{output.loss.item()}, theirs {theirs}" if not abs(output.loss.item() - theirs) <= 1e-12 * abs(theirs) else "")
        model.config.problem_type = None


def loss_of(model, inputs):
    output = model(**inputs)
    if "loss" in output and output.loss is not None:
        return output.loss
    return sum(tensor.square().mean() for name, tensor in output.items() if name in ("last_hidden_state", "pooler_output") and tensor is not None)


def gradients(model, inputs):
    model.zero_grad()
    loss_of(model, inputs).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def check_training(case, model, inputs):
    """Leaves the model a few steps away from where it was."""
    inputs = with_labels(model, inputs)
    check_losses(case, model, inputs)
    model.train()
    found = gradients(model, inputs)
    wrong = [name for name, gradient in found.items() if gradient is None or not gradient.isfinite().all()]
    REPORT.check(f"{case}: a gradient for every parameter", f"none or no number: {wrong}" if wrong else "")
    if wrong:
        return
    found = {name: gradient.clone() for name, gradient in found.items()}
    draw = torch.Generator().manual_seed(7)
    direction = {name: torch.randn(p.shape, generator=draw, dtype=p.dtype) for name, p in model.named_parameters()}
    ends = []
    for step in (1e-6, -1e-6):
        with torch.no_grad():
            for name, p in model.named_parameters():
                p += step * direction[name]
            ends.append(loss_of(model, inputs).item())
            for name, p in model.named_parameters():
                p -= step * direction[name]
    slope, wanted = (ends[0] - ends[1]) / 2e-6, sum((found[name] * direction[name]).sum() for name in found).item()
    REPORT.check(f"{case}: gradients are those of the loss", f"{wanted:.10g}, by differences {slope:.10g}" if not abs(slope - wanted) <= 1e-6 * (1 + abs(wanted)) else "")

    model.gradient_checkpointing_enable()
    again = gradients(model, inputs)
    apart = max(((again[name] - found[name]).abs().max() / (found[name].abs().max() + 1e-12)).item() for name in found)
    REPORT.check(f"{case}: and computed twice", f"{apart:.1e} apart" if not apart <= 1e-9 else "")
    model.gradient_checkpointing_disable()
    optimiser, losses = torch.optim.Adam(model.parameters(), 1e-3), []
    for _ in range(4):
        optimiser.zero_grad()
        losses.append(loss_of(model, inputs))
        losses[-1].backward()
        optimiser.step()
    losses = [loss.item() for loss in losses]
    REPORT.check(f"{case}: the loss falls", "" if losses == sorted(losses, reverse=True) and losses[0] > losses[-1] else f"{losses}")
    model.eval()


def check_saved(case, model, source, folder, inputs, work):
    """What was trained here, read by both."""
    saved = work / "saved"
    model.save_pretrained(saved)
    config, original = config_of(saved), config_of(folder)
    REPORT.check(f"{case}: the same code", expect((saved / CODE).read_text(), (folder / CODE).read_text()))
    REPORT.check(f"{case}: the same auto_map", expect(config["auto_map"], original["auto_map"]))
    REPORT.check(f"{case}: the same architecture", expect(config["architecture"], config_of(source)["architecture"]))
    shapes = [{name: (tensor.shape, tensor.dtype) for name, tensor in load_file(place / "model.safetensors").items()} for place in (saved, folder)]
    REPORT.check(f"{case}: the same tensors", expect(shapes[0], shapes[1]))
    wanted = named(run(model, inputs))
    read = named(run(load(saved, None, model), inputs))
    REPORT.check(f"{case}: stored, and read by transformers", "" if all(torch.equal(wanted[name], read[name]) for name in wanted) else "not the same")
    if case in READ_AGAIN:
        theirs = answers_of_pare(f"{case}: stored", saved, inputs, work)
        ours = separate(wanted, inputs.get("attention_mask"))
        REPORT.check(f"{case}: and by pare", expect(sorted(theirs), sorted(ours)) or compare(theirs, ours, f"{case}: stored, and read by pare"))


def with_rows(inputs, said):
    """For pare, in one batch: the inputs, and what was said."""
    longest = max(TOKENS, *map(len, said))
    batch = {name: torch.nn.functional.pad(tensor, (0, longest - TOKENS)) for name, tensor in inputs.items()}
    rows = [torch.nn.functional.pad(torch.tensor(tokens), (0, longest - len(tokens))) for tokens in said]
    masks = [torch.arange(longest) < len(tokens) for tokens in said]
    batch["input_ids"] = torch.cat([batch["input_ids"], torch.stack(rows)])
    batch["attention_mask"] = torch.cat([batch["attention_mask"], torch.stack(masks)])
    return batch


def check_model(name, architecture, work):
    source, folder = init(name, architecture, work), work / "own"
    if not exported(name, source, folder, "--family", "pare", words=["trust_remote_code"]):
        return
    REPORT.check(f"{name}: the same architecture", expect(config_of(folder)["architecture"], config_of(source)["architecture"]))
    if name in USED:
        shutil.copytree(folder, work / USED[name])
    inputs = tensors_of(inputs_of(name, architecture))
    model = load(folder, best_class(architecture))
    looks_ahead = any(block["attention"].get("mask") == "full" for block in architecture["blocks"])
    decodes, by_length = architecture.get("task", "causal_lm") == "causal_lm" and not looks_ahead, "by length" in name
    if best_class(architecture):  # more than one class can open it
        for theirs, ours in config_of(folder)["auto_map"].items():
            opened = getattr(transformers, theirs).from_pretrained(folder, trust_remote_code=True)
            REPORT.check(f"{name}: {theirs}", expect(type(opened).__name__, ours.split(".")[1]))
    speaker = load(folder, "PareForCausalLM", model) if decodes and best_class(architecture) else model
    said = check_generation(name, speaker) if decodes else []
    asked = with_rows(inputs, said) if decodes and not by_length else inputs  # in a batch all turn by the longest one's angles
    answers = answers_of_pare(name, source, asked, work, "--taps", "residual.*,final")
    rows = len(next(iter(inputs.values())))
    behind = f"residual.{len(architecture.get('layers') or architecture['blocks'])}."  # the last layer, which transformers does not keep
    wanted = {key: tensor for key, tensor in answers.items()
              if ".mid." not in key and not key.startswith(behind) and int(key.rsplit(".", 1)[1]) < rows}
    check_answers(name, model, wanted, inputs)
    if decodes:
        check_steps(name, speaker, wanted, inputs)
        REPORT.check(f"{name}: what pare would say", expect([tokens[-SAID:] for tokens in said], choices_of_pare(name, source, said, answers if not by_length else None, work)))
    check_narrow(name, folder, inputs, model)
    check_training(name, model, inputs)
    check_saved(name, model, source, folder, inputs, work)


# ---- Passes.


def check_passes(work):
    """What a pass made of a model computes in transformers what pare computes with the model itself."""
    answered, opened = {}, None
    for name in [each["id"] for each in json.loads(pare("passes", "--json").stdout)["passes"]]:
        if name not in PASSES:
            REPORT.check(name, "no model here for this pass")
            continue
        of = json.dumps(PASSES[name])  # several passes have the same
        if of not in answered:
            source, inputs = init(name, PASSES[name], work), tensors_of(inputs_of(name, PASSES[name]))
            answered[of] = source, inputs, answers_of_pare(name, source, inputs, work)
        source, inputs, wanted = answered[of]
        result = pare("rewrite", source, "-o", work / "rewritten", "--passes", CALLS[name], "--allow-growth", "--no-verify", "--force", "--dtype", "float64")
        if made(f"{name}: applies", result) and exported(name, work / "rewritten", work / "own", "--family", "pare"):
            opened = opened or load(work / "own")
            check_same(name, wanted, load(work / "own", None, opened), inputs)
    return opened


# ---- Stock families.


def check_back(case, name, unasked, kept, theirs, told, work):
    """Our own code as a model of transformers again; `kept`: what the one it was computes."""
    place, implementation = random_models.place_of_sequence(theirs), theirs.config._attn_implementation
    for asked in [[]] if unasked == name else [[], ["--family", name]]:
        said = name if asked else unasked
        if not exported(f"{case}, and back {asked}", work / "own", work / "back", *asked):
            continue
        config = config_of(work / "back")
        REPORT.check(f"{case}, and back", expect([config["model_type"], (work / "back" / CODE).exists()], [said, said == "pare"]))
        if said != "pare":
            again = reference.load(getattr(transformers, config["architectures"][0]), work / "back", implementation)
            found = random_models.without_padding(reference.run(again, told), told.get("attention_mask"), place)
            REPORT.check(f"{case}, and back as {said}", compare(kept, found, f"{case}, and back as {said}"))


def check_family(name, opened, work):
    """A model of transformers as our own code, and that as a model of transformers again; `opened`: any model of ours."""
    family, rng = importlib.import_module(f"families.{name}"), random.Random(f"export/{name}")
    config, model_class, options = random_models.draw(family, rng, 2, None)
    stock = work / f"stock-{name}"
    random_models.store(config, model_class, options, rng, 2, stock, getattr(family, "OLDER_ROPE_KEYS", {}))  # 2: in float64
    draw = torch.Generator().manual_seed(rng.getrandbits(32))
    case = f"{name}, {model_class.__name__}"
    if not exported(case, stock, work / "own", "--family", "pare"):
        return
    theirs = reference.load(model_class, stock, config._attn_implementation or "eager", **options)
    if hasattr(config, "image_size"):
        inputs = {"pixel_values": torch.randn((3, config.num_channels, config.image_size, config.image_size), generator=draw, dtype=torch.float64)}
    else:
        inputs = random_models.draw_tokens(theirs, rng, draw)
    mask = inputs.get("attention_mask")
    told = inputs if mask is None or random_models.leaves_padding_out(theirs) else inputs | {"position_ids": (mask.cumsum(1) - 1).clamp(min=0)}
    wanted = random_models.without_padding(reference.run(theirs, told), mask, random_models.place_of_sequence(theirs))
    behind = f"residual.{config.get_text_config().num_hidden_layers}."  # which own code does not keep
    kept = {key: tensor for key, tensor in wanted.items() if not key.startswith(behind)}
    ours = load(work / "own", config_of(work / "own")["architectures"][0], opened)
    REPORT.check(f"{case}: where a text ends", expect(ours.config.eos_token_id, getattr(config, "eos_token_id", None)))
    found = separate(named(run(ours, inputs, output_hidden_states=True)), mask)
    REPORT.check(f"{case}: as our own code", compare(kept, found, case))
    if name in BACK:
        check_back(case, name, BACK[name], kept, theirs, told, work)


# ---- What people do with a folder.


def words_of(count, folder):
    """A tokenizer of so many words."""
    import tokenizers

    plain = tokenizers.Tokenizer(tokenizers.models.WordLevel({f"w{n}": n for n in range(count)}, unk_token="w0"))
    plain.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    transformers.PreTrainedTokenizerFast(tokenizer_object=plain, unk_token="w0", pad_token="w0").save_pretrained(folder)


def check_trainer(folder, work, case, rows, **flags):
    """Three steps, each of four rows at once or of two after two."""
    trained = []
    for at_once in (4, 2):
        model = load(folder)
        arguments = transformers.TrainingArguments(
            output_dir=work / "run", max_steps=3, per_device_train_batch_size=at_once, gradient_accumulation_steps=4 // at_once, learning_rate=0.1, optim="sgd",
            lr_scheduler_type="constant", report_to=[], save_strategy="no", use_cpu=True, disable_tqdm=True, logging_strategy="no", **flags)
        trainer = transformers.Trainer(model=model, args=arguments, train_dataset=rows)
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.train()
        trained.append(model)
    moved = max((p - q).abs().max().item() for p, q in zip(load(folder).parameters(), trained[0].parameters()))
    apart = max((p - q).abs().max().item() for p, q in zip(*(model.parameters() for model in trained)))
    REPORT.check(f"{case}: Trainer", "" if moved > 1e-3 and apart < 1e-12 else f"moved {moved:.1e}, in two parts {apart:.1e} apart")
    trainer.save_model(work / "saved")
    return trained[1]


def check_use(work):
    name, folder = "GPT-2's form", work / "used"
    inputs = tensors_of(inputs_of(name, MODELS[name]))
    rows = [{"input_ids": ids, "labels": ids.masked_fill(torch.arange(TOKENS) < n, -100), "attention_mask": torch.ones_like(ids)}
            for n, ids in enumerate(torch.randint(50, (12, TOKENS), generator=torch.Generator().manual_seed(1)))]
    model = check_trainer(folder, work, "a language model", rows, gradient_checkpointing=True)
    wanted = separate(named(run(model.eval(), inputs)), inputs["attention_mask"])
    REPORT.check("what Trainer stored, read by pare", compare(answers_of_pare("trained", work / "saved", inputs, work), wanted, "what Trainer stored"))
    check_lora(folder, work, inputs, torch.stack([row["input_ids"] for row in rows]))

    check_refusals(folder, work)

    words_of(50, folder)
    continued = transformers.pipeline("text-generation", model=str(folder), trust_remote_code=True, dtype=torch.float64)
    said = continued("w3 w4 w5", max_new_tokens=5, do_sample=False, return_full_text=False)[0]["generated_text"].split()
    ids = torch.tensor([[3, 4, 5]])
    REPORT.check("pipeline", expect(said, [f"w{n}" for n in generated(load(folder), ids, torch.ones_like(ids), max_new_tokens=5)[0]]))


def check_refusals(folder, work):
    """What other models of transformers do, and these do not."""
    opener = transformers.AutoModelForSequenceClassification
    for what, ask, words in [
            ("other classes", lambda: opener.from_pretrained(work / "classifier", trust_remote_code=True, num_labels=5), "3 classes"),
            ("another task", lambda: opener.from_pretrained(folder, trust_remote_code=True), "PareConfig"),
            ("more tokens", lambda: load(folder).resize_token_embeddings(60), "architecture.vocab"),
            ("a cache where layers run twice", lambda: checkpointing(load(folder))(torch.ones(1, 3).long(), past_key_values=transformers.DynamicCache()), "twice")]:
        try:
            ask()
            REPORT.check(what, "not refused")
        except (ValueError, NotImplementedError) as error:
            REPORT.check(what, "" if words in str(error) else f"{error}")


def checkpointing(model):
    model.gradient_checkpointing_enable()
    return model.train()


def check_lora(folder, work, inputs, ids):
    import peft

    model = load(folder)
    before = run(model, inputs).logits
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM"))
    REPORT.check("LoRA begins where the model is", "" if torch.equal(run(adapted, inputs).logits, before) else "elsewhere")
    optimiser = torch.optim.SGD([p for p in adapted.parameters() if p.requires_grad], 0.5)
    losses = []
    for _ in range(3):
        loss = adapted(input_ids=ids, labels=ids).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    REPORT.check("LoRA learns", "" if losses == sorted(losses, reverse=True) and losses[2] < losses[0] - 0.01 else f"{losses}")
    wanted = separate(named(run(adapted, inputs)), inputs["attention_mask"])
    adapted.merge_and_unload().save_pretrained(work / "saved")
    REPORT.check("LoRA, merged and read by pare", compare(answers_of_pare("merged", work / "saved", inputs, work), wanted, "LoRA, merged"))


def main():
    work = pathlib.Path(WORK.name)
    for name, architecture in (MODELS | EXECUTED).items():
        if len(sys.argv) < 2 or sys.argv[1] in name:
            check_model(name, architecture, work)
    if len(sys.argv) < 2:
        opened = check_passes(work)
        for path in sorted((HERE / "families").glob("*.py")):
            check_family(path.stem, opened, work)
        check_use(work)
    REPORT.finish()


if __name__ == "__main__":
    main()
