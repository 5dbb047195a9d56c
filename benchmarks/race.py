"""What the races of decoding share: our side, turns, and what is said where greedy tokens part."""

import pathlib
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent


class Driver:
    """Our side: a process that holds the model and times what it is asked for."""

    def __init__(self, options, model, dtype):
        command = [options.driver, model, dtype, options.threads, options.device]
        self.process = subprocess.Popen(list(map(str, command)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.read()

    def read(self):
        line = self.process.stdout.readline()
        if not line:
            sys.exit("benchmark: the driver stopped")
        return line.split()

    def ask(self, *words):
        print(*words, file=self.process.stdin, flush=True)
        return self.read()

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def synchronised(device):
    import torch

    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def race(rounds, *sides):
    """Seconds of each side's turns, taken in turns after one round that does not count."""
    times = [[] for _ in sides]
    for turn in range(rounds + 1):
        for seconds, work in zip(times, sides):
            found = work()
            if turn > 0:
                seconds.append(found)
    return times


def median_ratio(ours, theirs):
    """How many times as fast we are: divided round by round, so that what slows a whole round down cancels."""
    return statistics.median(b / a for a, b in zip(ours, theirs))


def save_inputs(path, **tensors):
    import safetensors.torch

    safetensors.torch.save_file({k: v.contiguous() for k, v in tensors.items()}, path)
    return path


def relative(ours, theirs):
    spread = theirs - theirs.mean(-1, keepdim=True)
    return float((ours - theirs).abs().max() / spread.abs().max())


def parting(ours, theirs, margins, differences):
    """Where greedy tokens part, in words. `margins`: by how much their best logit is above the second, at each token.
    `differences`: the largest difference of both sides' logits there. Up to the parting both sides read the same tokens,
    so their logits can be compared there, too; after it they cannot."""
    for n, (a, b) in enumerate(zip(ours, theirs)):
        if a != b:
            told = "less than rounding moves them" if margins[n] <= 2 * differences[n] else "MORE than the difference explains"
            return (f"greedy tokens part at token {n + 1} of {len(theirs)}: there the two best logits are {margins[n]:.2e} apart "
                    f"and the sides differ by up to {differences[n]:.2e}, {told}")
    if len(ours) != len(theirs):
        return f"MORE than rounding: {len(ours)} tokens and {len(theirs)}"
    return f"the same {len(theirs)} greedy tokens"


def compared(ours, our_logits, theirs, their_logits):
    """The relative difference of the logits up to where tokens part, and the parting in words. Logits: tensors [tokens, vocab]."""
    common = next((n + 1 for n, (a, b) in enumerate(zip(ours, theirs)) if a != b), len(theirs))
    a, b = our_logits[:common].double(), their_logits[:common].double()
    best = b.topk(2, dim=-1).values
    words = parting(ours, theirs, (best[:, 0] - best[:, 1]).tolist(), (a - b).abs().amax(-1).tolist())
    return relative(a, b), words


def decoded(driver, inputs, count, folder):
    """Our greedy tokens, and the logits that each was chosen by."""
    import safetensors.torch

    out = pathlib.Path(folder, "decoded.safetensors")
    out.unlink(missing_ok=True)
    ids = [int(i) for i in driver.ask("logits", inputs, count, out)]
    return ids, safetensors.torch.load_file(out)["answers"]


class Transformers:
    """Their side of a greedy decoding: the leanest loop that they allow, one forward a token with their own cache, and generate()."""

    def __init__(self, model, prompt, count, device):
        self.model, self.prompt, self.count, self.device = model, prompt.to(device), count, device

    def steps(self, keep=False):
        import torch

        with torch.inference_mode():
            out = self.model(self.prompt, use_cache=True)
            logits, found = [out.logits[:, -1]], [out.logits[:, -1].argmax(-1, keepdim=True)]
            begin = synchronised(self.device)
            for _ in range(self.count - 1):
                out = self.model(found[-1], past_key_values=out.past_key_values, use_cache=True)
                if keep:
                    logits.append(out.logits[:, -1])
                found.append(out.logits[:, -1].argmax(-1, keepdim=True))
            seconds = synchronised(self.device) - begin
        return seconds, [int(i) for i in found], torch.cat(logits).float().cpu()

    def generate(self):
        import torch

        with torch.inference_mode():
            begin = synchronised(self.device)
            self.model.generate(self.prompt, attention_mask=torch.ones_like(self.prompt), do_sample=False, max_new_tokens=self.count, pad_token_id=0)
            return synchronised(self.device) - begin
