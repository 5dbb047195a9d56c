#pragma once
// What an attention sublayer is. attention.cpp says how it is written as JSON, what it must obey and what it stores.

#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include "pare/arch/norm.h"
#include "pare/arch/rope.h"

namespace pare {

struct Alibi {
  bool scaled = true;   // Falcon adds the bias before the scores are scaled
  double steepest = 8;  // the slopes are powers of two, the last of them 2^-steepest
  bool operator==(const Alibi&) const = default;
};

// How a projection comes about; which of these a query, a key, a value or an output may be is a rule of attention.cpp.
struct Dense {  // a matrix
  bool operator==(const Dense&) const = default;
};
struct Identity {  // no matrix: what comes in goes on
  bool operator==(const Identity&) const = default;
};
struct SameAsKey {  // of a query: it is the key
  bool operator==(const SameAsKey&) const = default;
};
struct Nonlinear {  // of a query: x + down(activation(up(x)))
  int64_t width = 0;
  Activation activation = Activation::gelu;
  bool operator==(const Nonlinear&) const = default;
};
struct FromKey {  // of a value: a matrix of the key, so that only keys have to be remembered
  bool operator==(const FromKey&) const = default;
};
struct FromValue {  // of a key: a matrix of the value
  bool operator==(const FromValue&) const = default;
};
struct Shrunk {  // of a key or value: a matrix whose identity block, in each head, is not stored
  bool operator==(const Shrunk&) const = default;
};
using Projection = std::variant<Dense, Identity, SameAsKey, Nonlinear, FromKey, FromValue, Shrunk>;

template <class Kind>
bool is(const Projection& projection) {
  return std::holds_alternative<Kind>(projection);
}

struct AttentionBias {
  bool query = false, key = false, value = false, output = false;
  bool operator==(const AttentionBias&) const = default;
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
  std::optional<Norm> qk_norm;
  QkNormOver qk_norm_over = QkNormOver::head;
  std::optional<double> softcap;
  std::optional<Gate> gate;
  bool shaped = false;  // alpha I + beta softmax(...) - gamma C for each head, C what sees all that it may alike
  std::optional<Norm> norm, output_norm;
  bool skip = true;
  Remembered remembered = Remembered::keys_values;
  bool operator==(const Attention&) const = default;
};

// A matrix, or what comes in itself.
bool is_plain(const Projection& projection);
// What scores are multiplied by.
double scale_of(const Attention& attention);

// Attention is a mean of values: what all of them have in common comes out as it went in.
bool rows_sum_to_one(const Attention& attention);

// Queries, keys and values are plain products of one input, each with a matrix of its own.
bool has_dense_projections(const Attention& attention);
// Queries and keys are normed after they are turned.
bool norms_turned(const Attention& attention);
// The shape of the gain of the queries' norm, or of the keys'.
std::vector<int64_t> qk_norm_shape(const Attention& attention, int64_t heads);
// Keys and values are such products, or the input itself, and are what is remembered.
bool has_plain_keys_and_values(const Attention& attention);

}  // namespace pare
