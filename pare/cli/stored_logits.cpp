#include "pare/cli/stored_logits.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <optional>

#include "pare/arch/head.h"
#include "pare/checkpoint/safetensors.h"
#include "pare/checkpoint/weights.h"
#include "pare/support/error.h"
#include "pare/support/files.h"
#include "pare/support/names.h"

namespace pare {

namespace {

// Of one sequence, as the file of inputs counts them.
Weight logits_of_sequence(const Weights& file, int64_t number) {
  if (const auto own = file.find(fmt::format("logits.{}", number)); own != file.end()) {
    return own->second;
  }
  const auto all = file.find("logits");
  if (all == file.end() || all->second.shape().size() != 3 || number >= all->second.shape().front()) {
    return {};
  }
  const Weight whole = all->second;
  return Weight::leaf(fmt::format("logits[{}]", number), whole.dtype(), {whole.shape()[1], whole.shape()[2]},
                      [whole, number] { return whole.load_rows(number, 1).squeeze(0); });
}

}  // namespace

StoredLogits read_stored_logits(const std::filesystem::path& path, const Question& question,
                                const Architecture& architecture) {
  const std::string subject = quote(shown(path));
  const SafetensorsFile opened(path);
  const Weights file = weights_of(opened);
  const int64_t columns = head_size(architecture);
  refuse_if(columns == 0, "{}: the model has no logits to compare with", subject);
  Problems problems;
  StoredLogits stored{.sha256 = opened.sha256()};
  std::vector<at::Tensor> rows;
  size_t next = 0;
  std::optional<Dtype> finest;
  for (const Inputs& inputs : question.inputs) {
    problems.add_if(inputs.mask.defined() || !inputs.ids.defined(),
                    "logits are compared for sequences of tokens without padding: give them by --tokens");
    if (inputs.mask.defined() || !inputs.ids.defined()) {
      break;
    }
    const int64_t tokens = answers_sequences(architecture) ? 1 : inputs.ids.size(1);
    for (int64_t i = 0; i < inputs.ids.size(0); ++i) {
      const int64_t number = question.numbers[next++];
      const Weight logits = logits_of_sequence(file, number);
      if (!logits) {
        problems.add(fmt::format(
            "no logits of sequence {}: expected a tensor 'logits.{}', or 'logits' with one more axis", number, number));
      } else if (logits.shape() != Shape{tokens, columns} && (tokens > 1 || logits.shape() != Shape{columns})) {
        problems.add(fmt::format("the logits of sequence {} are [{}], expected [{}, {}]", number,
                                 fmt::join(logits.shape(), ", "), tokens, columns));
      } else if (word(logits.dtype()).empty()) {
        problems.add(
            fmt::format("the logits of sequence {} are {}, expected floats", number, dtype_name(logits.dtype())));
      } else {
        if (!finest || unit_roundoff(logits.dtype()) < unit_roundoff(*finest)) {
          finest = logits.dtype();  // the finest: what is stored coarser is judged no milder for it
        }
        rows.push_back(logits.load().reshape({tokens, columns}));
      }
    }
  }
  problems.throw_if_any(subject);
  stored.dtype = finest.value_or(Dtype::f32);
  for (at::Tensor& each : rows) {
    each = each.to(scalar_type(stored.dtype));
  }
  stored.rows = at::cat(rows);
  return stored;
}

}  // namespace pare
