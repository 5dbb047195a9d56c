#include "pare/arch/executor_only.h"

#include "pare/arch/norms.h"

namespace pare {

namespace {

std::optional<std::string> of_block(const Block& block) {
  const Attention& t = block.attention;
  if (t.qk_norm_over != QkNormOver::head) {
    return t.qk_norm_over == QkNormOver::layer ? "norms over all queries and all keys at once"
                                               : "norms of queries and keys with gains for each head";
  }
  if (norms_turned(t)) {
    return "norms of queries and keys behind their rotation";
  }
  const DenseMlp* dense = block.mlp ? std::get_if<DenseMlp>(&block.mlp->kind) : nullptr;
  if (dense && (dense->activation == Activation::xielu || dense->activation == Activation::gelu_bloom)) {
    return dense->activation == Activation::xielu ? "an activation that is trained (xIELU)" : "Bloom's GELU";
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::string> executor_only(const Architecture& a) {
  const Embedding& e = a.embedding;
  if (e.registers > 0) {
    return "registers";
  }
  if (e.masked) {
    return "embeddings that depend on how many tokens are masked";
  }
  if (e.position == Position::sinusoidal_halves) {
    return "computed positions with all sines before all cosines";
  }
  if (a.head.scale != 1) {
    return "logits with a factor";
  }
  if (a.head.attention_pool) {
    return "attention that pools";
  }
  if (a.head.pool == Pool::mean || a.head.pool == Pool::token) {
    return a.head.pool == Pool::mean ? "the mean of all tokens" : "the token of an id for its sequence";
  }
  Architecture copy = a;
  for (const PlacedNorm& place : norms_of(copy)) {
    if (place.norm->kind == NormKind::scale) {
      return "a factor on what a sublayer adds";
    }
    if (place.module == in_head(Slot::pool_norm)) {
      return "a norm of what stands for a sequence";
    }
  }
  for (const Block& block : a.blocks) {
    if (const std::optional<std::string> found = of_block(block)) {
      return found;
    }
  }
  return std::nullopt;
}

}  // namespace pare
