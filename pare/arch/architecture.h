#pragma once
// What a transformer IS: one plain value that says everything the executor, the passes and the counts need.
// docs/formats.md explains every field; architecture_json.h reads and writes it; validate.h lists what is wrong with
// it.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "pare/arch/attention.h"
#include "pare/arch/mlp.h"

namespace pare {

struct Block {
  Wiring wiring = Wiring::serial;
  Attention attention;
  std::optional<Mlp> mlp;
  bool operator==(const Block&) const = default;
};

struct Patch {
  int64_t size = 0, channels = 3, image = 0;
  bool bias = true;
  bool operator==(const Patch&) const = default;
};

// What ESM does where a token is masked: it counts for nothing, and the others for more. `usual` is the share that was
// masked in training: all is multiplied by (1 - usual) / (1 - share of this text).
struct MaskedTokens {
  int64_t id = 0;
  double usual = 0.12;
  bool operator==(const MaskedTokens&) const = default;
};

struct Embedding {
  Position position = Position::none;
  int64_t position_offset = 0;          // the first token reads row position_offset of the table (OPT, RoBERTa)
  std::optional<int64_t> position_pad;  // tokens of this id are not counted, and stand at position -1 (RoBERTa)
  int64_t types = 0;
  double scale = 1;
  std::optional<Norm> norm;
  std::optional<int64_t> factor;  // width of a factorised table
  FactorScope factor_scope =
      FactorScope::token;  // token: projected, then positions are added (OPT); sum: after all (ALBERT)
  bool factor_bias = false;
  bool class_token = false;
  int64_t registers = 0;          // learned tokens after the class token
  bool registers_placed = false;  // they have positions (DeiT's second class token)
  std::optional<MaskedTokens> masked;
  std::optional<Patch> patch;
  bool operator==(const Embedding&) const = default;
};

struct HeadTransform {  // a dense layer before the head: masked LM, or the pooler of an encoder or classifier
  Activation activation = Activation::gelu;
  bool bias = true;
  std::optional<Norm> norm;
  std::optional<int64_t> width;  // absent: a language model's has the width of the token table, any other the stream's
  bool operator==(const HeadTransform&) const = default;
};

struct SequenceHead {  // beside a language model's head, over the one token that stands for the sequence
  int64_t classes = 2;
  bool bias = true;
  std::optional<HeadTransform> transform;
  bool operator==(const SequenceHead&) const = default;
};

// A learned token, the probe, that attends to all others, and an MLP with a skip behind it (SigLIP). All have biases.
struct AttentionPool {
  int64_t heads = 1, mlp_width = 0;
  Activation activation = Activation::gelu_tanh;
  std::optional<Norm> norm;  // before the MLP
  bool operator==(const AttentionPool&) const = default;
};

struct Head {
  bool tied = false;  // head.weight is embed.token.weight
  bool bias = false;
  std::optional<int64_t> classes;
  std::optional<double> softcap;
  double scale = 1;  // of the logits, before they are capped
  std::optional<HeadTransform> transform;
  Pool pool = Pool::first;  // of a classifier, a pooler, a second head; none: an encoder's transform is for each token
  std::optional<int64_t> pool_token;  // of Pool::token: its first in a sequence; absent: that of the highest id
  std::optional<AttentionPool> attention_pool;
  std::optional<Norm> pool_norm;  // of what stands for the sequence alone (CLIP's images)
  std::optional<SequenceHead> sequence;
  // Something that is no part of the model reads what the head does: nothing may change its basis. Of a rewrite, not of
  // a model, so no file says it.
  bool read_elsewhere = false;
  bool operator==(const Head&) const = default;
};

struct Architecture {
  std::string name;
  Task task = Task::causal_lm;
  int64_t width = 0, vocab = 0, context = 0;
  Embedding embedding;
  std::vector<Block> blocks;                   // each owns tensors: block N those called blocks.N.*
  std::optional<std::vector<int64_t>> layers;  // absent: each block once, in order
  FirstLayer first_layer = FirstLayer::dense;
  std::optional<Norm> final_norm;
  Head head;
  bool operator==(const Architecture&) const = default;
};

// Which block each layer runs.
std::vector<int64_t> layer_blocks(const Architecture& architecture);
// How many layers run a block.
int64_t runs_of(const Architecture& architecture, int64_t block);
// Whether the projections of this block, and the norm before them, are rows of the first-layer table.
bool is_tabled(const Architecture& architecture, int64_t block);

// The widths of a row of the token table, and of a row of the position and type tables.
int64_t token_width(const Architecture& architecture);
int64_t embedding_width(const Architecture& architecture);
// How many positions the stream of one image has (patches, class token and registers).
int64_t patch_positions(const Architecture& architecture);
// Rows of a stored table of positions.
int64_t position_rows(const Architecture& architecture);

}  // namespace pare
