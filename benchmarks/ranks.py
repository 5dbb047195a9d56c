#!/usr/bin/env python3
"""What several ranks cost: speed, bytes on the wire and memory, beside theory and beside PyTorch's DistributedDataParallel.

    python benchmarks/ranks.py [--only speed,wire,memory,gpu] [--rounds N]

Speed: one global batch on one rank and on two, a core for each; efficiency is the speed of two over twice that of one.
The peer is the model of benchmarks/training.py under DDP, with Gloo and the same cores; the sides take turns. Bytes are
counted by the kernel, at the loopback of a network namespace of its own. Memory is what no file backs. On a GPU: what a step
costs more when one rank exchanges with itself, through NCCL.
"""

import argparse
import json
import math
import os
import pathlib
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import types

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "tests")]
import training  # noqa: E402
from report import PARE  # noqa: E402

training.MODELS |= {"ranks-3m": (256, 4, 4, 256, 256, 8), "ranks-27m": (512, 8, 8, 256, 2048, 8), "ranks-103m": (1024, 8, 8, 256, 2048, 4)}
WARM = 3


def free_port():
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return str(listening.getsockname()[1])


def held(pid):
    """KiB of a process that no file backs."""
    try:
        return int(pathlib.Path(f"/proc/{pid}/status").read_text().split("RssAnon:")[1].split()[0])
    except (OSError, IndexError):
        return 0


def started(command, size, prefix=(), watched=lambda: False):
    """The same command as several ranks with one thread each: (stdout of the first, the most KiB that the last held while `watched`)."""
    port = free_port()
    outputs, processes = [], []
    for rank in range(size):
        env = {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(size),
               "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
        outputs.append(tempfile.TemporaryFile("w+"))
        processes.append(subprocess.Popen([*prefix, *map(str, command)], stdout=outputs[-1], stderr=subprocess.STDOUT, env=env))
    most = 0
    while any(process.poll() is None for process in processes):
        if watched():
            most = max(most, held(processes[-1].pid))
        time.sleep(0.02)
    outputs[0].seek(0)
    if any(process.returncode for process in processes):
        sys.exit(f"benchmark: {' '.join(map(str, command))}\n{outputs[0].read()[-3000:]}")
    return outputs[0].read(), most


def write_run(name, work, steps, dtype="float32", **more):
    options = types.SimpleNamespace(steps=steps, dtype=dtype)
    text = work / f"{name}.u16"
    if not text.exists():
        training.write_text(name, types.SimpleNamespace(steps=64), text)
    (work / "run.json").write_text(json.dumps({**training.config(name, options, text), **more}))
    return text


def pare(name, work, size, steps, prefix=(), device="cpu", **more):
    """Seconds of a step, and the KiB that a rank holds during one."""
    write_run(name, work, steps, **more)
    shutil.rmtree(work / "run", ignore_errors=True)
    metrics = work / "run/metrics.jsonl"
    def losses():
        return [line["seconds"] for line in map(json.loads, metrics.read_text().splitlines()) if "loss" in line] if metrics.exists() else []
    _, most = started([PARE, "train", work / "run.json", "-o", work / "run", "--quiet", "--device", device], size, prefix, lambda: more and 2 <= len(losses()) < steps)
    at = losses()
    return statistics.median(b - a for a, b in zip(at[WARM:], at[WARM + 1:])), most


def ddp(name, run, text, steps):
    """One rank of the peer. The first prints the seconds of a step."""
    import numpy
    import torch
    from torch import distributed
    from torch.nn.parallel import DistributedDataParallel

    distributed.init_process_group("gloo")
    rank, size = distributed.get_rank(), distributed.get_world_size()
    model = training.gpt(name)
    training.load(model, pathlib.Path(run) / "checkpoints" / "0")
    shared = DistributedDataParallel(model) if size > 1 else model
    optimiser = torch.optim.AdamW(model.parameters(), fused=True)
    context, batch = training.MODELS[name][3], training.MODELS[name][5]
    tokens = torch.from_numpy(numpy.fromfile(text, dtype="<u2").astype("int64"))
    at = []
    for step in range(steps):
        rows = torch.stack([tokens[w * context:(w + 1) * context + 1] for w in range(step * batch, (step + 1) * batch)])
        rows = rows[rank * batch // size:(rank + 1) * batch // size]
        shared(rows[:, :-1].contiguous(), rows[:, 1:].contiguous()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        at.append(time.perf_counter())
    if rank == 0:
        print(json.dumps(statistics.median(b - a for a, b in zip(at[WARM:], at[WARM + 1:]))))
    distributed.destroy_process_group()


def speed(work, rounds):
    print("speed, one global batch, a core for each rank: seconds a step, median of rounds\n")
    print("| model | side | one rank | two ranks | efficiency | of the rounds |\n|---|---|---:|---:|---:|---|")
    for name, steps in [("ranks-3m", 24), ("ranks-27m", 12)]:
        found = {"pare": [], "pare, shard=optimiser": [], "pare, shard=everything": [], "DDP": []}
        text = write_run(name, work, steps)
        for _ in range(rounds):
            one, _ = pare(name, work, 1, steps)
            found["pare"].append((one, pare(name, work, 2, steps)[0]))
            for shard in SHARDS[1:]:
                found[f"pare, shard={shard}"].append((one, pare(name, work, 2, steps, shard=shard)[0]))
            command = [sys.executable, __file__, "--ddp", name, work / "run", text, steps]
            found["DDP"].append(tuple(json.loads(started(command, size)[0].splitlines()[-1]) for size in (1, 2)))
        for side, pairs in found.items():
            ratios = [one / (2 * two) for one, two in pairs]
            print(f"| {name} | {side} | {statistics.median(p[0] for p in pairs):.3f} | {statistics.median(p[1] for p in pairs):.3f} | "
                  f"{statistics.median(ratios):.2f} | {min(ratios):.2f} to {max(ratios):.2f} |")
    print()


SHARDS = ("nothing", "optimiser", "everything")


def parameters(work):
    """Of the run's model: all, those in blocks, and how many blocks there are."""
    counts = {}
    for path in (work / "run/checkpoints/0").glob("model*.safetensors"):
        with path.open("rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        counts |= {name: math.prod(entry["shape"]) for name, entry in header.items() if name != "__metadata__"}
    inside = {name: count for name, count in counts.items() if name.startswith("blocks.")}
    return sum(counts.values()), sum(inside.values()), len({name.split(".")[1] for name in inside})


def wire(work):
    space = f"pare{os.getpid()}"
    def ip(*words):
        return subprocess.run(["ip", *words], capture_output=True).returncode == 0
    if not shutil.which("ip") or not ip("netns", "add", space):
        print("bytes on the wire: skipped, network namespaces are not allowed here\n")
        return
    try:
        ip("-n", space, "link", "set", "lo", "up")
        enter = ["ip", "netns", "exec", space]
        def counted():
            text = subprocess.run([*enter, "cat", "/proc/net/dev"], capture_output=True, text=True, check=True).stdout
            return int(next(line for line in text.splitlines() if line.strip().startswith("lo:")).split()[1])
        print("bytes that a rank sends each step, of a float32 model with 4 P bytes of gradients, in MB. Theory: (N - 1)/N of 8 P;")
        print("with `everything`, of 12 P in blocks, less one block, which is still there when the way back begins\n")
        print("| parameters | ranks | shard | theory | measured | ratio |\n|---:|---:|---|---:|---:|---:|")
        name = "ranks-3m"
        for size in (2, 4):
            for shard in SHARDS:
                sent = []
                for steps in (8, 24):
                    before = counted()
                    pare(name, work, size, steps, enter, shard=shard)
                    sent.append(counted() - before)
                all_of_it, inside, blocks = parameters(work)
                bytes_of_step = (sent[1] - sent[0]) / 16 / size
                again = 4 * inside * (1 - 1 / blocks) if shard == "everything" else 0
                theory = (size - 1) / size * (8 * all_of_it + again)
                print(f"| {all_of_it:,} | {size} | {shard} | {theory / 1e6:.2f} | {bytes_of_step / 1e6:.2f} | {bytes_of_step / theory:.3f} |")
        print()
    finally:
        ip("netns", "del", space)


def memory(work):
    print("the most that a rank holds during a step, MB, with what is there without a model. (The first one also keeps a copy of what")
    print("last measured well, 12 bytes a parameter, where nothing is shared.) Theory of what is saved: (1 - 1/N) of 8 bytes")
    print("a parameter, with `everything` of 8 more in blocks, less 16 for one block: its weights, its gradients, and these on their way\n")
    print("| parameters | ranks | shard | held | saved | theory | ratio |\n|---:|---:|---|---:|---:|---:|---:|")
    name = "ranks-103m"
    for size in (2, 4):
        whole = 0
        for shard in SHARDS:
            resident = pare(name, work, size, 5, batch=4, context=32, recompute=True, shard=shard)[1] / 1024
            whole = whole or resident
            all_of_it, inside, blocks = parameters(work)
            more = 8 * (1 - 1 / size) * inside - 16 * inside / blocks if shard == "everything" else 0
            theory = (8 * (1 - 1 / size) * all_of_it + more) / 2 ** 20
            rest = f"{whole - resident:.0f} | {theory:.0f} | {(whole - resident) / theory:.2f}" if shard != "nothing" else "| |"
            print(f"| {all_of_it:,} | {size} | {shard} | {resident:.0f} | {rest} |")
    print()


def gpu(work, rounds):
    print("one GPU, bfloat16: milliseconds a step, median of rounds; a group of one exchanges all gradients with itself\n")
    print("| model | shard | alone | group of one | costs | of the rounds |\n|---|---|---:|---:|---:|---|")
    for name, steps in [("gpt2", 60), ("bytes", 150)]:
        found = {shard: [] for shard in SHARDS}
        for _ in range(rounds):
            alone, _ = pare(name, work, 1, steps, device="cuda", dtype="bfloat16")
            os.environ["PARE_GROUP_OF_ONE"] = "1"
            for shard in SHARDS:
                found[shard].append((alone, pare(name, work, 1, steps, device="cuda", dtype="bfloat16", shard=shard)[0]))
            del os.environ["PARE_GROUP_OF_ONE"]
        for shard, pairs in found.items():
            more = [100 * (b / a - 1) for a, b in pairs]
            print(f"| {name} | {shard} | {1e3 * statistics.median(p[0] for p in pairs):.2f} | {1e3 * statistics.median(p[1] for p in pairs):.2f} | "
                  f"{statistics.median(more):+.1f} % | {min(more):+.1f} to {max(more):+.1f} % |", flush=True)
    print()


def main():
    if sys.argv[1:2] == ["--ddp"]:
        ddp(*sys.argv[2:5], int(sys.argv[5]))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="speed,wire,memory")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        parts = {"speed": lambda work: speed(work, options.rounds), "wire": wire, "memory": memory, "gpu": lambda work: gpu(work, options.rounds)}
        for part in options.only.split(","):
            parts[part](pathlib.Path(folder))


if __name__ == "__main__":
    main()
