"""Small Hugging Face models, for attacks that are about a family, and what transformers computes of them in float64."""

import copy

import reference
import torch
import transformers

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()


def save(config, model_class, folder, seed=1):
    """A model with generic weights, stored in float64; tables are of size one, gains and biases are not neutral."""
    generator = torch.Generator().manual_seed(seed)
    with reference.Float64():
        model = model_class(copy.deepcopy(config)).to(torch.float64)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            size = 0.3 if parameter.dim() == 1 else 1.0 if "embed" in name or "wte" in name or "wpe" in name else (
                parameter.shape[-1] ** -0.5)
            parameter.copy_(size * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
            if parameter.dim() == 1 and name.endswith("weight"):
                parameter.add_(1)
    model.save_pretrained(folder)
    return folder


def run(model_class, folder, **inputs):
    """The logits of one sequence as NumPy; inputs are lists."""
    model = reference.load(model_class, folder, "eager")
    tensors = {name: torch.tensor(values)[None] for name, values in inputs.items()}
    return reference.run(model, tensors)["logits"][0].numpy()
