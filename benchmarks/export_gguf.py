#!/usr/bin/env python3
"""What `pare export --to gguf` wrote, run by llama.cpp: the greedy tokens, the logits, and the tokens of texts.

    python benchmarks/export_gguf.py [--only WORD]

Random models of every architecture and stories260K, in every type; llama.cpp remembers keys and values in float32, without flash
attention. Ends with the line of totals. Skipped where llama-cpp-python and its peers are not installed.
"""

import argparse
import ctypes
import importlib.util
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

from race import ROOT, parting, relative

os.environ["HF_HUB_OFFLINE"] = "1"
sys.path[:0] = [str(ROOT / "tests/conformance"), str(ROOT / "tests")]
from report import PARE, SHARED, Report, ended, expect, pare  # noqa: E402  (the folders above are not a package)

PROMPT, COUNT = 8, 40
TYPES = ("float32", "float16", "bfloat16", "q8_0")
# How far logits may be apart, relative to their range. Its own GELU is a table: of a number in float16, the value in float16, and
# by tanh, whichever the model has. Beside transformers with the same table only the order of sums is left.
ROUNDING, TANH, ERF = 2e-5, 5e-3, 5e-2
# llama.cpp rounds what it multiplies to the type of the weights, too, which costs about what rounding the weights costs.
TIMES_THE_TYPE = 6


# ---- llama.cpp, in a process of its own: what it does not expect ends it


class Engine:
    """The side that asks."""

    def __init__(self):
        self.process = None

    def ask(self, what, **arguments):
        """Its answer, or a word that says why there is none."""
        if self.process is None:
            self.process = subprocess.Popen([sys.executable, __file__, "--engine"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            print(json.dumps({"what": what} | arguments), file=self.process.stdin, flush=True)
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if line:
            return json.loads(line)
        code, self.process = self.process.wait(), None
        return {"problem": f"llama.cpp ended with {code}"}

    def close(self):
        if self.process:
            self.process.stdin.close()
            self.process.wait()


class Llama:
    """The side that answers, by llama.cpp's own functions."""

    def __init__(self):
        import llama_cpp

        self.api, self.model, self.said = llama_cpp, None, []
        self.log = llama_cpp.llama_log_callback(lambda level, text, data: self.said.append(text.decode(errors="replace")))
        llama_cpp.llama_log_set(self.log, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()

    def open(self, path, vocab_only=False):
        """Anew each time: the file is another one by now."""
        if self.model:
            self.api.llama_model_free(self.model)
        self.said.clear()
        parameters = self.api.llama_model_default_params()
        parameters.vocab_only = vocab_only
        self.model = self.api.llama_model_load_from_file(path.encode(), parameters)
        if not self.model:
            raise ValueError(f"llama.cpp does not load it: {' '.join(line.strip() for line in self.said if 'error' in line)[-300:]}")
        return self.api.llama_model_get_vocab(self.model)

    def context(self, embeddings=False):
        settings = self.api.llama_context_default_params()
        settings.n_ctx, settings.n_batch, settings.n_ubatch, settings.n_threads, settings.n_threads_batch = 512, 512, 512, 1, 1
        settings.type_k = settings.type_v = 0  # GGML_TYPE_F32
        settings.flash_attn_type = 0  # never
        settings.embeddings, settings.pooling_type = embeddings, 0
        return self.api.llama_init_from_model(self.model, settings)

    def rows(self, context, tokens, past, vocab, embeddings=False):
        import numpy

        batch = self.api.llama_batch_init(len(tokens), 0, 1)
        batch.n_tokens = len(tokens)
        for n, token in enumerate(tokens):
            batch.token[n], batch.pos[n], batch.n_seq_id[n], batch.seq_id[n][0], batch.logits[n] = token, past + n, 1, 0, 1
        code = (self.api.llama_encode if embeddings else self.api.llama_decode)(context, batch)
        take = self.api.llama_get_embeddings_ith if embeddings else self.api.llama_get_logits_ith
        found = [numpy.array(numpy.ctypeslib.as_array(take(context, n), shape=(vocab,))) for n in range(len(tokens))] if code == 0 else None
        self.api.llama_batch_free(batch)
        if code != 0:
            raise ValueError(f"llama.cpp: a step failed with {code}")
        return numpy.stack(found)

    def logits(self, path, tokens, out):
        """At every position of a sequence."""
        import numpy

        vocab = self.api.llama_vocab_n_tokens(self.open(path))
        context = self.context()
        numpy.save(out, self.rows(context, tokens, 0, vocab))
        self.api.llama_free(context)
        return {}

    def hidden(self, path, tokens, out):
        import numpy

        self.open(path)
        context = self.context(embeddings=True)
        numpy.save(out, self.rows(context, tokens, 0, self.api.llama_model_n_embd(self.model), embeddings=True))
        self.api.llama_free(context)
        return {}

    def greedy(self, path, tokens, count):
        vocab = self.api.llama_vocab_n_tokens(self.open(path))
        context, found, past = self.context(), [], 0
        step = tokens
        for _ in range(count):
            row = self.rows(context, step, past, vocab)[-1]
            past += len(step)
            found.append(int(row.argmax()))
            step = found[-1:]
        self.api.llama_free(context)
        return {"tokens": found}

    def tokens(self, path, texts):
        vocab = self.open(path, vocab_only=True)
        found = []
        for text in texts:
            stored = text.encode()
            room = (self.api.llama_token * (2 * len(stored) + 8))()
            count = self.api.llama_tokenize(vocab, stored, len(stored), room, len(room), True, True)
            found.append(list(room[:count]))
        return {"ids": found}

    def about(self, path):
        vocab = self.open(path, vocab_only=True)
        template = self.api.llama_model_chat_template(self.model, None)
        count = self.api.llama_vocab_n_tokens(vocab)
        return {"template": template.decode() if template else None, "bos": self.api.llama_vocab_bos(vocab), "count": count,
                "begins": bool(self.api.llama_vocab_get_add_bos(vocab)), "closes": bool(self.api.llama_vocab_get_add_eos(vocab)),
                "ends": [n for n in range(count) if self.api.llama_vocab_is_eog(vocab, n)]}


def answer():
    """Until nobody asks any more. Only answers go to stdout, whatever libraries print."""
    out, engine = os.fdopen(os.dup(1), "w"), Llama()
    os.dup2(2, 1)
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            told = getattr(engine, asked.pop("what"))(**asked)
        except ValueError as problem:
            told = {"problem": str(problem)}
        print(json.dumps(told), file=out, flush=True)


# ---- our side


def export(source, out, dtype, *more):
    shutil.rmtree(out, ignore_errors=True)
    return pare("export", source, "-o", out, "--to", "gguf", "--dtype", dtype, "--random", "1", *more)


def our_logits(model, tokens, work):
    """In float64, of the weights as they are stored."""
    from safetensors.torch import load_file

    (work / "tokens.json").write_text(json.dumps([tokens]))
    done = pare("run", model, "-o", work / "answers", "--tokens", work / "tokens.json", "--dtype", "float64", "--force")
    if done.returncode != 0:
        sys.exit(f"pare run {model}: {done.stderr}")
    answers = load_file(work / "answers")
    return answers.get("logits.0", answers.get("hidden.0"))


def our_tokens(model, prompt, work):
    (work / "prompt.json").write_text(json.dumps([prompt]))
    done = pare("generate", model, "--tokens", work / "prompt.json", "-n", COUNT, "--temperature", "0", "--dtype", "float32", "--json")
    if done.returncode != 0:
        sys.exit(f"pare generate {model}: {done.stderr}")
    return json.loads(done.stdout)["generations"][0]["tokens"]


def their_logits(engine, model, tokens, work, what="logits"):
    import numpy
    import torch

    told = engine.ask(what, path=str(model / "model.gguf"), tokens=tokens, out=str(work / "theirs.npy"))
    if "problem" in told:
        raise ValueError(told["problem"])
    return torch.from_numpy(numpy.load(work / "theirs.npy")).double()


# ---- random models


def with_their_gelu(model):
    """The model of transformers with the GELU that llama.cpp computes on a CPU."""
    import copy

    import torch

    def table(x):
        near = x.half().double()
        y = (0.5 * near * (1 + torch.tanh(0.79788456080286535587989211986876 * near * (1 + 0.044715 * near * near)))).half().to(x.dtype)
        return torch.where(x <= -10, 0 * x, torch.where(x >= 10, x, y))

    model = copy.deepcopy(model)
    found = [(parent, name) for parent in model.modules() for name, child in parent.named_children() if "GELU" in type(child).__name__]
    for parent, name in found:
        kept = torch.nn.Identity()
        kept.forward = table
        setattr(parent, name, kept)
    return model if found else None


def without_ends(folder):
    """No token ends a text, so that both sides go on."""
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({key: value for key, value in config.items() if key != "eos_token_id"}))
    (folder / "generation_config.json").unlink(missing_ok=True)


def check_model(report, engine, case, model, bound, work):
    import gguf_files
    import torch

    folder, out = work / "folder", work / "out"
    shutil.rmtree(folder, ignore_errors=True)
    model.to(torch.float32).save_pretrained(folder)
    without_ends(folder)
    bert = model.config.model_type == "bert"
    prompt = torch.randint(model.config.vocab_size, (PROMPT,), generator=torch.Generator().manual_seed(4)).tolist()
    told = [] if bert else our_tokens(folder, prompt, work)
    tokens = prompt + told
    exact = our_logits(folder, tokens, work)
    row, words = [], ""
    for dtype in TYPES:
        problem = ended(export(folder, out, dtype))
        if problem:
            report.check(f"{case}, {dtype}", problem)
            return
        try:
            theirs = their_logits(engine, out, tokens, work, "hidden" if bert else "logits")
        except ValueError as said:
            report.check(f"{case}, {dtype}", str(said))
            return
        if dtype == "float32":
            differs, cost = relative(theirs, exact), 0
            allowed = bound
            report.check(f"{case}: logits", "" if differs <= bound else f"off by {differs:.1e}, allowed {bound:.0e}")
            peer = with_their_gelu(model)
            if peer is not None:
                same = relative(theirs, gguf_files.answers(peer, tokens))
                row.append(f"{differs:9.1e} {same:9.1e}")
                report.check(f"{case}: logits, with their GELU", "" if same <= ROUNDING else f"off by {same:.1e}, allowed {ROUNDING:.0e}")
            else:
                row.append(f"{differs:9.1e}          ")
            if not bert:
                found = engine.ask("greedy", path=str(out / "model.gguf"), tokens=prompt, count=COUNT).get("tokens", [])
                best = exact[PROMPT - 1 : -1].topk(2, dim=-1).values
                words = parting(told, found, (best[:, 0] - best[:, 1]).tolist(), (exact - theirs)[PROMPT - 1 : -1].abs().amax(-1).tolist())
                report.check(f"{case}: greedy tokens", words if "MORE" in words else "")
        else:
            stored = our_logits(out, tokens, work)
            differs, cost = relative(theirs, stored), relative(stored, exact)
            allowed = bound + TIMES_THE_TYPE * cost
            row.append(f"{differs:9.1e} ({cost:.1e})")
            report.check(f"{case}, {dtype}: logits", "" if differs <= allowed else f"off by {differs:.1e}; the type costs {cost:.1e}, allowed {allowed:.1e}")
    print(f"{case:28}{''.join(row)}  {words}", flush=True)


def check_models(report, engine, transformers, only, work):
    import export_gguf
    import gguf_files

    print(f"{'logits, relative':28}{'float32':>9} {'their GELU':>9}{'float16':>9} {'(type)':>9}{'bfloat16':>9} {'(type)':>9}{'q8_0':>9} {'(type)':>9}  greedy tokens")
    for case, config in export_gguf.configurations(transformers).items():
        if only in case:
            model = gguf_files.drawn(transformers, config)
            activation = str(getattr(config, "hidden_activation", None) or getattr(config, "hidden_act", None) or getattr(config, "activation_function", None) or "gelu")
            bound = ROUNDING if activation == "silu" else ERF if activation == "gelu" else TANH
            check_model(report, engine, case, model, bound, work)


# ---- texts


def our_ids(tokenizer, text, work):
    import numpy

    (work / "ids").unlink(missing_ok=True)
    subprocess.run([PARE.parent / "tokenize", "lines", tokenizer, text, work / "ids"], check=True, capture_output=True)
    ids = numpy.fromfile(work / "ids", dtype=numpy.int32)
    return [part[:-1].tolist() for part in numpy.split(ids, numpy.flatnonzero(ids == -1) + 1)[:-1]]


def check_texts(report, engine, case, folder, lines, work, unlike=()):
    """Lines with one of `unlike` are those of which the export says that llama.cpp reads them otherwise."""
    out, text = work / "out", work / "nasty.txt"
    problem = ended(export(folder, out, "float32"), 0, [], ["without a tokenizer"])
    if problem:
        report.check(f"{case}: written", problem)
        return
    text.write_bytes("\n".join(lines).encode() + b"\n")
    ours = our_ids(folder, text, work)
    told = engine.ask("tokens", path=str(out / "model.gguf"), texts=lines)
    theirs = told.get("ids", [])
    wrong = [(line, a, b) for line, a, b in zip(lines, ours, theirs) if a != b]
    print(f"{case:28}{len(theirs)} of {len(lines)} lines read, {len(wrong)} otherwise")
    first = wrong[0] if wrong else None
    report.check(f"{case}: tokens of texts", told.get("problem", "") or (f"{len(wrong)} lines of {len(lines)} otherwise, first {first}" if wrong or len(theirs) != len(lines) else ""))


def check_tokenizers(report, engine, transformers, only, work):
    import export_gguf
    import gguf_files
    import torch
    from nasty_text import nasty_lines

    corpus = (SHARED / "data/text/tinyshakespeare.txt").read_text().splitlines(keepends=True)[:6000]
    lines = nasty_lines(1000)
    folder = work / "texts"
    config = transformers.LlamaConfig(**gguf_files.SMALL | dict(vocab_size=3007, num_hidden_layers=1, hidden_size=16, intermediate_size=8, num_attention_heads=2))
    transformers.LlamaForCausalLM(config).to(torch.float32).save_pretrained(folder)
    for case, stored, _, notes in export_gguf.tokenizers_of(corpus):
        if only in case:
            (folder / "tokenizer.json").write_text(json.dumps(stored))
            check_texts(report, engine, case, folder, lines, work)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="cases with this word in their name")
    parser.add_argument("--engine", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.engine:
        answer()
        return
    missing = [name for name in ("llama_cpp", "gguf", "torch", "transformers", "tokenizers", "safetensors") if not importlib.util.find_spec(name)]
    if missing:
        print(f"skipped gguf in llama.cpp: no module {' and '.join(missing)}: {sys.executable} -m pip install llama-cpp-python gguf")
        print("0 passed, 0 failed, 1 skipped")
        return
    report = Report("gguf in llama.cpp")
    transformers = report.transformers()
    engine = Engine()
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        check_models(report, engine, transformers, options.only, work)
        check_tokenizers(report, engine, transformers, options.only, work)
    engine.close()
    report.finish()


if __name__ == "__main__":
    main()
