from draws import modernbert_like
from transformers import (
    ModernBertConfig,
    ModernBertForMaskedLM,
    ModernBertForQuestionAnswering,
    ModernBertForSequenceClassification,
    ModernBertForTokenClassification,
    ModernBertModel,
)

HEADS = [ModernBertForSequenceClassification]
OLDER_ROPE_KEYS = {"rope_theta": "global_rope_theta", "sliding_theta": "local_rope_theta"}


def draw(rng, index):
    config = ModernBertConfig(**modernbert_like(rng, index), classifier_pooling=rng.choice(["cls", "mean"]), num_labels=rng.randint(2, 5))
    # Its three classifiers have the same tensors: a file that names none of them is one of sequences.
    kinds = [ModernBertForMaskedLM, ModernBertModel, ModernBertForMaskedLM, ModernBertForTokenClassification,
             ModernBertForSequenceClassification, ModernBertForQuestionAnswering]
    model_class = kinds[index % len(kinds)]
    if model_class is ModernBertForQuestionAnswering:
        config.num_labels = 2
    return config, model_class
