"""Native Architectures that cover every stored form and every task, and for each pass one on which it applies: the models on which
`pare export` is compared with the programs that it writes for."""

import numpy

TOKENS = 15
ALL = {"query": True, "key": True, "value": True, "output": True}
LAYER, RMS, DYT = {"kind": "layer", "bias": True}, {"kind": "rms"}, {"kind": "dyt", "bias": True}
POST = LAYER | {"place": "post"}


def attention(**settings):
    return {"heads": 4, "head_width": 6, "norm": RMS} | settings


def mlp(width=40, activation="gelu", **settings):
    return {"width": width, "activation": activation, "norm": RMS} | settings


def model(blocks, **settings):
    """`blocks`: what attention has, or attention and MLP."""
    listed = [block if "attention" in block else {"attention": attention(**block), "mlp": mlp()} for block in blocks]
    return {"width": 24, "vocab": 50, "context": 32, "final_norm": RMS, "blocks": listed} | settings


def bert(**settings):
    block = {"attention": attention(mask="full", bias=ALL, norm=POST), "mlp": mlp(norm=POST, bias={"up": True, "down": True})}
    base = {"embedding": {"position": "learned", "types": 2, "norm": LAYER}, "final_norm": None}
    return model([block, block], **base | settings)


def scaled(kind, **settings):
    return {"rope": {"theta": 500, "scaling": {"kind": kind} | settings}}


ROPE = {"theta": 100}
SHRUNK = {"value_output": "shrunk", "query_key": "shrunk"}
PATCH = {"size": 4, "image": 12, "channels": 2}
MODELS = {
    "GPT-2's form": model(
        [{"attention": attention(norm=LAYER, bias=ALL), "mlp": mlp(activation="gelu_tanh", norm=LAYER, bias={"up": True, "down": True})}] * 2,
        embedding={"position": "learned"}, final_norm=LAYER, head={"tied": True, "bias": True}),
    "Gemma's form": model(
        [{"attention": attention(kv_heads=2, head_width=8, rope=ROPE, softcap=4.0, scale=0.3, window=window, qk_norm=RMS | {"offset": 1},
                                 norm=RMS | {"offset": 1, "epsilon": 0.01}, output_norm=RMS),
          "mlp": mlp(activation="gelu_tanh", gated=True, norm=RMS | {"offset": 1}, output_norm=RMS)} for window in (3, None)],
        embedding={"scale": 4.9}, head={"tied": True, "softcap": 5.0}),
    "angles": model([{"rope": ROPE | {"layout": "interleaved"}}, {"rope": ROPE | {"width": 4}},
                     {"rope": ROPE | {"width": 2, "layout": "interleaved"}}, scaled("linear", factor=3),
                     scaled("yarn", factor=4, original_context=16, attention_factor=1.2),
                     {"rope": {"theta": 3, "scaling": {"kind": "yarn", "factor": 4, "original_context": 64, "attention_factor": 1.1, "truncate": False}}},
                     scaled("llama3", factor=4, original_context=16, high_frequency=3)]),
    "angles by length": model([scaled("dynamic", factor=3, original_context=9),
                               scaled("longrope", original_context=9, attention_factor=1.1, short_factor=[1, 2, 3], long_factor=[3, 2, 5]),
                               {"rope": {"width": 4, "scaling": {"kind": "dynamic", "factor": 2, "original_context": 9}}}]),
    "ALiBi": model([{"attention": attention(heads=6, head_width=4, kv_heads=3, alibi={}, window=5), "mlp": mlp(norm=None), "wiring": "parallel"},
                    {"attention": attention(heads=6, head_width=4, alibi={"scaled": False}, scale=0.7, norm=LAYER, output_norm=DYT),
                     "mlp": mlp(norm=LAYER | {"bias": False}, skip=True), "wiring": "parallel"},
                    {"attention": attention(alibi={}, softcap=2.0), "wiring": "parallel"}]),
    "collapsed": model([{"scores": "collapsed", "values": "collapsed", "bias": {"query": True, "output": True}},
                        {"scores": "collapsed", "kv_heads": 2, "alibi": {}}, {"values": "collapsed", "rope": ROPE, "softcap": 3.0, "kv_heads": 2}]),
    "slim caches": model([{"cache": "k", "bias": ALL, "rope": ROPE, "qk_norm": RMS, "kv_heads": 2}, {"cache": "v", "bias": ALL, "rope": ROPE},
                          {"cache": "x", "rope": ROPE, "qk_norm": LAYER | {"epsilon": 0.03}}, {"cache": "x", "bias": ALL, "pairs": SHRUNK, "kv_heads": 2},
                          {"cache": "k"}, {"cache": "v", "query": "identity", "qk_norm": RMS}]),
    "projections": model([{"pairs": SHRUNK, "bias": ALL}, {"pairs": SHRUNK, "kv_heads": 2}, {"query": "identity", "bias": ALL, "rope": ROPE},
                          {"key": "identity", "value": "identity", "output": "identity", "bias": {"value": True, "output": True}},
                          {"query": "key", "bias": {"key": True}, "rope": ROPE, "qk_norm": RMS},
                          {"query": {"nonlinear": {"width": 10, "activation": "silu"}}, "bias": ALL}]),
    "shaped and gated": model([{"shaped": True, "skip": False}, {"shaped": True, "window": 4, "kv_heads": 2, "gate": "position"},
                               {"gate": "position", "values": "collapsed"}, {"shaped": True, "scores": "collapsed", "values": "collapsed"}],
                              embedding={"position": "sinusoidal"}),
    "MLPs": model([{"attention": attention(), "mlp": {"kind": "heads", "width": 20, "norm": RMS, "bias": {"down": True}}},
                   {"attention": attention(), "mlp": {"kind": "heads", "width": 20, "shared_value": True, "norm": DYT}},
                   *({"attention": attention(norm=DYT | {"gain": False, "bias": False}), "mlp": mlp(activation=activation, gated=gated, skip=not gated)}
                     for gated, activation in [(False, "quick_gelu"), (True, "relu")]),
                   *({"attention": attention(norm=LAYER | {"gain": False}), "mlp": mlp(activation=activation, bias={"down": True}, norm=RMS | {"bias": True})}
                     for activation in ("relu_squared", "silu", "sigmoid", "tanh", "identity")),
                   {"attention": attention(norm=RMS | {"gain": False}), "mlp": None}], layers=[0, 1, 0, 2, 3, 4, 5, 6, 7, 8, 9, 9]),
    "first-layer table": model([{"attention": attention(kv_heads=2, rope=ROPE, qk_norm=RMS, norm=POST), "mlp": mlp()}, {"rope": ROPE}],
                               first_layer="table", head={"tied": True}),
    "a decoder that looks ahead": model([{"mask": "full", "window": 6}, {}], embedding={"position": "learned"}),
    "a decoder with two heads": model([{"rope": ROPE}], head={"pool": "last", "sequence": {"classes": 3, "transform": {"activation": "tanh"}}}),
    "BERT's pre-training": bert(task="masked_lm", head={
        "tied": True, "bias": True, "transform": {"activation": "gelu", "norm": LAYER}, "sequence": {"classes": 2, "transform": {"activation": "tanh"}}}),
    "ALBERT's form": bert(task="encoder", layers=[0, 0, 1, 0], embedding={"position": "learned", "types": 2, "norm": LAYER, "factor": 10, "factor_scope": "sum"},
                          head={"transform": {"activation": "tanh"}}),
    "OPT's form": model([{"attention": attention(norm=LAYER, bias=ALL), "mlp": mlp(activation="relu", norm=LAYER)}], task="encoder", head={
        "pool": "none", "transform": {"activation": "identity", "bias": False, "width": 9}},
        embedding={"position": "learned", "position_offset": 2, "factor": 10, "factor_bias": True}),
    "RoBERTa's form": bert(task="token_classifier", head={"classes": 5, "bias": True},
                           embedding={"position": "learned", "position_offset": 2, "position_pad": 1, "norm": LAYER}),
    "ViT's form": model([{"mask": "full", "bias": ALL}] * 2, task="classifier", vocab=0, context=10, head={"classes": 4, "bias": True},
                        embedding={"position": "learned", "patch": PATCH, "class_token": True, "types": 2}),
    "images, otherwise": model([{"window": 4, "alibi": {}}, {"mask": "full", "shaped": True, "rope": ROPE}], task="encoder", vocab=0, context=9,
                               embedding={"position": "sinusoidal", "patch": PATCH | {"bias": False}, "norm": DYT},
                               head={"pool": "last", "transform": {"activation": "gelu", "width": 7}}),
    "Llama's classifier": model([{"rope": ROPE, "kv_heads": 2}] * 2, task="classifier", head={"classes": 3, "pool": "last"}),
    "question answering": bert(task="question_answering", head={"classes": 2, "bias": True}),
    "next sentence": bert(task="next_sentence", head={"classes": 2, "transform": {"activation": "tanh"}}),
}


# What only the executor and our own Python run so far (pare/arch/executor_only.h).
SCALE = {"kind": "scale"}
WITH_REGISTERS = {"position": "learned", "patch": PATCH, "class_token": True, "registers": 2}
EXECUTED = {
    "norms of heads": model([
        {"qk_norm": RMS | {"offset": 1}, "qk_norm_over": "each_head", "kv_heads": 2, "rope": ROPE}, {"qk_norm": LAYER, "qk_norm_over": "each_head"},
        {"qk_norm": RMS, "qk_norm_over": "layer", "kv_heads": 2, "rope": ROPE}, {"qk_norm": LAYER, "qk_norm_over": "layer", "cache": "k"},
        {"qk_norm": RMS | {"place": "post"}, "rope": ROPE, "kv_heads": 2}, {"qk_norm": LAYER | {"place": "post"}, "rope": ROPE, "cache": "x"}]),
    "scales": model([
        {"attention": attention(output_norm=SCALE), "mlp": mlp(output_norm=SCALE | {"bias": True, "factor": 0.3})},
        {"attention": attention(output_norm=SCALE | {"gain": False, "factor": 0.4}), "mlp": mlp(norm=SCALE | {"offset": 1}), "wiring": "parallel"}],
        head={"tied": True, "scale": 0.2, "softcap": 4.0}),
    "activations with numbers": model([
        {"attention": attention(alibi={"steepest": 5}, heads=6, head_width=4), "mlp": mlp(activation="xielu")},
        {"attention": attention(alibi={"steepest": 16}), "mlp": mlp(activation="gelu_bloom")}]),
    "XGLM's positions": model([{}], embedding={"position": "sinusoidal_halves", "position_offset": 2, "scale": 4.9}),
    "ESM's form": bert(task="masked_lm", embedding={"position": "learned", "masked": {"id": 41}}),  # which the token without others is not
    "registers": model([{"mask": "full", "bias": ALL}], task="encoder", vocab=0, context=12, embedding=WITH_REGISTERS, final_norm=None,
                       head={"pool_norm": LAYER}),
    "DeiT's tokens": model([{"mask": "full"}], task="classifier", vocab=0, context=12, embedding=WITH_REGISTERS | {"registers_placed": True},
                           head={"classes": 4, "pool": "mean"}),
    "mean of a text": bert(task="classifier", head={"classes": 3, "pool": "mean", "pool_norm": LAYER, "transform": {"activation": "tanh"}}),
    "CLIP's texts": model([{}], task="encoder", embedding={"position": "learned"}, head={"pool": "token", "pool_token": 7}),
}


def bare(skips=(True, True), norm=None, activation="gelu", heads=3, **settings):
    """What passes ask for: wide enough, few things in between."""
    block = {"attention": attention(heads=heads, head_width=48 // heads if heads < 3 else 8, skip=skips[0], norm=norm, bias=ALL),
             "mlp": mlp(activation=activation, skip=skips[1], norm=norm, bias={"up": True, "down": True})}
    return model([block] * 2, **{"embedding": {"position": "learned"}, "final_norm": norm, "head": {"tied": False}} | settings)


CONSTANT = LAYER | {"epsilon": 1e28}
PLAIN, LAYERS = bare(embedding={}, norm=RMS | {"gain": False}, activation="silu"), bare(norm=LAYER)
PASSES = {
    "fold_constant_norm": bare(norm=CONSTANT), "fold_norm_gain": LAYERS, "center_layer_norm": LAYERS, "drop_key_bias": PLAIN,
    "fold_value_bias": PLAIN, "absorb_skip": bare(), "merge_skipless": bare((False, False)), "eliminate_projection": bare((True, False)),
    "collapse_heads": bare(norm=RMS, heads=1), "rotate_residual": PLAIN, "shrink_head_pairs": LAYERS, "cache_keys_only": PLAIN,
    "gauge_heads": LAYERS, "lower_mlp_to_heads": PLAIN, "precompute_first_layer": PLAIN,
}
CALLS = {name: name for name in PASSES} | {  # what --passes is told
    "absorb_skip": "absorb_skip{widen=true}",  # no random weights absorb a skip
    "collapse_heads": "collapse_heads{pairs=all}",  # products as wide as their factors save nothing
}


def inputs_of(name, architecture):
    """A batch with padding on both sides, and one row of each without."""
    random, embedding = numpy.random.default_rng(list(name.encode())), architecture.get("embedding", {})
    if "patch" in embedding:
        patch = embedding["patch"]
        return {"pixel_values": random.standard_normal((3, patch["channels"], patch["image"], patch["image"])).astype(numpy.float32)}
    mask = numpy.ones((4, TOKENS), numpy.int64)
    mask[1, :4] = 0
    mask[2, 9:] = 0
    mask[3, :TOKENS - 1] = 0
    inputs = {"input_ids": random.integers(0, architecture["vocab"], mask.shape), "attention_mask": mask}
    if embedding.get("types"):
        inputs["token_type_ids"] = random.integers(0, embedding["types"], mask.shape)
    return inputs
