"""How far two sets of tensors are apart."""

import math

TOLERANCE = 1e-10


def distance(name, theirs, ours):
    """The largest difference, relative to the largest value; of logits, to the largest distance from a row's mean.

    Not of the logits of a few classes: those of one sequence may all be nearly the same.
    """
    vocabulary = "logits" in name and theirs.shape[-1] >= 20
    size = theirs - theirs.mean(-1, keepdim=True) if vocabulary else theirs
    return ((theirs - ours.double()).abs().max() / size.abs().max()).item()


def compare(theirs, ours, case):
    """Empty where every tensor of theirs is ours too, within the tolerance; else what is wrong."""
    if isinstance(ours, str):
        return ours
    if not theirs:
        return "nothing to compare"
    errors = {}
    for name, tensor in theirs.items():
        if name not in ours:
            return f"pare wrote no {name}"
        if tensor.shape != ours[name].shape:
            return f"{name} has shape {list(ours[name].shape)}, expected {list(tensor.shape)}"
        errors[name] = distance(name, tensor, ours[name])
    worst = max(errors, key=lambda name: math.inf if math.isnan(errors[name]) else errors[name])
    if not errors[worst] <= TOLERANCE:
        return f"{worst} is off by {errors[worst]:.1e}, allowed {TOLERANCE:.0e}"
    print(f"  {case}: {errors[worst]:.1e} in {worst}", flush=True)
    return ""
