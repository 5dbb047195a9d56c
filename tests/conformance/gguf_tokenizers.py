#!/usr/bin/env python3
"""The tokenizer inside a GGUF file: the ids of the tokenizers package for the tokenizer that was written into it.

Also what goes with it: the chat template, as transformers renders it, and the tokens that begin and end a text.
"""

import json
import pathlib
import struct
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from report import SHARED, Report, pare  # noqa: E402  (the folder above is not a package)

Report("gguf tokenizers").peers("gguf", "transformers", "tokenizers")
import gguf  # noqa: E402
from nasty_text import nasty_lines  # noqa: E402
from tokenizer_ids import BYTES, LLAMA3, QWEN2, TOKENIZE, Case, byte_level, sentence_piece, split, word_piece  # noqa: E402
from tokenizers import Regex, Tokenizer, pre_tokenizers  # noqa: E402

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|"
    r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
KINDS = gguf.TokenType
BEGIN = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}], "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}], "special_tokens": {"<|endoftext|>": {"id": "<|endoftext|>", "ids": [0], "tokens": ["<|endoftext|>"]}}}


def tokens_of(stored):
    """In the order of their ids, and of what kind each is."""
    ids = dict(stored["model"]["vocab"])
    special = {token["content"] for token in stored["added_tokens"] if token["special"]}
    tokens = sorted(ids, key=ids.get)
    kinds = [KINDS.UNKNOWN if t == "<unk>" else KINDS.CONTROL if t in special else KINDS.BYTE if t in BYTES else KINDS.NORMAL for t in tokens]
    return tokens, kinds


def finish(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def write_byte_level(path, stored, pre, begins=None, first=0):
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("gpt2")
    if pre:
        writer.add_tokenizer_pre(pre)
    tokens, kinds = tokens_of(stored)
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges([" ".join(pair) if isinstance(pair, list) else pair for pair in stored["model"]["merges"]])
    writer.add_add_space_prefix(True)  # which llama.cpp does not look at here
    writer.add_bos_token_id(first)
    if begins is not None:
        writer.add_add_bos_token(begins)
    finish(writer)


def write_sentence_piece(path, stored, scores, prefix=None):
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    tokens, kinds = tokens_of(stored)
    writer.add_token_list(tokens)
    writer.add_token_scores([scores.get(token, 0.0) for token in tokens])
    writer.add_token_types(kinds)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    if prefix is not None:
        writer.add_add_space_prefix(prefix)
    finish(writer)


def write_word_piece(path, stored):
    """As the converter writes them: a sign before what begins a word, and nothing before what continues one."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("bert")
    tokens, kinds = tokens_of(stored)
    written = [t if k == KINDS.CONTROL else t[2:] if t.startswith("##") else "\u2581" + t for t, k in zip(tokens, kinds)]
    writer.add_token_list(written)
    writer.add_token_types(kinds)
    writer.add_bos_token_id(tokens.index("[CLS]"))
    writer.add_sep_token_id(tokens.index("[SEP]"))
    writer.add_unk_token_id(tokens.index("[UNK]"))
    finish(writer)


def with_all_splits(stored):
    """Merges as scores imply them: each token can be joined of any two. And those scores."""
    vocabulary = stored["model"]["vocab"]
    scores = {}
    for rank, pair in enumerate(stored["model"]["merges"]):
        scores.setdefault("".join(pair), -float(rank + 1))
    merges = []
    for token in sorted(scores, key=scores.get, reverse=True):
        pairs = [[token[:cut], token[cut:]] for cut in range(1, len(token))]
        merges += [pair for pair in pairs if pair[0] in vocabulary and pair[1] in vocabulary]
    stored["model"]["merges"] = merges
    return scores


def cases(corpus, folder):
    byte = pre_tokenizers.ByteLevel
    digits = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(r"\p{N}"), "isolated"), byte(add_prefix_space=False)])
    falcon = split([r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"])
    for name, pre_tokenizer, options, more in (
        ("gpt-2", byte(add_prefix_space=False), {}, {}),
        ("llama-bpe", split(LLAMA3), {"ignore_merges": True}, {"post_processor": BEGIN}),
        ("qwen2", split(QWEN2), {}, {"normalizer": {"type": "NFC"}}),
        ("tekken", split(TEKKEN), {"ignore_merges": True}, {"post_processor": BEGIN}),
        ("starcoder", digits, {}, {}),
        ("falcon", falcon, {}, {}),
    ):
        stored = byte_level(corpus, pre_tokenizer, **options) | more
        path = folder / f"{name}.gguf"
        write_byte_level(path, stored, name)
        yield Case(f"pre {name}", Tokenizer.from_str(json.dumps(stored)), path)
    for prefix in (True, False):
        stored = sentence_piece(corpus)
        scores = with_all_splits(stored)
        if not prefix:  # as Gemma's
            stored["normalizer"] = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
            stored["decoder"]["decoders"].pop()
        path = folder / f"spm{prefix}.gguf"
        write_sentence_piece(path, stored, scores, None if prefix else False)
        yield Case(f"SentencePiece, {'with' if prefix else 'without'} a space before", Tokenizer.from_str(json.dumps(stored)), path)
    stored = word_piece(corpus)
    stored["model"]["max_input_chars_per_word"] = 100
    stored["decoder"]["cleanup"] = True
    path = folder / "bert.gguf"
    write_word_piece(path, stored)
    yield Case("WordPiece", Tokenizer.from_str(json.dumps(stored)), path)


def check_refused(report, corpus, folder):
    stored = byte_level(corpus, pre_tokenizers.ByteLevel(add_prefix_space=False))
    (folder / "text.txt").write_text("a text\n")

    def refused(case, path, *words):
        done = subprocess.run([TOKENIZE, "encode", path, folder / "text.txt", folder / "ids"], capture_output=True, text=True)
        missing = [word for word in words if word not in done.stderr]
        report.check(case, "" if done.returncode == 1 and not missing else f"{done.returncode}: no {missing} in {done.stderr}")

    path = folder / "refused.gguf"
    write_byte_level(path, stored, "")
    refused("a file that does not say how words are split", path, "tokenizer.ggml.pre", "would be a guess")
    write_byte_level(path, stored, "default")
    refused("one that says 'default'", path, "'default'", "would be a guess")
    write_byte_level(path, stored, "kimi-k2")
    refused("a name that pare does not know", path, "'kimi-k2'", "llama-bpe", "--tokenizer")
    write_byte_level(path, stored, "gpt-2", begins=True, first=999_999)
    refused("a token that is not there", path, "999999")
    for model in ("t5", "rwkv"):
        writer = gguf.GGUFWriter(path, "llama")
        writer.add_tokenizer_model(model)
        finish(writer)
        refused(f"the kind {model}", path, f"'{model}'", "gpt2", "SentencePiece")
    writer = gguf.GGUFWriter(path, "llama")
    finish(writer)
    refused("no tokenizer", path, "holds no tokenizer")


TEMPLATE = "{% for m in messages %}{{ bos_token if loop.first }}[{{ m['role'] }}] {{ m['content'] }}{{ eos_token }}\n{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"


def check_generation(report, corpus, folder):
    """A whole model: a text is continued, a chat rendered, and both end where the metadata say."""
    import gguf_files
    import gguf_writer
    import transformers

    stored = byte_level(corpus, split(LLAMA3), ignore_merges=True)
    tokens, kinds = tokens_of(stored)
    config = transformers.LlamaConfig(**gguf_files.GROUPED | dict(vocab_size=len(tokens), max_position_embeddings=256))
    model = gguf_files.drawn(transformers, config)

    def tokenizer(writer):
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("llama-bpe")
        writer.add_token_list(tokens)
        writer.add_token_types(kinds)
        writer.add_token_merges([" ".join(pair) for pair in stored["model"]["merges"]])
        writer.add_bos_token_id(0)
        writer.add_eos_token_id(1)
        writer.add_chat_template(TEMPLATE)

    path = folder / "chat.gguf"
    gguf_writer.write(path, model, tokenizer=tokenizer)
    peer = Tokenizer.from_str(json.dumps(stored))
    result = pare("generate", path, "First Citizen:", "-n", "6", "--json")
    found = json.loads(result.stdout)["generations"][0] if result.returncode == 0 else {"prompt_tokens": result.stderr, "tokens": []}
    expected = [0, *peer.encode("First Citizen:").ids]
    report.check("a prompt", "" if found["prompt_tokens"] == expected else f"{found['prompt_tokens']}, expected {expected}")
    ids, greedy = expected, []
    for _ in range(6):
        greedy.append(int(gguf_files.answers(model, ids)[-1].argmax()))
        ids = [*ids, greedy[-1]]
        if greedy[-1] == 1:
            break
    report.check("its continuation", "" if found["tokens"] == greedy else f"{found['tokens']}, expected {greedy}")

    rendered = transformers.PreTrainedTokenizerFast(tokenizer_object=peer, bos_token="<|endoftext|>", eos_token="<|end of text|>")
    text = rendered.apply_chat_template([{"role": "user", "content": "Speak, speak."}], chat_template=TEMPLATE, add_generation_prompt=True, tokenize=False)
    result = pare("generate", path, "Speak, speak.", "--chat", "-n", "2", "--json", input="")
    found = result.stdout if result.returncode == 0 else result.stderr
    wanted = peer.encode(text).ids
    report.check("a chat", "" if json.dumps(wanted) in json.dumps(json.loads(found)) else f"{found}, expected {wanted}")

    (folder / "text.txt").write_text("ROMEO: what light through yonder window breaks?\n" * 3)
    result = pare("run", path, "--text", folder / "text.txt", "-o", folder / "out.safetensors", "--force")
    report.check("run on a text", "" if result.returncode == 0 else result.stderr)


def check_stories(report, folder):
    """A model that somebody trained, and its SentencePiece tokens: the same story from both files."""
    import gguf_writer
    import torch
    import transformers

    source = SHARED / "models/stories260K"
    if not source.exists():
        report.skip("stories260K", f"{source} is not there")
        return
    data, at = (source / "tok512.bin").read_bytes(), 4
    tokens, scores = [], []
    while at < len(data):
        score, length = struct.unpack_from("<fi", data, at)
        tokens.append(data[at + 8 : at + 8 + length].decode().replace(" ", "▁"))
        scores.append(score)
        at += 8 + length
    tokens[:3] = ["<unk>", "<s>", "</s>"]
    kinds = [KINDS.UNKNOWN, KINDS.CONTROL, KINDS.CONTROL, *[KINDS.BYTE] * 256]

    def tokenizer(writer):
        writer.add_tokenizer_model("llama")
        writer.add_token_list(tokens)
        writer.add_token_scores(scores)
        writer.add_token_types(kinds + [KINDS.NORMAL] * (len(tokens) - len(kinds)))
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)

    model = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    path = folder / "stories.gguf"
    gguf_writer.write(path, model, tokenizer=tokenizer)
    told = [pare("generate", which, "Once upon a time", "-n", "60", "--json") for which in (source, path)]
    told = [json.loads(each.stdout)["generations"][0] if each.returncode == 0 else {"tokens": each.stderr, "text": ""} for each in told]
    same = told[0]["tokens"] == told[1]["tokens"] and told[0]["text"] == told[1]["text"] and len(told[0]["text"]) > 60
    report.check("stories260K", "" if same else f"{told[1]}, expected {told[0]}")


def main():
    report = Report("gguf tokenizers")
    if not (SHARED / "data/text/tinyshakespeare.txt").exists():
        report.skip("all", f"{SHARED}/data/text is not there")
        report.finish()
    corpus = (SHARED / "data/text/tinyshakespeare.txt").read_text().splitlines(keepends=True)[:6000]
    lines = nasty_lines(1000)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for case in cases(corpus, folder):
            case.check_lines(report, lines, folder)
        check_refused(report, corpus, folder)
        check_generation(report, corpus, folder)
        check_stories(report, folder)
    report.finish()


if __name__ == "__main__":
    main()
