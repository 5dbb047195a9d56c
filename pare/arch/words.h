#pragma once
// The words of every enumerator, as the JSON has them. Found by json_fields.h through their argument's namespace.

#include "pare/arch/json_fields.h"
#include "pare/arch/kinds.h"

namespace pare {

inline Words<Task> words(Task) {
  return {{Task::causal_lm, "causal_lm"},
          {Task::masked_lm, "masked_lm"},
          {Task::encoder, "encoder"},
          {Task::classifier, "classifier"},
          {Task::token_classifier, "token_classifier"},
          {Task::question_answering, "question_answering"},
          {Task::next_sentence, "next_sentence"}};
}
inline Words<Position> words(Position) {
  return {{Position::none, "none"},
          {Position::learned, "learned"},
          {Position::sinusoidal, "sinusoidal"},
          {Position::sinusoidal_halves, "sinusoidal_halves"}};
}
inline Words<Wiring> words(Wiring) {
  return {{Wiring::serial, "serial"}, {Wiring::parallel, "parallel"}};
}
inline Words<NormKind> words(NormKind) {
  return {{NormKind::rms, "rms"}, {NormKind::layer, "layer"}, {NormKind::dyt, "dyt"}, {NormKind::scale, "scale"}};
}
inline Words<NormPlace> words(NormPlace) {
  return {{NormPlace::pre, "pre"}, {NormPlace::post, "post"}};
}
inline Words<Mask> words(Mask) {
  return {{Mask::causal, "causal"}, {Mask::full, "full"}};
}
inline Words<RopeLayout> words(RopeLayout) {
  return {{RopeLayout::half, "half"}, {RopeLayout::interleaved, "interleaved"}};
}
inline Words<RopeScalingKind> words(RopeScalingKind) {
  return {{RopeScalingKind::linear, "linear"},
          {RopeScalingKind::dynamic, "dynamic"},
          {RopeScalingKind::yarn, "yarn"},
          {RopeScalingKind::longrope, "longrope"},
          {RopeScalingKind::llama3, "llama3"}};
}
inline Words<Activation> words(Activation) {
  return {{Activation::gelu, "gelu"},         {Activation::gelu_tanh, "gelu_tanh"},
          {Activation::relu, "relu"},         {Activation::silu, "silu"},
          {Activation::sigmoid, "sigmoid"},   {Activation::quick_gelu, "quick_gelu"},
          {Activation::tanh, "tanh"},         {Activation::relu_squared, "relu_squared"},
          {Activation::identity, "identity"}, {Activation::gelu_bloom, "gelu_bloom"},
          {Activation::xielu, "xielu"}};
}
inline Words<Form> words(Form) {
  return {{Form::factored, "factored"}, {Form::collapsed, "collapsed"}};
}
inline Words<Gate> words(Gate) {
  return {{Gate::position, "position"}};
}
inline Words<FirstLayer> words(FirstLayer) {
  return {{FirstLayer::dense, "dense"}, {FirstLayer::table, "table"}};
}
inline Words<Pool> words(Pool) {
  return {{Pool::first, "first"}, {Pool::last, "last"},   {Pool::none, "none"},
          {Pool::mean, "mean"},   {Pool::token, "token"}, {Pool::attention, "attention"}};
}
inline Words<QkNormOver> words(QkNormOver) {
  return {{QkNormOver::head, "head"}, {QkNormOver::each_head, "each_head"}, {QkNormOver::layer, "layer"}};
}
inline Words<FactorScope> words(FactorScope) {
  return {{FactorScope::token, "token"}, {FactorScope::sum, "sum"}};
}

}  // namespace pare
