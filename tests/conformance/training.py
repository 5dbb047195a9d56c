#!/usr/bin/env python3
"""The first 20 losses of a run are those of transformers and torch.optim.AdamW, from the same start and the same data.

Peer: the model's own classes, for shaped attention plain PyTorch, eager attention, cross-entropy over all logits at once,
AdamW in its plain loop over tensors, clip_grad_norm_. The start is checkpoint 0 of the run, the batches are cut out of the
text by order.i32. With a teacher, kl_div over all logits at once.
"""

import json
import math
import pathlib
import random
import sys
import tempfile

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent.parent), str(pathlib.Path(__file__).resolve().parent)]
from report import Report, pare  # noqa: E402
from training_peer import gpt2_shaped, rate  # noqa: E402

STEPS, CONTEXT, BATCH, ACCUMULATE, VOCAB, WIDTH, LAYERS, HEADS = 20, 24, 3, 2, 256, 32, 2, 4
OPTIMISER = {"lr": 3e-3, "min_lr": 1e-4, "warmup": 5, "betas": [0.9, 0.95], "decay": 0.1, "clip": 1.0}
TAUGHT = {"weight": 0.6, "temperature": 1.7}
TOLERANCES = {"float64": 1e-9, "float32": 1e-4}
RMS_NORM = {"kind": "rms", "epsilon": 1e-6}


def llama_architecture():
    return {"width": WIDTH, "vocab": VOCAB, "context": CONTEXT,
            "blocks": [{"repeat": LAYERS,
                        "attention": {"heads": HEADS, "kv_heads": 2, "head_width": WIDTH // HEADS, "norm": RMS_NORM, "rope": {"theta": 10000}},
                        "mlp": {"width": 88, "activation": "silu", "gated": True, "norm": RMS_NORM}}],
            "final_norm": RMS_NORM}


def gpt2_peer(transformers, ours):
    import torch

    config = transformers.GPT2Config(vocab_size=VOCAB, n_positions=CONTEXT, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS, resid_pdrop=0,
                                     embd_pdrop=0, attn_pdrop=0, attn_implementation="eager")
    model = transformers.GPT2LMHeadModel(config)
    state = {"transformer.wte.weight": ours["embed.token.weight"], "transformer.wpe.weight": ours["embed.position.weight"],
             "transformer.ln_f.weight": ours["norm.weight"], "transformer.ln_f.bias": ours["norm.bias"], "lm_head.weight": ours["embed.token.weight"]}
    for n in range(LAYERS):
        a, m, h = f"blocks.{n}.attention.", f"blocks.{n}.mlp.", f"transformer.h.{n}."
        for kind in ("weight", "bias"):
            joined = torch.cat([ours[f"{a}{part}.{kind}"] for part in ("query", "key", "value")])
            state |= {h + f"attn.c_attn.{kind}": joined.t() if kind == "weight" else joined}
            for theirs, mine in (("attn.c_proj", a + "output"), ("mlp.c_fc", m + "up"), ("mlp.c_proj", m + "down")):
                state[h + f"{theirs}.{kind}"] = ours[f"{mine}.{kind}"].t() if kind == "weight" else ours[f"{mine}.{kind}"]
            state |= {h + f"ln_1.{kind}": ours[f"{a}norm.{kind}"], h + f"ln_2.{kind}": ours[f"{m}norm.{kind}"]}
    return model, state


def llama_peer(transformers, ours):
    config = transformers.LlamaConfig(vocab_size=VOCAB, max_position_embeddings=CONTEXT, hidden_size=WIDTH, num_hidden_layers=LAYERS,
                                      num_attention_heads=HEADS, num_key_value_heads=2, intermediate_size=88, rms_norm_eps=1e-6,
                                      tie_word_embeddings=False, attn_implementation="eager")
    model = transformers.LlamaForCausalLM(config)
    state = {"model.embed_tokens.weight": ours["embed.token.weight"], "model.norm.weight": ours["norm.weight"], "lm_head.weight": ours["head.weight"]}
    for n in range(LAYERS):
        h = f"model.layers.{n}."
        for theirs, mine in (("self_attn.q_proj", "attention.query"), ("self_attn.k_proj", "attention.key"), ("self_attn.v_proj", "attention.value"),
                             ("self_attn.o_proj", "attention.output"), ("mlp.gate_proj", "mlp.gate"), ("mlp.up_proj", "mlp.up"),
                             ("mlp.down_proj", "mlp.down"), ("input_layernorm", "attention.norm"), ("post_attention_layernorm", "mlp.norm")):
            state[f"{h}{theirs}.weight"] = ours[f"blocks.{n}.{mine}.weight"]
    return model, state


def shaped_architecture():
    return {"width": WIDTH, "vocab": VOCAB, "context": CONTEXT, "embedding": {"position": "learned"},
            "blocks": [{"repeat": LAYERS,
                        "attention": {"heads": HEADS, "head_width": WIDTH // HEADS, "shaped": True, "skip": False},
                        "mlp": {"width": 2 * WIDTH, "activation": "gelu", "norm": RMS_NORM}}],
            "final_norm": RMS_NORM}


def shaped_peer(transformers, ours):
    """No library has shaped attention: plain PyTorch, written from its definition with matrices of tokens x tokens."""
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.query, self.key, self.value, self.output = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
            self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH, bias=False), nn.Linear(2 * WIDTH, WIDTH, bias=False)
            self.norm = nn.RMSNorm(WIDTH, eps=RMS_NORM["epsilon"])
            self.shape = nn.ParameterList([nn.Parameter(torch.empty(HEADS)) for _ in range(3)])

        def forward(self, x):
            tokens = x.shape[1]
            q, k, v = (p(x).unflatten(2, (HEADS, -1)).transpose(1, 2) for p in (self.query, self.key, self.value))
            seen = torch.ones(tokens, tokens, dtype=torch.bool).tril()
            softmax = (q @ k.transpose(2, 3) / math.sqrt(WIDTH // HEADS)).masked_fill(~seen, -math.inf).softmax(-1)
            uniform = seen.to(x.dtype) / seen.sum(1, keepdim=True)
            alpha, beta, gamma = (p[:, None, None] for p in self.shape)
            mixed = (alpha * torch.eye(tokens, dtype=x.dtype) + beta * softmax - gamma * uniform) @ v
            x = self.output(mixed.transpose(1, 2).flatten(2))
            return x + self.down(nn.functional.gelu(self.up(self.norm(x))))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.token, self.position = nn.Embedding(VOCAB, WIDTH), nn.Embedding(CONTEXT, WIDTH)
            self.blocks = nn.ModuleList([Block() for _ in range(LAYERS)])
            self.norm, self.head = nn.RMSNorm(WIDTH, eps=RMS_NORM["epsilon"]), nn.Linear(WIDTH, VOCAB, bias=False)

        def forward(self, ids):
            x = self.token(ids) + self.position(torch.arange(ids.shape[1]))
            for block in self.blocks:
                x = block(x)
            return type("Answer", (), {"logits": self.head(self.norm(x))})

    state = {"token.weight": ours["embed.token.weight"], "position.weight": ours["embed.position.weight"], "norm.weight": ours["norm.weight"],
             "head.weight": ours["head.weight"]}
    for n in range(LAYERS):
        for theirs, mine in (("query", "attention.query"), ("key", "attention.key"), ("value", "attention.value"), ("output", "attention.output"),
                             ("up", "mlp.up"), ("down", "mlp.down"), ("norm", "mlp.norm")):
            state[f"blocks.{n}.{theirs}.weight"] = ours[f"blocks.{n}.{mine}.weight"]
        state |= {f"blocks.{n}.shape.{i}": ours[f"blocks.{n}.attention.shape.weight"][:, i] for i in range(3)}
    return Model(), state


def peer_losses(transformers, peer, run, text, dtype, teacher=None):
    import torch
    from reference import Float64
    from safetensors.torch import load_file
    import contextlib

    ours = load_file(run / "checkpoints" / "0" / "model.safetensors")
    wide = dtype == "float64"
    with Float64() if wide else contextlib.nullcontext():
        model, state = peer(transformers, ours)
        model = model.to(torch.float64 if wide else torch.float32).train()
        left_out = model.load_state_dict(state, strict=False)
        assert not left_out.unexpected_keys and all("bias" in k and "attn.bias" in k for k in left_out.missing_keys), left_out
        if teacher:
            taught, own = peer(transformers, load_file(teacher / "model.safetensors"))
            taught = taught.to(torch.float64 if wide else torch.float32).eval()
            taught.load_state_dict(own, strict=False)
        order = torch.frombuffer(bytearray((run / "order.i32").read_bytes()), dtype=torch.int32)
        tokens = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
        groups = [{"params": [p for p in model.parameters() if p.dim() >= 2], "weight_decay": OPTIMISER["decay"]},
                  {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0}]
        optimiser = torch.optim.AdamW(groups, betas=tuple(OPTIMISER["betas"]), eps=1e-8, fused=False, foreach=False)
        losses, plain = [], []
        for step in range(STEPS):
            for group in optimiser.param_groups:
                group["lr"] = rate(OPTIMISER, step, STEPS)
            rows = order[step * BATCH * ACCUMULATE:(step + 1) * BATCH * ACCUMULATE].tolist()
            batch = torch.stack([tokens[w * CONTEXT:(w + 1) * CONTEXT + 1] for w in rows])
            logits = model(batch[:, :-1]).logits
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
            plain.append(loss.item())
            if teacher:
                weight, tau = TAUGHT["weight"], TAUGHT["temperature"]
                with torch.no_grad():
                    wanted = (taught(batch[:, :-1]).logits / tau).log_softmax(-1).flatten(0, 1)
                apart = torch.nn.functional.kl_div((logits / tau).log_softmax(-1).flatten(0, 1), wanted, reduction="batchmean", log_target=True)
                loss = (1 - weight) * loss + weight * tau ** 2 * apart
            optimiser.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), OPTIMISER["clip"], foreach=False)
            optimiser.step()
            losses.append(loss.item())
    return losses, plain


def our_losses(work, name, architecture, dtype, more={}, keys=("loss",)):
    config = {"architecture": architecture, "data": {"train": ["text"]}, "batch": BATCH, "accumulate": ACCUMULATE, "steps": STEPS, "dtype": dtype,
              "optimiser": OPTIMISER, "seed": 5, "init": {"deviation": 0.1}, "evaluate": {"batches": 1}} | more
    (work / f"{name}.json").write_text(json.dumps(config))
    result = pare("train", f"{name}.json", "-o", name, "--quiet", cwd=work)
    if result.returncode != 0:
        raise RuntimeError(result.stderr)
    lines = [json.loads(line) for line in (work / name / "metrics.jsonl").read_text().splitlines()]
    return [[line[key] for line in lines if key in line] for key in keys]


def main():
    report = Report("training")
    transformers = report.transformers()
    random.seed(1)
    text = "".join(random.choice(["a word ", "another. ", "Something\n", "else, "]) for _ in range(2000)).encode()
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        (work / "text").write_bytes(text)
        for family, architecture, peer in (("gpt2", gpt2_shaped(WIDTH, LAYERS, HEADS, CONTEXT, VOCAB), gpt2_peer), ("llama", llama_architecture(), llama_peer),
                                           ("shaped", shaped_architecture(), shaped_peer)):
            for dtype, tolerance in TOLERANCES.items():
                name = f"{family}-{dtype}"
                [found] = our_losses(work, name, architecture, dtype)
                expected, _ = peer_losses(transformers, peer, work / name, text, dtype)
                worst = max(abs(a - b) for a, b in zip(found, expected, strict=True))
                print(f"{name}: losses {found[0]:.6f} to {found[-1]:.6f}, at most {worst:.2g} from the peer's")
                fell = found[-1] < 0.8 * found[0]
                report.check(name, "" if worst <= tolerance and fell else f"{worst} is more than {tolerance}, or nothing was learned: {found}")
            teacher = work / f"{family}-float64" / "checkpoints" / str(STEPS)
            found, alone = our_losses(work, f"{family}-taught", architecture, "float64", {"seed": 8, "teacher": str(teacher), "distillation": TAUGHT},
                                      ("loss", "cross_entropy"))
            expected, plain = peer_losses(transformers, peer, work / f"{family}-taught", text, "float64", teacher)
            worst = max(abs(a - b) for a, b in zip(found + alone, expected + plain, strict=True))
            print(f"{family}-taught: losses {found[0]:.6f} to {found[-1]:.6f}, at most {worst:.2g} from the peer's")
            report.check(f"{family}-taught", "" if worst <= TOLERANCES["float64"] else f"{worst} is more than {TOLERANCES['float64']}")
    report.finish()


if __name__ == "__main__":
    main()
