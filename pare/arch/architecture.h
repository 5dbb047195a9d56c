#pragma once
// What a transformer IS: one plain value that says everything the executor, the passes and the counts need.
// docs/formats.md explains every field; architecture_json.h reads and writes it; validate.h lists what is wrong with
// it.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "pare/arch/kinds.h"

namespace pare {

struct Norm {
  NormKind kind = NormKind::rms;
  NormPlace place = NormPlace::pre;  // post: after the skip is added
  double epsilon = 1e-5;
  bool gain = true;
  bool bias = false;
  double offset = 0;  // added to the stored gain: Gemma stores w and multiplies by 1 + w
  bool operator==(const Norm&) const = default;
};

struct RopeScaling {
  RopeScalingKind kind = RopeScalingKind::linear;
  double factor = 1;
  double original_context = 0;                    // dynamic, yarn, longrope, llama3
  double attention_factor = 1;                    // yarn, longrope: multiplies cosines and sines
  double beta_fast = 32, beta_slow = 1;           // yarn
  bool truncate = true;                           // yarn: round the ends of the ramp to whole dimensions
  double low_frequency = 1, high_frequency = 4;   // llama3
  std::vector<double> short_factor, long_factor;  // longrope: one per rotated plane
  bool operator==(const RopeScaling&) const = default;
};

struct Rope {
  double theta = 10000;
  int64_t width = 0;  // how many of a head's dimensions turn
  RopeLayout layout = RopeLayout::half;
  std::optional<RopeScaling> scaling;
  bool operator==(const Rope&) const = default;
};

struct Alibi {
  bool scaled = true;  // Falcon adds the bias before the scores are scaled
  bool operator==(const Alibi&) const = default;
};

struct NonlinearQuery {
  int64_t width = 0;
  Activation activation = Activation::gelu;
  bool operator==(const NonlinearQuery&) const = default;
};

struct Projection {
  ProjectionKind kind = ProjectionKind::dense;
  NonlinearQuery nonlinear;  // only when kind is nonlinear
  bool operator==(const Projection&) const = default;
};

struct AttentionBias {
  bool query = false, key = false, value = false, output = false;
  bool operator==(const AttentionBias&) const = default;
};

struct Pairs {
  PairForm value_output = PairForm::full, query_key = PairForm::full;
  bool operator==(const Pairs&) const = default;
};

struct Attention {
  int64_t heads = 0, kv_heads = 0, head_width = 0;
  std::optional<double> scale;  // absent: 1/sqrt(head_width)
  Projection query, key, value, output;
  Form scores = Form::factored, values = Form::factored;
  AttentionBias bias;
  Mask mask = Mask::causal;
  std::optional<int64_t> window;  // a query sees keys closer than this
  std::optional<Alibi> alibi;
  std::optional<Rope> rope;
  std::optional<Norm> qk_norm;  // over each head's width, gains shared by the heads
  std::optional<double> softcap;
  std::optional<Gate> gate;
  std::optional<Norm> norm, output_norm;
  bool skip = true;
  Pairs pairs;
  CacheKind cache = CacheKind::kv;
  bool operator==(const Attention&) const = default;
};

struct MlpBias {
  bool up = false, gate = false, down = false;
  bool operator==(const MlpBias&) const = default;
};

struct Mlp {
  MlpKind kind = MlpKind::dense;
  int64_t width = 0;
  Activation activation = Activation::gelu;
  bool gated = false;
  bool shared_value = false;  // kind heads only: the value weights are the query weights
  MlpBias bias;
  std::optional<Norm> norm, output_norm;
  bool skip = true;
  bool operator==(const Mlp&) const = default;
};

struct Block {
  int64_t repeat = 1;  // that many distinct blocks of this kind
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

struct Head {
  bool tied = false;  // head.weight is embed.token.weight
  bool bias = false;
  std::optional<int64_t> classes;
  std::optional<double> softcap;
  std::optional<HeadTransform> transform;
  Pool pool = Pool::first;  // of a classifier, a pooler, a second head; none: an encoder's transform is for each token
  std::optional<SequenceHead> sequence;
  bool operator==(const Head&) const = default;
};

struct Architecture {
  std::string name;
  Task task = Task::causal_lm;
  int64_t width = 0, vocab = 0, context = 0;
  Embedding embedding;
  std::vector<Block> blocks;                   // kinds of blocks, as written; see expanded_blocks
  std::optional<std::vector<int64_t>> layers;  // absent: each block once, in order
  FirstLayer first_layer = FirstLayer::dense;
  std::optional<Norm> final_norm;
  Head head;
  bool operator==(const Architecture&) const = default;
};

// The distinct blocks, `repeat` written out: block N here owns the tensors blocks.N.*
std::vector<Block> expanded_blocks(const Architecture& architecture);
// Which distinct block each layer runs.
std::vector<int64_t> layer_blocks(const Architecture& architecture);
// Equal neighbours folded into `repeat`, the form that is written.
std::vector<Block> folded_blocks(const std::vector<Block>& blocks);

// The widths of a row of the token table, and of a row of the position and type tables.
int64_t token_width(const Architecture& architecture);
int64_t embedding_width(const Architecture& architecture);
// How many positions the stream of one image has (patches and class token).
int64_t patch_positions(const Architecture& architecture);

}  // namespace pare
