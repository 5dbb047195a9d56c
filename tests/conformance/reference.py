"""transformers in real float64.

Its models cast norms, rotary angles and softmax to float32 whatever their own type is, and ALiBi to bfloat16. Under
`Float64` every one that is asked for becomes float64, so that the only rounding left is that of float64 itself.
"""

import torch
from torch.overrides import TorchFunctionMode


class Float64(TorchFunctionMode):
    def __enter__(self):
        self.default = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        return super().__enter__()

    def __exit__(self, *error):
        torch.set_default_dtype(self.default)
        return super().__exit__(*error)

    def __torch_function__(self, function, types, arguments=(), options=None):
        if function in (torch.Tensor.float, torch.Tensor.bfloat16):
            function = torch.Tensor.double
        arguments = [torch.float64 if a is torch.float32 else a for a in arguments]
        options = {k: torch.float64 if v is torch.float32 else v for k, v in (options or {}).items()}
        return function(*arguments, **options)


def load(model_class, folder, implementation, **options):
    """The stored model, as transformers reads it. Loading it anew also forgets what dynamic frequencies it has seen."""
    with Float64():
        model = model_class.from_pretrained(
            folder, dtype=torch.float64, attn_implementation=implementation, local_files_only=True, **options
        )
    # hidden_states then ends with the stream before the final norm, and last_hidden_state is the one after it.
    model.config.tie_last_hidden_states = model.config.get_text_config().tie_last_hidden_states = False
    return model.eval()


def run(model, inputs, with_attentions=False):
    """Every intermediate under pare's name: residual.L, final, pooled, logits, sequence_logits, probabilities."""
    results = {}
    with Float64(), torch.no_grad():
        base = model.base_model(**inputs, output_hidden_states=True, output_attentions=with_attentions)
        for layer, state in enumerate(base.hidden_states):
            # Some models, and some versions, end the list with the stream after the final norm, compared as final.
            if state.shape != base.last_hidden_state.shape or not torch.equal(state, base.last_hidden_state):
                results[f"residual.{layer}"] = state
        for layer, probabilities in enumerate(base.attentions or [] if with_attentions else []):
            results[f"blocks.{layer}.attention.probabilities"] = probabilities
        if base.last_hidden_state.shape == base.hidden_states[-1].shape:  # else projected (OPT): a part of our head
            results["final"] = base.last_hidden_state
        if model is model.base_model:
            results["hidden"] = base.last_hidden_state
            if getattr(base, "pooler_output", None) is not None:
                results["pooled"] = base.pooler_output
        else:
            results |= logits_of(model(**inputs))
    return results


def logits_of(outputs):
    """Question answering has one logit for each end of the answer, pre-training a second head for the sequence.

    What CLIP projects is no logits, but what stands for the sequence.
    """
    for embeds in ("text_embeds", "image_embeds"):
        if embeds in outputs:
            return {"hidden": outputs.last_hidden_state, "pooled": outputs[embeds]}
    if "start_logits" in outputs:
        return {"logits": torch.stack([outputs.start_logits, outputs.end_logits], -1)}
    if "prediction_logits" in outputs:
        second = "sop_logits" if "sop_logits" in outputs else "seq_relationship_logits"
        return {"logits": outputs.prediction_logits, "sequence_logits": outputs[second]}
    return {"logits": outputs.logits}
