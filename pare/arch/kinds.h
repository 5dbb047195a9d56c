#pragma once
// The words of the Architecture: every setting that is one of a few kinds.

namespace pare {

enum class Task { causal_lm, masked_lm, encoder, classifier, token_classifier, question_answering, next_sentence };
enum class Position { none, learned, sinusoidal, sinusoidal_halves };  // halves: all sines, then all cosines (XGLM)
enum class Wiring { serial, parallel };
enum class NormKind { rms, layer, dyt, scale };  // scale: nothing is normalised, only multiplied and added
enum class NormPlace { pre, post };
enum class Mask { causal, full };
enum class RopeLayout { half, interleaved };
enum class RopeScalingKind { linear, dynamic, yarn, longrope, llama3 };
enum class Activation {
  gelu,
  gelu_tanh,
  gelu_bloom,
  quick_gelu,
  relu,
  relu_squared,
  silu,
  sigmoid,
  tanh,
  xielu,
  identity
};
enum class Form { factored, collapsed };
enum class Remembered { keys_values, inputs };  // by who decodes: nothing that is stored depends on it
enum class Gate { position };
enum class FirstLayer { dense, table };
enum class FactorScope { token, sum };
// What stands for a sequence: a real token, all of them, the first of an id, what a probe sees.
enum class Pool { first, last, mean, token, attention, none };
// Each head's width with one gain for all heads; with gains of its own; all heads at once.
enum class QkNormOver { head, each_head, layer };

}  // namespace pare
