#!/usr/bin/env python3
"""`pare generate --chat` as people use it: turns from a terminal and from a pipe, what is read again and what is kept, Ctrl-C, refusals."""

import json
import os
import pathlib
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from report import PARE, Report, ended, expect, pare
from text import ARCHITECTURE

SPECIAL = {"<|end|>": 290, "<|user|>": 291, "<|assistant|>": 292, "<|system|>": 293, "<s>": 294}
# One token for each character, so that what is drawn is read again as it was.
LETTERS = [*map(chr, range(32, 127)), *map(chr, range(0xC0, 0xC0 + 195)), *SPECIAL, *map(chr, range(0x400, 0x405))]
VOCABULARY = {letter: number for number, letter in enumerate(LETTERS)}
TOKENIZER = {"added_tokens": [{"id": number, "content": token, "special": True} for token, number in SPECIAL.items()],
             "model": {"type": "BPE", "vocab": {letter: number for letter, number in VOCABULARY.items() if letter not in SPECIAL}, "merges": []},
             "decoder": {"type": "Fuse"},  # and what stands before a plain text, but before no conversation:
             "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}], "pair": [],
                                "special_tokens": {"<s>": {"id": "<s>", "ids": [294], "tokens": ["<s>"]}}}}
TEMPLATE = "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% if m.role != 'assistant' or not loop.last %}<|end|>{% endif %}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
# Answers of earlier turns are not shown again, as templates do that drop old thoughts.
FORGETFUL = "{% for m in messages if m.role == 'user' %}<|user|>{{ m.content }}{% endfor %}<|assistant|>"


def ids_of(text):
    """Special tokens wherever they stand, and the rest by hand."""
    for token, number in SPECIAL.items():
        if token in text:
            before, _, after = text.partition(token)
            return ids_of(before) + [number] + ids_of(after)
    return [VOCABULARY[letter] for letter in text]


def written(messages):
    return "<s>" + "".join(f"<|{role}|>{content}<|end|>" for role, content in messages) + "<|assistant|>"


class Place:
    def __init__(self, report, folder):
        self.report, self.folder = report, folder
        for name, context in (("model", 200), ("endless", 10**7)):
            (folder / f"{name}.json").write_text(json.dumps(ARCHITECTURE | {"context": context, "embedding": {}}))
            report.check(f"init {name}", ended(self.pare("init", f"{name}.json", "-o", name, "--generic")))
            (folder / name / "tokenizer.json").write_text(json.dumps(TOKENIZER))
            (folder / name / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE, "bos_token": {"content": "<s>"}}))

    def pare(self, *words, **options):
        return pare(*words, cwd=self.folder, **options)

    def chat(self, *words, **options):
        return self.pare("generate", "model", "--chat", "-n", "12", *words, **{"input": "", **options})

    def document(self, *words, **options):
        result = self.chat(*words, "--json", **options)
        if result.returncode != 0:
            raise RuntimeError(result.stdout + result.stderr)
        return json.loads(result.stdout)

    def fresh(self, ids, count):
        """What the model says to these tokens, read anew."""
        (self.folder / "ids.json").write_text(json.dumps([ids]))
        result = self.pare("generate", "model", "--tokens", "ids.json", "-n", str(count), "--json")
        return json.loads(result.stdout)["generations"][0]["tokens"]

    def answers(self, said, name):
        """Each answer: what was read for it, and that the tokens are those of a fresh read."""
        messages, before = said["messages"], []
        for message in messages:
            if message["role"] == "assistant":
                if name != "forgetful":
                    self.report.check(f"{name}: what was read", expect(message["prompt_tokens"], ids_of(written(before))))
                self.report.check(f"{name}: as from a fresh read", expect(message["tokens"], self.fresh(message["prompt_tokens"], 12)))
            before.append((message["role"], message["content"]))
        return [message for message in messages if message["role"] == "assistant"]


def check_turns(place):
    said = place.document(input="the cat\nGrüße\nthe mat <|end|>\n")
    found = place.answers(said, "three turns")
    place.report.check("roles", expect([each["role"] for each in said["messages"]], ["user", "assistant"] * 3))
    place.report.check("what was typed", expect([each["content"] for each in said["messages"][::2]], ["the cat", "Grüße", "the mat <|end|>"]))
    kept = [each["kept_tokens"] for each in found]
    # All that was read, and all that was drawn but the last, which was never read.
    place.report.check("what was read stays", expect(kept[0], 0) or expect(kept[1], len(found[0]["prompt_tokens"]) + 11) or expect(kept[2], len(found[1]["prompt_tokens"]) + 11))
    told = place.document("--system", "the", input="the cat\n")
    place.report.check("a system message", expect([each["role"] for each in told["messages"]], ["system", "user", "assistant"]))
    place.answers(told, "with a system message")
    (place.folder / "forgetful.jinja").write_text(FORGETFUL)
    found = place.answers(place.document("--chat-template", "forgetful.jinja", input="a\nb\nc"), "forgetful")
    place.report.check("read anew where the beginning changed", expect([each["kept_tokens"] for each in found], [0, 0, 0]))
    hot = place.document("--temperature", "2", input="the cat\nthe mat\n")
    again = place.document("--temperature", "2", input="the cat\nthe mat\n")
    place.report.check("one seed, one conversation", expect(hot["messages"], again["messages"]))


def check_text(place):
    said = [each["content"] for each in place.document(input="the cat\nx\n")["messages"]]
    plain = place.chat(input="the cat\n\nx")
    place.report.check("answers on stdout, a line between them", expect(plain.stdout, f"{said[1]}\n\n{said[3]}\n"))
    place.report.check("no prompt without a terminal", ended(plain, 0, ["tokens read", "--max-tokens (2)"], ["> "]))
    one = place.chat("the cat", input="")
    place.report.check("one message", expect((one.returncode, one.stdout), (0, said[1] + "\n")))
    more = place.chat("the cat", input="x\n")
    place.report.check("a message, and lines of stdin after it", expect((more.returncode, more.stdout), (0, plain.stdout)))
    for end in ("/exit", "/quit", "/exit  "):
        again = place.document(input=f"y\n/reset \nthe cat\n/help\t\n{end}\nnot read\n")["messages"]
        place.report.check(f"/reset, /help and {end!r}", expect([each["content"] for each in again], said[:2]) or expect(again[1]["kept_tokens"], 0))
    helped = place.chat(input="/help\n")
    place.report.check("/help", ended(helped, 0, ["/reset", "/exit", "Ctrl-C"]))
    nothing = place.document(input="")
    place.report.check("nothing said", expect(nothing["messages"], []))


def check_ends(place):
    said = place.document(input="the cat\n")["messages"][1]["tokens"]
    (place.folder / "model" / "generation_config.json").write_text(json.dumps({"eos_token_id": [299, said[4]]}))
    answer = place.document(input="the cat\nx\n")["messages"]
    first = said.index(said[4])
    place.report.check("the end of a turn", expect((answer[1]["tokens"], answer[1]["finish"]), (said[: first + 1], "end_of_text")))
    place.report.check("the end that was never read is read with the next message", expect(answer[3]["kept_tokens"], len(answer[1]["prompt_tokens"]) + first))
    (place.folder / "model" / "generation_config.json").unlink()
    full = place.chat(input="the cat\n" * 30)
    place.report.check("a full context", ended(full, 1, ["the conversation has", "reads at most 200", "nothing is dropped", "/reset"]))
    half = place.chat("--json", input="the cat\n" * 30)
    kept = json.loads(half.stdout)
    roles = [each["role"] for each in kept.get("messages", [])]
    line = len(roles) // 2 + 1
    place.report.check("and what was answered before it", expect((half.returncode, kept["error"]["kind"], roles), (1, "input", ["user", "assistant"] * (line - 1)))
                       or ("" if line > 2 and kept["error"]["message"].startswith(f"line {line} of stdin: the conversation has") else kept["error"]["message"]))
    last = place.pare("generate", "model", "--chat", "--json", "-n", "1000", input="the cat\n")
    place.report.check("an answer up to the end of the context", expect(json.loads(last.stdout)["messages"][1]["finish"], "context") or ended(last, 0, ["the context is full"]))


def check_templates(place):
    """Where transformers looks for a template, in its order."""
    folder = place.folder / "model"
    config = folder / "tokenizer_config.json"
    before = config.read_text()

    def begins(name, wanted):
        prompt = place.document(input="x\n")["messages"][1]["prompt_tokens"]
        place.report.check(name, expect(prompt, ids_of(wanted)))

    config.write_text(json.dumps({"chat_template": [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "A{{ bos_token }}{{ eos_token }}"}], "bos_token": "<s>"}))
    begins("the default of several", "A<s>")
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": "B"}))
    begins("tokenizer_config.json before chat_template.json", "A<s>")
    config.write_text("{}")
    begins("chat_template.json", "B")
    (folder / "chat_template.jinja").write_text("C{{ messages[0].content }}\n")
    begins("chat_template.jinja before both", "Cx")
    for text, message in (
        ("{% if %}", ["chat_template.jinja: line 1: ", "expected an expression"]), ("a\n{{ raise_exception('no ' ~ 1) }}", ["line 2: the template refuses this conversation: no 1"]), ("\n\n{{ 1 | urlize }}", ["line 3: the filter urlize: pare does not support this"]),
        ("{% include 'x' %}", ["line 1: the tag 'include'"]), ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", ["does not come to an end"]), ("{{ '' }}", ["the conversation has no tokens"]), ("{{ raise_exception('\\x1b]0;it\\x07') }}", ["conversation: \\x1b]0;it\\x07"]), ("{{ raise_exception('a' * 1000000) }}", ["a" * 300 + "..."]), ("\udcff", ["not UTF-8"]),
    ):
        (folder / "chat_template.jinja").write_bytes(text.encode(errors="surrogateescape"))
        refused = place.chat("x")
        place.report.check(f"refused: {text!r}", ended(refused, 1, message) or ("" if len(refused.stderr) < 2000 else f"{len(refused.stderr)} bytes"))
    for name in ("chat_template.jinja", "chat_template.json"):
        (folder / name).unlink()
    place.report.check("no template", ended(place.chat("x"), 1, ["'model' has no chat template", "--chat-template FILE", "pare generate model"]))
    config.write_text('{"chat_template": [{"name": "rag", "template": "x"}]}')
    place.report.check("no default", ended(place.chat("x"), 1, ["tokenizer_config.json: chat_template is a list of 'rag'", "'default'"]))
    config.write_text(before)


def check_refusals(place):
    shutil.copytree(place.folder / "model", place.folder / "bare")
    (place.folder / "bare" / "tokenizer.json").unlink()
    (place.folder / "ids.json").write_text("[[1]]")
    for words, message in (
        (["model", "--chat", "--tokens", "ids.json"], ["--tokens is given beside --chat"]), (["model", "--chat", "--file", "ids.json"], ["--file is given beside --chat"]), (["model", "--chat", "a", "b"], ["one message as PROMPT"]), (["model", "--chat", "-"], ["one message as PROMPT"]),
        (["model", "a", "--system", "b"], ["--system is for a conversation: give --chat"]), (["model", "a", "--chat-template", "b"], ["--chat-template is for a conversation"]), (["bare", "--chat", "a"], ["'bare' holds no tokenizer", "--tokenizer"]), (["model", "--chat", "a", "--chat-template", "none"], ["none"]),
    ):
        place.report.check(f"refused: {words}", ended(place.pare("generate", *words, input=""), 1, message, ["--tokens FILE in place of"]))
    wrong = place.pare("generate", "model", "--chat", input=b"a\xff\n", text=False)
    place.report.check("not UTF-8", ended(subprocess.CompletedProcess([], wrong.returncode, wrong.stdout.decode(), wrong.stderr.decode()), 1, ["line 1 of stdin: the byte at 1 is not UTF-8"]))


class Terminal:
    """The command with a terminal on all three."""

    def __init__(self, place, *words):
        self.hand, screen = os.openpty()
        self.process = subprocess.Popen([str(PARE), "generate", *words], cwd=place.folder, stdin=screen, stdout=screen, stderr=screen, env={**os.environ, "TERM": "xterm"})
        os.close(screen)
        self.shown = b""

    def read(self, enough):
        """Up to where `enough` says so of what was shown since the last call, or the end."""
        begin = len(self.shown)
        while not enough(self.shown[begin:]):
            if not select.select([self.hand], [], [], 120)[0]:
                self.process.kill()
                break
            try:
                piece = os.read(self.hand, 65536)
            except OSError:  # how a terminal says that nobody writes any more
                break
            if not piece:
                break
            self.shown += piece
        return self.shown[begin:].decode(errors="replace")

    def type(self, text):
        os.write(self.hand, text.encode())

    def end(self):
        self.read(lambda shown: False)
        code = self.process.wait(timeout=120)
        os.close(self.hand)
        return code


def check_terminal(place):
    screen = Terminal(place, "endless", "--chat", "-n", "1000000000")
    place.report.check("a prompt", expect(screen.read(lambda shown: shown.endswith(b"> ")).replace("\r", "")[-2:], "> "))
    screen.type("the cat\n")
    screen.read(lambda shown: len(shown) > 300)
    screen.process.send_signal(signal.SIGINT)
    rest = screen.read(lambda shown: shown.endswith(b"> "))
    place.report.check("Ctrl-C ends the answer, and the conversation goes on", "" if rest.endswith("\r\n> ") and screen.process.poll() is None else repr(rest[-200:]))
    screen.type("/help\n")
    place.report.check("/help on a terminal", "" if "/reset" in screen.read(lambda shown: shown.endswith(b"> ")) else "nothing")
    screen.type("the mat\n")
    screen.read(lambda shown: len(shown) > 300)
    screen.process.send_signal(signal.SIGINT)
    screen.read(lambda shown: shown.endswith(b"> "))
    screen.process.send_signal(signal.SIGINT)
    place.report.check("Ctrl-C at the prompt ends it", expect(screen.end(), 130))
    place.report.check("a terminal obeys nothing", "" if b"\x1b" not in screen.shown.replace(b"\r\x1b[K", b"") else repr(screen.shown[:300]))
    screen = Terminal(place, "model", "--chat", "-n", "3", "the cat")
    screen.read(lambda shown: shown.endswith(b"> "))
    screen.type("the cat" * 40 + "\n")
    told = screen.read(lambda shown: shown.endswith(b"> "))
    place.report.check("a message that does not fit, on a terminal", "" if "reads at most 200" in told.replace("\r\n", " ") else repr(told))
    screen.type("x\n")
    screen.read(lambda shown: shown.endswith(b"> "))
    screen.type("\x04")
    place.report.check("Ctrl-D ends it well", expect(screen.end(), 0))
    screen = Terminal(place, "endless", "--chat", "-n", "1000000000", "the cat")
    screen.read(lambda shown: len(shown) > 300)
    screen.process.send_signal(signal.SIGTERM)
    place.report.check("another signal ends more than the answer", expect(screen.end(), 130))


def check_damaged(place):
    """A token whose embedding overflows: an answer to it ends by an error, and the next one is read anew."""
    blocks = [{**block, "attention": {key: value for key, value in block["attention"].items() if key != "norm"}} for block in ARCHITECTURE["blocks"]]
    (place.folder / "damaged.json").write_text(json.dumps(ARCHITECTURE | {"context": 200, "embedding": {}, "blocks": blocks}))
    place.report.check("init damaged", ended(place.pare("init", "damaged.json", "-o", "damaged", "--generic")))
    folder = place.folder / "damaged"
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(place.folder / "model" / name, folder)
    path = folder / "model.safetensors"
    data = bytearray(path.read_bytes())
    size = int.from_bytes(data[:8], "little")
    table = next(tensor for name, tensor in json.loads(data[8: 8 + size]).items() if "embed" in name and tensor["shape"][0] == len(LETTERS))
    begin = 8 + size + table["data_offsets"][0] + 4 * table["shape"][1] * VOCABULARY["Z"]
    data[begin: begin + 4 * table["shape"][1]] = struct.pack("<f", 3e38) * table["shape"][1]
    path.write_bytes(data)
    said = place.pare("generate", "damaged", "--chat", "-n", "12", "--json", input="the cat\nx\n")
    whole = [each["content"] for each in json.loads(said.stdout)["messages"]]
    screen = Terminal(place, "damaged", "--chat", "-n", "12")
    shown = []
    for line in ("the cat", "aZb", "x"):
        screen.read(lambda shown: shown.endswith(b"> "))
        screen.type(line + "\n")
        shown.append(screen.read(lambda shown: shown.endswith(b"> ")))
        os.write(screen.hand, b"\n")
    screen.type("\x04")
    code = screen.end()
    place.report.check("a conversation goes on after an answer that failed", expect(code, 0)
                       or ("" if "not all finite" in shown[1].replace("\r\n  ", " ") and whole[1] in shown[0] and whole[3] in shown[2] else f"{shown}"))


def check_long_line(place):
    """What the terminal's line mode cuts is not answered as if it were all."""
    screen = Terminal(place, "endless", "--chat", "-n", "2")
    screen.read(lambda shown: shown.endswith(b"> "))
    screen.type("a" * 5000 + "\n")
    said = screen.read(lambda shown: shown.endswith(b"> ")).replace("\r\n  ", " ")
    screen.type("\x04")
    place.report.check("a line that the terminal cuts", expect(screen.end(), 0) or ("" if "cuts lines at 4,095 bytes" in said and b"tokens read" not in screen.shown else said[-300:]))


def check_no_answer(place):
    """Ctrl-C before the first token: the message that got no answer is no part of the conversation."""
    process = subprocess.Popen([str(PARE), "generate", "endless", "--chat", "--json", "-n", "2"], cwd=place.folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdin.write(b"the cat\n")
    process.stdin.flush()
    os.read(process.stderr.fileno(), 10)  # what was said of the first answer
    process.stdin.write(b"the " * 25000 + b"\n")
    process.stdin.flush()
    time.sleep(0.3)  # by then it is being read, or that takes a while: the outcome is the same
    process.send_signal(signal.SIGINT)
    document = json.loads(process.communicate(timeout=300)[0])
    place.report.check("Ctrl-C before the first token", expect((process.returncode, [each["role"] for each in document["messages"]]), (130, ["user", "assistant"])))


def check_interrupt(place):
    """From a pipe: it ends, with what there is."""
    process = subprocess.Popen([str(PARE), "generate", "endless", "--chat", "-n", "1000000000"], cwd=place.folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdin.write(b"the cat\n")
    process.stdin.flush()
    os.read(process.stdout.fileno(), 10)
    process.send_signal(signal.SIGINT)
    rest, errors = process.communicate(timeout=300)
    place.report.check("Ctrl-C with a pipe", expect((process.returncode, rest[-1:], b"Ctrl-C" in errors), (130, b"\n", True)))
    waiting = subprocess.Popen([str(PARE), "generate", "model", "--chat", "--json", "-n", "2"], cwd=place.folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    waiting.stdin.write(b"the cat\n")
    waiting.stdin.flush()
    os.read(waiting.stderr.fileno(), 10)  # what was said of the first answer
    waiting.send_signal(signal.SIGINT)
    document = json.loads(waiting.communicate(timeout=300)[0])
    place.report.check("and so with --json", expect((waiting.returncode, document["error"]["kind"], len(document["messages"])), (130, "interrupted", 2)))


def main():
    report = Report("chat")
    with tempfile.TemporaryDirectory() as folder:
        place = Place(report, pathlib.Path(folder))
        check_turns(place)
        check_text(place)
        check_ends(place)
        check_templates(place)
        check_refusals(place)
        check_terminal(place)
        check_damaged(place)
        check_long_line(place)
        check_no_answer(place)
        check_interrupt(place)
    report.finish()


if __name__ == "__main__":
    main()
