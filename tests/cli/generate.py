#!/usr/bin/env python3
"""`pare generate` as people use it: prompts from everywhere, settings, how texts end, what is shown, what is refused, Ctrl-C."""

import gzip
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "error"))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from files import read_tensors
from report import PARE, Report, ended, expect, pare
from text import ARCHITECTURE, IMAGES, tokenizer

PROMPT = "the cat"
ENDLESS = ARCHITECTURE | {"context": 10**7, "embedding": {}}


class Place:
    def __init__(self, report, folder):
        self.report, self.folder = report, folder
        encoder = {key: value for key, value in ARCHITECTURE.items() if key != "head"} | {"task": "encoder"}
        for name, architecture in (("model", ARCHITECTURE | {"context": 40}), ("endless", ENDLESS), ("images", IMAGES), ("encoder", encoder), ("small", ARCHITECTURE | {"vocab": 200})):
            (folder / f"{name}.json").write_text(json.dumps(architecture))
            report.check(f"init {name}", ended(self.pare("init", f"{name}.json", "-o", name, "--generic")))
            if name != "images":
                (folder / name / "tokenizer.json").write_text(json.dumps(tokenizer()))
        shutil.copytree(folder / "model", folder / "bare")
        (folder / "bare" / "tokenizer.json").unlink()
        (folder / "ids.json").write_text("[[5, 6, 7], [257]]")

    def pare(self, *words, **options):
        return pare(*words, cwd=self.folder, **options)

    def document(self, *words, **options):
        result = self.pare("generate", *words, "--json", **options)
        if result.returncode != 0:
            raise RuntimeError(result.stdout + result.stderr)
        return json.loads(result.stdout)

    def one(self, *words, **options):
        return self.document(*words, **options)["generations"][0]


def check_greedy(place):
    """A native model: each token is the most likely by `pare run`, and its probability is the one there."""
    said = place.one("model", PROMPT)
    ids = said["prompt_tokens"] + said["tokens"]
    place.report.check("the prompt's tokens", expect(said["prompt_tokens"], [257, 32, 260]))
    place.report.check("to the end of the context", expect((said["finish"], len(ids)), ("context", 41)))
    (place.folder / "all.json").write_text(json.dumps([ids[:40]]))
    place.report.check("run", ended(place.pare("run", "model", "-o", "logits", "--tokens", "all.json", "--dtype", "float32", "--force")))
    dtype, shape, data = read_tensors(place.folder / "logits")["logits.0"]
    rows = memoryview(data).cast("f").tolist()
    best = [max(range(300), key=rows[300 * n:300 * (n + 1)].__getitem__) for n in range(2, 40)]
    place.report.check("always the most likely token", expect(said["tokens"], best))
    longer = place.one("model", PROMPT, "-n", "5", "--dtype", "float64")
    place.report.check("the same in float64", expect(longer["tokens"], best[:5]))


def check_types(place):
    """Weights of 16 bits stay so, and mean the same numbers as in float32."""
    for dtype in ("float64", "bfloat16", "float16"):
        place.report.check(f"init in {dtype}", ended(place.pare("init", "model.json", "-o", dtype, "--generic", "--dtype", dtype)))
        shutil.copy(place.folder / "model" / "tokenizer.json", place.folder / dtype)
        kept, widened = place.document(dtype, PROMPT), place.document(dtype, PROMPT, "--dtype", "float32")
        place.report.check(f"stored in {dtype}", expect((kept["dtype"], widened["dtype"]), ("float32" if dtype == "float64" else dtype, "float32")))
        if dtype == "bfloat16":  # a form that the engine does not run: float32, and it says so
            (place.folder / "gated.json").write_text(json.dumps(ARCHITECTURE | {"context": 40, "blocks": [
                {**block, "attention": block["attention"] | {"gate": "position"}} for block in ARCHITECTURE["blocks"]]}))
            place.report.check("init gated", ended(place.pare("init", "gated.json", "-o", "gated", "--generic", "--dtype", dtype)))
            place.report.check("left to the Executor", expect(place.document("gated", "--tokens", "ids.json", "-n", "3")["dtype"], "float32"))
        place.report.check(f"the same text from {dtype}", expect(kept["generations"][0]["tokens"], widened["generations"][0]["tokens"]))


def check_settings(place):
    greedy, hot = place.one("model", PROMPT), ["--temperature", "2"]
    for flags in (["--top-k", "1"], ["--top-p", "0.000001"], ["--min-p", "1"]):
        place.report.check(f"{flags} leaves the most likely", expect(place.one("model", PROMPT, *hot, *flags)["tokens"], greedy["tokens"]))
    place.report.check("as cold as can be", expect(place.one("model", PROMPT, "--temperature", "1e-320")["tokens"], greedy["tokens"]))
    closed = subprocess.run([PARE, "generate", "model", "-"], cwd=place.folder, capture_output=True, text=True, preexec_fn=lambda: os.close(0))
    place.report.check("a closed stdin is an empty one", ended(closed, 1, ["stdin is empty"]))
    drawn = place.one("model", PROMPT, *hot)["tokens"]
    place.report.check("one seed, one text", expect(place.one("model", PROMPT, *hot, "--seed", "0")["tokens"], drawn))
    place.report.check("another seed, another", "the same" if place.one("model", PROMPT, *hot, "--seed", "1")["tokens"] == drawn else "")
    both = [each["tokens"] for each in place.document("model", PROMPT, PROMPT, *hot)["generations"]]
    place.report.check("the second of two prompts has numbers of its own", "the same" if both[0] == both[1] else expect(both[0], drawn))
    few = place.one("model", PROMPT, *hot, "--repetition-penalty", "1000", "--top-k", "5")["tokens"]
    place.report.check("a penalty leaves no repetition", expect(len(set(few)), len(few)))


def check_prompts(place):
    said = place.one("model", PROMPT)
    (place.folder / "prompt.txt").write_text(PROMPT + "\n")
    place.report.check("from a file", expect(place.one("model", "--file", "prompt.txt"), said))
    place.report.check("from stdin", expect(place.one("model", "-", input=PROMPT + "\r\n"), said))
    place.report.check("files and prompts", expect(len(place.document("model", "--file", "prompt.txt", "x", "--file", "prompt.txt")["generations"]), 3))
    place.report.check("a prompt after a stop string", expect(place.one("model", "--stop", "no such", PROMPT), said))
    text = place.pare("generate", "model", PROMPT, "mat")
    shown = "\n".join(f"{each['prompt']}{each['text']}\n" for each in place.document("model", PROMPT, "mat")["generations"])
    place.report.check("two texts, a line between them", expect(text.stdout, shown))
    place.report.check("how fast, on stderr", ended(text, 0, ["tokens read ", "/s), drawn ", "the end of the context (2)"]))
    quiet = place.pare("generate", "model", PROMPT, "--quiet")
    place.report.check("--quiet", ended(quiet, 0, [PROMPT], ["tokens read "]))
    place.report.check("tokens beyond the tokenizer's", ended(quiet, 0, ["tokens drawn are not in model/tokenizer.json, and have no text"]))
    ids = place.pare("generate", "bare", "--tokens", "ids.json", "-n", "3")
    tokens = [each["prompt_tokens"] + each["tokens"] for each in place.document("bare", "--tokens", "ids.json", "-n", "3")["generations"]]
    place.report.check("ids where there is no tokenizer", expect(ids.stdout, "\n".join(" ".join(map(str, row)) + "\n" for row in tokens)))
    place.report.check("no text then", expect(place.one("bare", "--tokens", "ids.json")["text"], None))
    place.report.check("nor ids where there is one", expect(place.one("model", "--tokens", "ids.json", "-n", "3")["tokens"], tokens[0][3:]))
    named = place.one("bare", PROMPT, "--tokenizer", "model")
    place.report.check("a tokenizer by name", expect(named, said))
    control = place.pare("generate", "model", "\x1b[31m", "-n", "1")
    place.report.check("a pipe gets what was written", "" if control.stdout.startswith("\x1b[31m") else repr(control.stdout))
    terminal, screen = os.openpty()
    process = subprocess.run([str(PARE), "generate", "model", "\x1b[31mé\x07", "-n", "1", "--quiet"], cwd=place.folder, stdout=screen, timeout=300)
    os.close(screen)
    seen = os.read(terminal, 4096).decode()
    os.close(terminal)
    place.report.check("a terminal obeys nothing", "" if process.returncode == 0 and seen.startswith("\ufffd[31mé\ufffd") and "\x1b" not in seen else repr(seen))


def check_ends(place):
    said = place.one("model", PROMPT)
    stop = said["text"][3:6]
    stopped = place.one("model", PROMPT, "--stop", "nothing such", "--stop", stop)
    at = said["text"].index(stop)
    place.report.check("a stop string", expect((stopped["text"], stopped["finish"], stopped["stop"]), (said["text"][:at], "stop", stop)))
    plain = place.pare("generate", "model", PROMPT, "--stop", stop, "--quiet").stdout
    place.report.check("and nothing of it shown", expect(plain, PROMPT + said["text"][:at] + "\n"))
    third, missing = said["tokens"][2], next(n for n in range(300) if n not in said["tokens"])
    first = said["tokens"].index(third)
    config = place.folder / "model" / "generation_config.json"
    for value in (third, [missing, third]):
        config.write_text(json.dumps({"eos_token_id": value}))
        over = place.one("model", PROMPT)
        place.report.check(f"eos_token_id {value}", expect((over["tokens"], over["finish"]), (said["tokens"][: first + 1], "end_of_text")))
    config.write_text('{"eos_token_id": "</s>"}')
    place.report.check("one that is no number", ended(place.pare("generate", "model", PROMPT), 1, ["generation_config.json", '"</s>"', "expected a token id"]))
    config.unlink()
    settings = place.folder / "model" / "tokenizer_config.json"
    settings.write_text(json.dumps({"eos_token": {"content": "<|end|>"}}))
    place.report.check("the tokenizer's, which is never drawn", expect(place.one("model", PROMPT)["tokens"], said["tokens"]))
    settings.write_text(json.dumps({"eos_token": "the"}))
    (place.folder / "the.json").write_text("[[5]]")
    ends = [each["finish"] for each in place.document("model", *"abcdefgh", "--temperature", "50")["generations"]]
    place.report.check("the tokenizer's", "" if "end_of_text" in ends else f"{ends}")
    settings.unlink()


def check_refusals(place):
    for words, message in (
        (["encoder", "a"], ["'encoder' continues no text: its task is encoder"]),
        (["images", "a"], ["reads images"]),
        (["small", "a"], ["has ids up to 260", "vocabulary is of 200"]),
        (["bare", "a"], ["'bare' holds no tokenizer", "--tokenizer", "--tokens"]),
        (["bare", "--tokens", "ids.json", "--stop", "x"], ["holds no tokenizer", "without --stop"]),
        (["model"], ["no prompt is given", "bos_token_id"]),
        (["model", "x" * 41], ["prompt 1 has 41 tokens, but the model reads at most 40"]),
        (["model", "a", "-", "-"], ["- is given twice"]),
    ):
        place.report.check(f"refused: {words}", ended(place.pare("generate", *words, input=""), 1, message))
    for content, message in ((b"", ["stdin is empty"]), (b"\n", ["stdin is empty"]), (b"ab\xff", ["stdin: the byte at 2 is not UTF-8"])):
        result = place.pare("generate", "model", "-", input=content, text=False)
        place.report.check(f"refused: {content}", ended(subprocess.CompletedProcess([], result.returncode, result.stdout.decode(), result.stderr.decode()), 1, message))
    begun = place.folder / "model" / "config.json"
    config = json.loads(begun.read_text())
    begun.write_text(json.dumps(config | {"bos_token_id": 65}))
    said = place.pare("generate", "model", "--json", "-n", "2", "--ignore-unknown-keys")
    place.report.check("a text begun by bos_token_id", expect(json.loads(said.stdout)["generations"][0]["prompt_tokens"], [65]) if said.returncode == 0 else said.stderr)
    begun.write_text(json.dumps(config))


def check_encodings(place):
    """A prompt from a file is read as `run --text` reads it."""
    for encoding in ("utf-16-le", "utf-16-be", "utf-16", "utf-32-le"):
        (place.folder / "other.txt").write_bytes("the cat sat on the mat".encode(encoding))
        ran = place.pare("run", "model", "-o", "out", "--text", "other.txt")
        for words, options in ((["--file", "other.txt"], {}), (["-"], {"stdin": (place.folder / "other.txt").open("rb")})):
            result = place.pare("generate", "model", *words, **options)
            problem = ended(result, 1, ["looks like UTF-", "iconv -f"])
            place.report.check(f"{encoding} by {words}", problem or (expect(result.stderr, ran.stderr) if words[0] == "--file" else ""))
    (place.folder / "mark.txt").write_bytes(b"\xef\xbb\xbfthe cat")
    place.report.check("run of a marked text", ended(place.pare("run", "model", "-o", "out", "--text", "mark.txt", "--force")))
    dtype, shape, data = read_tensors(place.folder / "out")["logits.0"]
    place.report.check("a mark of UTF-8 as run has it", expect(len(place.one("model", "--file", "mark.txt", "-n", "1")["prompt_tokens"]), shape[-2]))
    (place.folder / "packed.txt.gz").write_bytes(gzip.compress(b"the cat\n"))
    place.report.check("a packed file", expect(place.one("model", "--file", "packed.txt.gz", "-n", "2"), place.one("model", PROMPT, "-n", "2")))
    stop = place.pare("generate", "model", PROMPT, "--stop", b"a\xff".decode(errors="surrogateescape"), "-n", "1")
    place.report.check("a stop string that is not UTF-8", ended(stop, 1, ["--stop: the byte at 1 is not UTF-8"]))
    place.report.check("FILE, not several", ended(place.pare("generate", "--help"), 0, ["--file FILE  ", "--stop TEXT  "], ["FILE ...", "--stop TEXT ..."]))


def check_stdin_note(place):
    config = place.folder / "model" / "config.json"
    before = config.read_text()
    config.write_text(json.dumps(json.loads(before) | {"bos_token_id": 65}))
    words = ["generate", "model", "-n", "1", "--ignore-unknown-keys"]
    (place.folder / "prompt.txt").write_text(PROMPT)
    for name, options, noted in (("a pipe", {"input": "the cat\n"}, True), ("a file", {"stdin": (place.folder / "prompt.txt").open()}, True), ("an empty pipe", {"input": ""}, False),
                                 ("nothing", {"stdin": subprocess.DEVNULL}, False)):
        result = place.pare(*words, **options)
        place.report.check(f"no prompt, and {name} as stdin", ended(result, 0, ["give - as PROMPT"] if noted else [], [] if noted else ["as PROMPT"]))
    config.write_text(before)


def check_generation_config(place):
    """What transformers would apply and pare does not is said, once; what is neutral, or was given, is not."""
    path = place.folder / "model" / "generation_config.json"
    lacking = {"no_repeat_ngram_size": 3, "suppress_tokens": [1], "begin_suppress_tokens": [2], "bad_words_ids": [[1]], "min_new_tokens": 5, "min_length": 7, "forced_eos_token_id": 2, "forced_bos_token_id": 0, "num_beams": 4}
    neutral = {"repetition_penalty": 1.0, "no_repeat_ngram_size": 0, "suppress_tokens": None, "bad_words_ids": [], "min_length": 0, "num_beams": 1, "do_sample": False, "temperature": 0.6, "top_k": 20, "max_length": 20}
    for settings, flags, found, absent in (
        (lacking, [], ["generation_config.json sets", "pare has no setting for", *lacking], ["give --"]), (neutral, [], [], ["warning: model/generation_config.json"]), ({"repetition_penalty": 1.25}, [], ["repetition_penalty 1.25", "give --repetition-penalty 1.25"], ["no setting"]),
        ({"repetition_penalty": 1.25}, ["--repetition-penalty", "1"], [], ["generation_config.json"]), ({"do_sample": True, "temperature": 0.6, "top_p": 0.9, "typical_p": 0.5}, [], ["do_sample", "--temperature 0.6 --top-k 50 --top-p 0.9", "no setting for typical_p"], []),
        ({"do_sample": True, "temperature": 0.6}, ["--temperature", "0"], [], ["generation_config.json"]), ({"stop_strings": ["a b"]}, [], ["give --stop 'a b'"], []), ({"stop_strings": "x"}, ["--stop", "x"], [], ["generation_config.json"]),
    ):
        path.write_text(json.dumps(settings))
        result = place.pare("generate", "model", PROMPT, "-n", "1", *flags, env={**os.environ, "COLUMNS": "1000"})
        place.report.check(f"{settings} with {flags}", ended(result, 0, found, absent) or ("" if result.stderr.count("which transformers would apply") <= 1 else result.stderr))
    path.unlink()


def check_digits(place):
    """Logits are float32 also where the weights are float64: no digit is shown that they do not have."""
    said = place.one("model", PROMPT, "--dtype", "float64")["log_probabilities"]
    place.report.check("seven digits", expect(said, [float(f"{each:.7g}") for each in said]))
    place.report.check("and help says so", ended(place.pare("generate", "--help"), 0, ["Logits are\nfloat32"]))


def check_signal(place):
    process = subprocess.Popen([str(PARE), "generate", "endless", PROMPT, "-n", "10000000"], cwd=place.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    os.read(process.stdout.fileno(), 30)
    os.read(process.stdout.fileno(), 30)
    process.send_signal(signal.SIGTERM)
    errors = process.communicate(timeout=300)[1]
    place.report.check("another signal is not called Ctrl-C", expect((process.returncode, b"ended by a signal" in errors, b"Ctrl-C" in errors), (130, True, False)))


def processor_seconds(process):
    fields = pathlib.Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def check_interrupt(place):
    command = [str(PARE), "generate", "endless", PROMPT, "-n", "10000000"]
    process = subprocess.Popen(command, cwd=place.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    shown = b""
    while len(shown) < 60 and (piece := os.read(process.stdout.fileno(), 100)):
        shown += piece
    process.send_signal(signal.SIGINT)
    rest, errors = process.communicate(timeout=300)
    text = (shown + rest).decode()
    wrong = "" if text.startswith(PROMPT) and text.endswith("\n") and b"ended by Ctrl-C" in errors else f"{text[-200:]!r}, {errors}"
    place.report.check("Ctrl-C shows what there is", wrong or expect(process.returncode, 130))
    for seconds in (0.5, 5, 50):  # of work: by then the model is loaded, but for slow machines
        process = subprocess.Popen([*command, "--json"], cwd=place.folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        while processor_seconds(process) < seconds:
            pass
        process.send_signal(signal.SIGINT)
        document = json.loads(process.communicate(timeout=300)[0] or "{}")  # nothing: it had not even begun
        if "generations" in document:
            break
    said = document.get("generations", [{}])[0]
    place.report.check("and so with --json", expect((process.returncode, document["error"]["kind"], said.get("finish"), len(said.get("tokens", [])) > 0, len(said.get("tokens", []))),
                                                    (130, "interrupted", "interrupted", True, len(said.get("log_probabilities", [])))))


def check_reader_gone(place):
    """As with `| head`: nobody reads on, so nothing more is written, and that is no error."""
    process = subprocess.Popen([str(PARE), "generate", "endless", PROMPT, "-n", "10000000"], cwd=place.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    os.read(process.stdout.fileno(), 10)
    process.stdout.close()
    try:
        place.report.check("a reader that goes away", expect((process.wait(timeout=120), process.stderr.read()), (0, b"")))
    except subprocess.TimeoutExpired:
        process.kill()
        place.report.check("a reader that goes away", "it went on writing")
    process.stderr.close()


def main():
    report = Report("generate")
    with tempfile.TemporaryDirectory() as folder:
        place = Place(report, pathlib.Path(folder))
        check_greedy(place)
        check_types(place)
        check_settings(place)
        check_prompts(place)
        check_ends(place)
        check_refusals(place)
        check_encodings(place)
        check_stdin_note(place)
        check_generation_config(place)
        check_digits(place)
        check_signal(place)
        check_interrupt(place)
        check_reader_gone(place)
    report.finish()


if __name__ == "__main__":
    main()
