#pragma once
// What models say to the same inputs, as rows that can be compared, and the comparison of two of them.

#include <ATen/core/Tensor.h>

#include <functional>
#include <span>
#include <vector>

#include "pare/checkpoint/model_folder.h"
#include "pare/model/blockwise.h"
#include "pare/model/ends.h"
#include "pare/ranks/shares.h"
#include "pare/verify/metrics.h"

namespace pare {

// The inputs, and what each compared row belongs to. Padded positions are no rows.
struct Asked {
  std::vector<Inputs> inputs;  // on the device, in pieces of a few hundred tokens
  at::Tensor sequence;         // int64 [rows]: counted over all inputs
  at::Tensor targets;          // int64 [rows]: the next token or -1; undefined where nothing is predicted
  int64_t sequences = 0, tokens = 0;

  // Of several ranks each is asked some of the pieces. One process has the same pieces, so each row has the same
  // digits.
  Communicator ranks;
  struct Stretch {
    int64_t first = 0, count = 0;

    at::Tensor of(const at::Tensor& all) const { return all.defined() ? all.narrow(0, first, count) : all; }
  };
  Stretch own_inputs, own_rows, own_sequences;
  bool counts = true;  // else there were more ranks than pieces, and this one does a piece of another's, for nothing

  at::Tensor gathered(const at::Tensor& own) const;  // rows of all ranks; undefined: of none
};

Asked ask(const Architecture& architecture, std::span<const Inputs> inputs, at::Device device,
          const Communicator& ranks = {});
// Sequence number s alone.
Inputs sequence_of(const Asked& asked, int64_t s);

// One model in one arithmetic.
struct ComparedModel {
  const Model& model;
  Arithmetic arithmetic;
};

struct Answer {
  at::Tensor rows;                   // what the head's matrix reads, or an encoder's hidden states
  at::Tensor pooled;                 // one row for each sequence: what an encoder pools, or the logits of a second head
  std::vector<int64_t> pieces = {};  // so many rows each: their logits are computed one piece at a time; none: at once
};

// To what this rank was asked. `advance` is called after every layer.
Answer answer_of(const ComparedModel& runner, const Asked& asked, const std::function<void()>& advance);
// The rows of the features of one input, and what they say of each sequence besides.
at::Tensor rows_of(const Features& features, const Inputs& inputs);
at::Tensor pooled_of(const Features& features);

// What one model said to what was asked.
struct Said {
  const ComparedModel& model;
  const Answer& answer;
};

// The reference's answer beside each of the others', to the same rows. The heads' matrices are read in slices, each
// once. `seed` chooses the columns that scales are taken from. Of several ranks all have the rows of all.
std::vector<Comparison> compare(const Said& reference, std::span<const Said> others, const Asked& asked, uint64_t seed);
// Of some rows that were asked alone.
std::vector<Comparison> compare(const Said& reference, std::span<const Said> others, const at::Tensor& targets,
                                uint64_t seed);

// What some program answered, in any float type.
struct GivenAnswers {
  at::Tensor rows;    // [rows, columns]: logits, or an encoder's hidden states
  at::Tensor pooled;  // undefined where nobody gave it, also where the model has it
};
// `given`: of all that was asked.
Comparison compare_with(const Said& reference, const GivenAnswers& given, const Asked& asked, uint64_t seed);

}  // namespace pare
