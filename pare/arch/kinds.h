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
enum class Pool {
  first,
  last,
  mean,
  token,
  none
};  // what stands for a sequence: a real token, all, the first of an id
enum class QkNormOver {
  head,
  each_head,
  layer
};  // each head's width with the gains of all; with its own; all heads at once

}  // namespace pare
