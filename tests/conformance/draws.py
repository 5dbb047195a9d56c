"""What several families draw at random."""

ACTIVATIONS = [
    "gelu", "gelu_python", "gelu_new", "gelu_pytorch_tanh", "gelu_python_tanh", "gelu_fast", "gelu_accurate",
    "quick_gelu", "relu", "relu2", "silu", "swish", "sigmoid", "tanh", "linear",
]


# Question answering has two logits in all families; in these the class takes their number from the labels.
ANSWERS_ARE_LABELS = ("Albert", "Bert", "Camembert", "DistilBert", "Electra", "GPTJ", "Roberta", "XLMRoberta")


def with_head(rng, config, model_class):
    """The configuration for another class than it was drawn for: labels to tell apart, padding to find."""
    config.num_labels = rng.choice([1, 2, 3, 5])
    if model_class.__name__.endswith("ForQuestionAnswering") and model_class.__name__.startswith(ANSWERS_ARE_LABELS):
        config.num_labels = 2
    text = config.get_text_config()
    if text.pad_token_id is None:
        text.pad_token_id = rng.randrange(text.vocab_size)
    return config


def activation(rng):
    return rng.choice(ACTIVATIONS)


def epsilon(rng):
    """Large enough, now and then, for a wrong one to show."""
    return rng.choice([1e-12, 1e-6, 1e-5, 1e-2, 0.3])


def heads_and_width(rng, least_heads=1):
    heads = rng.choice([n for n in (1, 2, 3, 4, 6) if n >= least_heads])
    return heads, heads * rng.choice([4, 6, 8, 10])


def rope(rng, index, head_width, context):
    kind = ["default", "linear", "dynamic", "yarn", "longrope", "llama3"][index % 6]
    settings = {"rope_type": kind, "rope_theta": rng.choice([10000.0, 500.0, 1e6])}
    if kind != "default":
        settings["factor"] = rng.choice([2.0, 3.5, 8.0])
    if kind in ("yarn", "longrope", "llama3"):
        settings["original_max_position_embeddings"] = context // 2
    if kind == "yarn":
        settings |= rng.choice(
            [{}, {"attention_factor": 1.3}, {"mscale": 0.7, "mscale_all_dim": 1.2}, {"beta_fast": 8, "beta_slow": 2}]
        )
        settings |= rng.choice([{}, {"truncate": False}])
    if kind == "longrope":
        settings |= {name: [rng.uniform(1, 4) for _ in range(head_width // 2)] for name in ("short_factor", "long_factor")}
        if rng.random() < 0.5:
            del settings["factor"]
    if kind == "llama3":
        settings |= {"low_freq_factor": 1.0, "high_freq_factor": rng.choice([2.0, 4.0])}
    return settings


def rope_by_type(rng, index, head_width, context):
    """Layers with a window turn in their own way; now and then scaled too, which older files cannot say."""
    return {"full_attention": rope(rng, index, head_width, context),
            "sliding_attention": rope(rng, index // 2 if index % 3 == 2 else 0, head_width, context)}


def partial_rope(rng, index, head_width, context):
    """The same, for some of a head's dimensions: the part that turns is rounded down to whole ones."""
    turning = rng.randrange(4, head_width + 1, 2)
    part = min((turning + rng.choice([0.01, 0.6])) / head_width, 1.0)
    return rope(rng, index, turning, context) | {"partial_rotary_factor": part}


def llama_like(rng, index):
    """What all relatives of Llama have: sizes, grouped heads, activation, epsilon, tying, every kind of rotary setting."""
    heads, width = heads_and_width(rng, least_heads=2)
    head_width = rng.choice([None, 6, 12]) or width // heads
    context = rng.choice([16, 20])
    return {
        "vocab_size": rng.randint(20, 60),
        "hidden_size": width,
        "intermediate_size": rng.choice([28, 40]),
        "num_hidden_layers": rng.randint(2, 4),
        "num_attention_heads": heads,
        "num_key_value_heads": rng.choice([n for n in range(1, heads + 1) if heads % n == 0]),
        "head_dim": head_width,
        "hidden_act": activation(rng),
        "max_position_embeddings": context,
        "rms_norm_eps": epsilon(rng),
        "tie_word_embeddings": index % 4 == 1,
        "rope_parameters": rope(rng, index, head_width, context),
        "bos_token_id": 0,
        "eos_token_id": 0,
    }


def window(rng):
    """Mostly narrower than the sequences; now and then only the token itself, or nothing left out."""
    return rng.choice([1, 2, 3, 5, 8, 12, 100])


def layer_types(rng, layers):
    return [rng.choice(["full_attention", "sliding_attention"]) for _ in range(layers)]


def late_windows(rng, index, layers):
    """Qwen's ways to say which layers have a window: none, all from one on, those in a list."""
    choices = [
        {},
        {"use_sliding_window": True, "sliding_window": window(rng), "max_window_layers": rng.randint(0, layers)},
        {"use_sliding_window": True, "sliding_window": window(rng), "layer_types": layer_types(rng, layers)},
        {"use_sliding_window": True, "sliding_window": window(rng), "max_window_layers": 1},
        {"use_sliding_window": False, "sliding_window": window(rng), "max_window_layers": 0},
        {"use_sliding_window": True, "sliding_window": None, "max_window_layers": 0},
    ]
    return choices[index % 8 % len(choices)]


def bert_like(rng, index):
    """What the configurations of BERT and its descendants have in common."""
    heads, width = heads_and_width(rng)
    return dict(
        vocab_size=rng.randint(20, 60),
        hidden_size=width,
        num_hidden_layers=rng.randint(2, 3),
        num_attention_heads=heads,
        intermediate_size=rng.choice([28, 40]),
        hidden_act=activation(rng),
        max_position_embeddings=rng.randint(20, 30),
        type_vocab_size=rng.randint(1, 4),
        layer_norm_eps=epsilon(rng),
        tie_word_embeddings=index % 8 < 4,
        num_labels=rng.randint(2, 5),
    )


def modernbert_like(rng, index):
    """What ModernBERT and its decoder have in common."""
    heads, width = heads_and_width(rng)
    context, layers = rng.choice([16, 20]), rng.randint(2, 4)
    kinds = {"layer_types": layer_types(rng, layers)} if index % 4 == 1 else {"global_attn_every_n_layers": rng.choice([1, 2, 3])}
    return kinds | dict(
        vocab_size=rng.randint(20, 60),
        hidden_size=width,
        intermediate_size=rng.choice([28, 40]),
        num_hidden_layers=layers,
        num_attention_heads=heads,
        hidden_activation=activation(rng),
        max_position_embeddings=context,
        norm_eps=epsilon(rng),
        norm_bias=index % 3 == 1,
        attention_bias=index % 2 == 1,
        mlp_bias=index % 4 >= 2,
        local_attention=rng.choice([0, 1, 2, 3, 4, 7, 10, 16, 100]),
        rope_parameters=rope_by_type(rng, index, width // heads, context),
        decoder_bias=index % 4 != 3,
        classifier_bias=index % 3 == 0,
        classifier_activation=activation(rng),
        tie_word_embeddings=index % 4 != 2,
        pad_token_id=1,
        bos_token_id=0,
        eos_token_id=0,
        cls_token_id=0,
        sep_token_id=0,
    )
