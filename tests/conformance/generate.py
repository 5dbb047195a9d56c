#!/usr/bin/env python3
"""`pare generate` against transformers: what is left to choose from, and what greedy decoding says, model by model.

Tokens are equal, or at the first difference the two best logits are nearer to each other than the logits of both programs.
"""

import contextlib
import importlib
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
from report import PARE, SHARED, Report, expect, pare  # noqa: E402  (the folders above are not a package)

DECODERS = ["apertus", "arcee", "biogpt", "bloom", "codegen", "cohere", "cohere2", "ernie4_5", "exaone4", "falcon", "gemma",
            "gemma2", "gemma3", "gemma3_text", "glm", "glm4", "gpt2", "gpt_bigcode", "gpt_neo", "gpt_neox", "gptj", "granite",
            "helium", "hunyuan_v1_dense", "llama", "ministral", "mistral", "modernbert_decoder", "mpt", "nanochat", "nemotron",
            "olmo", "olmo2", "olmo3", "openai_gpt", "opt", "phi", "phi3", "qwen2", "qwen3", "seed_oss", "smollm3", "stablelm",
            "starcoder2", "xglm"]
NOT_DECODERS = ["albert", "bert", "camembert", "clip_text_model", "clip_vision_model", "deit", "dinov2", "dinov2_with_registers",
                "distilbert", "electra", "esm", "eurobert", "gte", "modernbert", "nomic_bert", "roberta", "roberta_prelayernorm",
                "siglip_text_model", "siglip_vision_model", "vit", "xlm_roberta"]


def written(folder, prompts, work, *flags):
    """What pare says after each of these lists of tokens, as documents."""
    path = work / "prompts.json"
    path.write_text(json.dumps(prompts))
    result = pare("generate", folder, "--tokens", path, "--json", *flags)
    if result.returncode != 0:
        raise RuntimeError(result.stderr)
    return json.loads(result.stdout)["generations"]


def their_tokens(model, prompt, count, cached, **options):
    import torch

    ids = torch.tensor([prompt])
    model.generation_config.pad_token_id = 0
    with torch.no_grad():
        said = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False, use_cache=cached, **options)
    return said[0, len(prompt):].tolist()


def parting(model, folder, prompt, ours, theirs, dtype, work):
    """Empty where both say the same, or part where rounding decides."""
    import torch
    from safetensors.torch import load_file

    if ours == theirs:
        return ""
    place = next((n for n, (a, b) in enumerate(zip(ours, theirs)) if a != b), min(len(ours), len(theirs)))
    if place == min(len(ours), len(theirs)):
        return f"{ours}, theirs {theirs}: one ends early"
    prefix = prompt + theirs[:place]
    path = work / "prefix.json"
    path.write_text(json.dumps([prefix]))
    result = pare("run", folder, "-o", work / "logits", "--tokens", path, "--dtype", dtype, "--force")
    if result.returncode != 0:
        return result.stderr
    with torch.no_grad():
        peer = model(torch.tensor([prefix])).logits[0, -1].double()
    own = load_file(work / "logits")["logits.0"][-1].double()
    error = (own - peer).abs().max().item()
    margin = abs((peer[ours[place]] - peer[theirs[place]]).item())
    best = margin <= 2 * error and peer[ours[place]] >= peer.max() - 2 * error
    return "" if best else f"at token {place} {ours[place]} and not {theirs[place]}: margin {margin:.2e}, logits agree to {error:.2e}"


def causal_draw(family, name, number):
    """The first few models of a family that continue text."""
    found = 0
    for index in range(40):
        rng = random.Random(f"generate/{name}/{index}")
        config, model_class, *rest = family.draw(rng, index)
        if model_class.__name__.endswith(("ForCausalLM", "ForConditionalGeneration", "LMHeadModel")):
            if found == number:
                return rng, index, config, model_class, rest[0] if rest else {}
            found += 1
    raise RuntimeError(f"{name} draws no model that continues text")


def check_family(report, name, number, work):
    import random_models
    import reference
    import torch

    family = importlib.import_module(f"families.{name}")
    rng, index, config, model_class, options = causal_draw(family, name, number)
    folder = work / f"{name}-{number}"
    random_models.store(config, model_class, options, rng, 2 * number, folder, getattr(family, "OLDER_ROPE_KEYS", {}))
    about, config = f"{name} {index} ({model_class.__name__})", config.get_text_config()
    context = random_models.context_of(config)
    prompts = [[rng.randrange(1, config.vocab_size) for _ in range(length)] for length in (1, 4, context - 1)]
    rope = getattr(config, "rope_parameters", None) or {}
    kinds = {one.get("rope_type", "default") for one in (rope.values() if "full_attention" in rope else [rope])}
    # Its cache does not turn keys again where a longer text changes their angles, and forgets nothing in a window of one.
    cached = not kinds & {"dynamic", "longrope"} and getattr(config, "sliding_window", None) != 1
    count_of = [context + 1 - len(prompt) for prompt in prompts]
    for dtype in ("float64", "float32"):
        ours = written(folder, prompts, work, "--dtype", dtype, "-n", "100")
        with reference.Float64() if dtype == "float64" else contextlib.nullcontext():
            for prompt, said, count in zip(prompts, ours, count_of):
                case = f"{about}, {dtype}, a prompt of {len(prompt)}"
                # Anew for each: dynamic frequencies remember the longest text.
                model = model_class.from_pretrained(folder, dtype=getattr(torch, dtype), attn_implementation="eager", local_files_only=True, **options).eval()
                theirs = their_tokens(model, prompt, count, cached)
                problem = parting(model, folder, prompt, said["tokens"], theirs, dtype, work)
                report.check(case, problem)
                wanted = "end_of_text" if len(theirs) < count or theirs[-1] == config.eos_token_id else "context"
                report.check(f"{case}, how it ends", "" if problem else expect(said["finish"], wanted))


def check_candidates(report, work):
    """The kept tokens and their probabilities, as transformers' processors leave them, in the order in which it has them."""
    import torch
    from transformers import LogitsProcessorList
    from transformers.generation import logits_process as peers

    generator = torch.Generator().manual_seed(5)
    rng = random.Random(5)
    cases, wanted = [], []
    for number in range(200):
        vocab = rng.choice([1, 2, 5, 60, 400])
        logits = torch.randn(vocab, generator=generator) * rng.choice([0.1, 1.0, 4.0, 30.0])
        if number % 10 == 0:
            logits = logits.round()  # equal ones
        seen = [rng.randrange(vocab) for _ in range(rng.choice([1, 3, 20]))]
        case = {"temperature": rng.choice([1.0, 0.3, 2.5])}
        if rng.random() < 0.5:
            case["repetition_penalty"] = rng.choice([1.3, 0.7, 4.0])
        if rng.random() < 0.5:
            case["top_k"] = rng.choice([1, 2, 7, 50, 1000])
        # Which of equal ones stay is nobody's promise there: their sort is not stable.
        if rng.random() < 0.5 and number % 10 != 0:
            case["top_p"] = rng.choice([1e-6, 0.2, 0.5, 0.9, 0.999])
        if rng.random() < 0.5:
            case["min_p"] = rng.choice([0.01, 0.3, 1.0])
        chain = LogitsProcessorList()
        for key, make in (("repetition_penalty", peers.RepetitionPenaltyLogitsProcessor), ("temperature", peers.TemperatureLogitsWarper),
                          ("top_k", peers.TopKLogitsWarper), ("top_p", peers.TopPLogitsWarper), ("min_p", peers.MinPLogitsWarper)):
            if key in case:
                chain.append(make(case[key]))
        scores = chain(torch.tensor([seen]), logits.double()[None])[0]
        wanted.append(scores)
        cases.append(case | {"logits": logits.tolist(), "seen": seen})
    (work / "cases.json").write_text(json.dumps(cases))
    tool = PARE.parent / "draw_tokens"
    subprocess.run([str(tool), "cases.json", "out.json"], cwd=work, check=True)
    for number, ((ids, probabilities), scores, case) in enumerate(zip(json.loads((work / "out.json").read_text()), wanted, cases)):
        settings = {key: value for key, value in case.items() if key not in ("logits", "seen")}
        kept = torch.isfinite(scores).nonzero().flatten().tolist()
        problem = expect(ids, kept)
        far = (torch.softmax(scores, -1)[kept] - torch.tensor(probabilities, dtype=torch.float64)).abs().max().item() if not problem else 0
        report.check(f"candidates {number} {settings}", problem or (f"probabilities off by {far}" if far > 1e-12 else ""))


def check_order(report, transformers):
    """That the order above is the one in which its generation puts them."""
    import torch

    config = transformers.GenerationConfig(do_sample=True, repetition_penalty=1.2, temperature=0.5, top_k=3, top_p=0.5, min_p=0.1)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1))
    chain = model._get_logits_processor(config, input_ids_seq_length=1, encoder_input_ids=torch.tensor([[1]]), device="cpu")
    found = [type(each).__name__ for each in chain]
    report.check("the order of the settings", expect(found, ["RepetitionPenaltyLogitsProcessor", "TemperatureLogitsWarper", "TopKLogitsWarper", "TopPLogitsWarper", "MinPLogitsWarper"]))


def check_stories(report, work):
    import torch
    from transformers import LlamaForCausalLM

    folder = SHARED / "models" / "stories260K"
    if not folder.exists():
        report.skip("stories260K", f"no {folder}: set PARE_SHARED to the folder that has models/")
        return
    stories = json.loads((folder / "tinystories_40_token_ids.json").read_text())
    prompts = [stories[0][:1], stories[1][:5], stories[2][:40]]
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True).eval()
    for flags, options in (([], {}), (["--repetition-penalty", "1.3"], {"repetition_penalty": 1.3})):
        ours = written(folder, prompts, work, "-n", "150", *flags)
        for prompt, said in zip(prompts, ours):
            theirs = their_tokens(model, prompt, 150, True, **options)
            problem = parting(model, folder, prompt, said["tokens"], theirs, "float32", work) if not options else expect(said["tokens"], theirs)
            report.check(f"stories260K {flags} after {len(prompt)} tokens", problem)
            with torch.no_grad():
                scores = torch.log_softmax(model(torch.tensor([prompt + said["tokens"]])).logits[0].double(), -1)
            wanted = [scores[len(prompt) - 1 + n, token].item() for n, token in enumerate(said["tokens"])]
            far = max(abs(a - b) for a, b in zip(wanted, said["log_probabilities"], strict=True))
            report.check(f"stories260K {flags}, log-probabilities after {len(prompt)}", f"off by {far}" if far > 1e-4 else "")


def main():
    report = Report("generate")
    os.environ["HF_HUB_OFFLINE"] = "1"
    report.peers("torch", "safetensors")
    transformers = report.transformers()
    names = sorted(path.stem for path in (HERE / "families").glob("*.py"))
    report.check("every family is in a list", expect(names, sorted(DECODERS + NOT_DECODERS)))
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        check_candidates(report, work)
        check_order(report, transformers)
        check_stories(report, work)
        for name in DECODERS:
            for number in range(6 if name == "llama" else 2):  # with every kind of rotary setting
                check_family(report, name, number, work)
    report.finish()


if __name__ == "__main__":
    main()
