#include "pare/cli/run_inputs.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "pare/checkpoint/safetensors.h"
#include "pare/checkpoint/weights.h"
#include "pare/support/error.h"
#include "pare/support/files.h"
#include "pare/support/json.h"
#include "pare/support/log.h"
#include "pare/support/names.h"

namespace pare {

namespace {

constexpr uint64_t largest_token_file = 4'000'000'000;
constexpr size_t most_problems = 20;  // a file of the wrong kind would list millions

// So many rows at once that their logits in float64 stay near a gigabyte; and of a few thousand tokens, since ranks
// share out whole batches, and one process has the same ones.
int64_t rows_at_once(const Architecture& architecture, int64_t tokens) {
  constexpr int64_t most_tokens = 2048, most_rows = 256;
  const int64_t widest = std::max({architecture.vocab, architecture.width, int64_t{1}});
  const int64_t rows =
      std::min(125'000'000 / std::max<int64_t>(1, tokens * widest), most_tokens / std::max<int64_t>(1, tokens));
  return std::clamp<int64_t>(rows, 1, most_rows);
}

// Only a learned table ends; every other kind of position goes on, as a model may be asked to.
void check_length(int64_t tokens, const std::string& subject, const Architecture& architecture, Problems& problems) {
  if (tokens <= architecture.context) {
    return;
  }
  if (architecture.embedding.position == Position::learned) {
    problems.add(fmt::format("{} has {} tokens, but the learned positions end at the context of {}", subject, tokens,
                             architecture.context));
  } else {
    log_warning(fmt::format("{} has {} tokens, beyond the context of {} that the model was made for", subject, tokens,
                            architecture.context));
  }
}

void check_reads_tokens(const Architecture& architecture, const std::string& subject) {
  refuse_if(architecture.embedding.patch.has_value(), "{}: this model reads images: give --inputs with pixel_values",
            subject);
}

std::vector<int64_t> read_sequence(const nlohmann::json& list, size_t number, const Architecture& architecture,
                                   Problems& problems) {
  std::vector<int64_t> ids;
  if (!list.is_array() || list.empty()) {
    problems.add(fmt::format("sequence {} is {}, expected a list of token ids", number,
                             list.is_array() ? "empty" : list.type_name()));
    return ids;
  }
  for (size_t place = 0; place < list.size() && problems.list().size() < most_problems; ++place) {
    const nlohmann::json& item = list[place];
    const bool small = item.is_number_integer() && (!item.is_number_unsigned() || item.get<uint64_t>() < INT64_MAX);
    if (!small || item.get<int64_t>() < 0 || item.get<int64_t>() >= architecture.vocab) {
      const std::string found = json_shown(item);
      problems.add(
          fmt::format("sequence {}, position {}: ", number, place) +
          (item.is_number_integer()
               ? fmt::format("token id {} is outside the vocabulary of {}", found, architecture.vocab)
               : fmt::format("found {}, expected a token id: a whole number below {}", found, architecture.vocab)));
      continue;
    }
    ids.push_back(item.get<int64_t>());
  }
  check_length(static_cast<int64_t>(list.size()), fmt::format("sequence {}", number), architecture, problems);
  return ids;
}

// One tensor of the file, as int64 [batch, tokens] in the range [0, most).
at::Tensor read_integers(const Weights& file, const std::string& name, at::IntArrayRef shape, int64_t most,
                         Problems& problems) {
  const at::Tensor stored = file.at(name).load();
  if (!at::isIntegralType(stored.scalar_type(), true) || stored.dim() != 2 ||
      (!shape.empty() && stored.sizes() != shape)) {
    problems.add(fmt::format("{} is {} [{}], expected integers [{}]", name, dtype_name(file.at(name).dtype()),
                             fmt::join(stored.sizes(), ", "),
                             shape.empty() ? "batch, tokens" : fmt::format("{}", fmt::join(shape, ", "))));
    return {};
  }
  const at::Tensor values = stored.to(at::kLong);
  const at::Tensor wrong = at::nonzero((values < 0).logical_or_(values >= most));
  if (wrong.size(0) > 0) {
    const int64_t row = wrong[0][0].item<int64_t>(), place = wrong[0][1].item<int64_t>();
    problems.add(fmt::format("{}: sequence {}, position {}: {} is outside [0, {})", name, row, place,
                             values[row][place].item<int64_t>(), most));
  }
  return values;
}

// Where the ones of a row are not one run, no padding explains the zeros.
void check_padding(const at::Tensor& mask, Problems& problems) {
  const at::Tensor changes = at::diff(at::constant_pad_nd(mask.to(at::kLong), {1, 1}), 1, 1).abs().sum(1);
  const at::Tensor wrong = at::nonzero(changes != 2);
  if (wrong.size(0) > 0) {
    problems.add(fmt::format("attention_mask: the ones of sequence {} are not one run, expected left or right padding",
                             wrong[0][0].item<int64_t>()));
  }
}

Inputs read_tokens(const Weights& file, const Architecture& architecture, Problems& problems) {
  Inputs inputs;
  // Masked places may hold anything, so the mask is read first and the ids are cleared under it.
  at::IntArrayRef shape = file.at("input_ids").shape();
  if (file.contains("attention_mask")) {
    inputs.mask = read_integers(file, "attention_mask", shape, 2, problems);
    if (!inputs.mask.defined()) {
      return inputs;
    }
    inputs.mask = inputs.mask.to(at::kBool);
    check_padding(inputs.mask, problems);
  }
  Weights cleared = file;
  if (inputs.mask.defined()) {
    for (const char* name : {"input_ids", "token_type_ids", "position_ids"}) {
      if (cleared.contains(name)) {
        const Weight& ids = file.at(name);
        cleared[name] =
            Weight::made(name, ids.dtype(), ids.shape(), {ids}, [mask = inputs.mask](std::vector<at::Tensor>& in) {
              return in[0].sizes() == mask.sizes() ? in[0].masked_fill(mask.logical_not(), 0) : in[0];
            });
      }
    }
  }
  inputs.ids = read_integers(cleared, "input_ids", {}, architecture.vocab, problems);
  if (file.contains("token_type_ids")) {
    inputs.types = read_integers(cleared, "token_type_ids", shape, architecture.embedding.types, problems);
  }
  const bool learned = architecture.embedding.position == Position::learned;
  if (file.contains("position_ids")) {
    inputs.positions =
        read_integers(cleared, "position_ids", shape, learned ? architecture.context : INT32_MAX, problems);
  } else if (inputs.ids.defined()) {
    const int64_t tokens = inputs.mask.defined() ? inputs.mask.sum(1).max().item<int64_t>() : inputs.ids.size(1);
    check_length(tokens, "the longest sequence of input_ids", architecture, problems);
  }
  return inputs;
}

Inputs read_pixels(const Weights& file, const Patch& patch, Problems& problems) {
  const at::Tensor pixels = file.at("pixel_values").load();
  const Shape expected = {patch.channels, patch.image, patch.image};
  if (!pixels.is_floating_point() || pixels.dim() != 4 || pixels.sizes().slice(1) != at::IntArrayRef(expected)) {
    problems.add(fmt::format("pixel_values is {} [{}], expected floats [batch, {}]",
                             dtype_name(file.at("pixel_values").dtype()), fmt::join(pixels.sizes(), ", "),
                             fmt::join(expected, ", ")));
  }
  Inputs inputs;
  inputs.pixels = pixels;
  return inputs;
}

// What would be read by nobody is a misunderstanding, and never passed over in silence.
void check_read(const std::string& name, const Architecture& architecture, Problems& problems) {
  const bool image = architecture.embedding.patch.has_value();
  if ((name == "pixel_values") != image) {
    problems.add(fmt::format("tensor '{}' is given, but the model reads {}: remove it", name,
                             image ? "nothing but pixel_values" : "tokens"));
  } else if (name == "token_type_ids" && architecture.embedding.types == 0) {
    problems.add("tensor 'token_type_ids' is given, but the model has no token types: remove it");
  }
}

void check_names(const Weights& file, const std::string& needed, const Architecture& architecture, Problems& problems) {
  static const std::vector<std::string> known = {"input_ids", "attention_mask", "token_type_ids", "position_ids",
                                                 "pixel_values"};
  for (const auto& [name, weight] : file) {
    if (std::ranges::find(known, name) == known.end()) {
      problems.add(fmt::format("tensor {} is no input{}", quote(name), did_you_mean(name, known)));
    } else {
      check_read(name, architecture, problems);
    }
  }
  if (!file.contains(needed)) {
    problems.add(fmt::format("tensor '{}' is missing", needed));
  } else if (file.at(needed).shape().empty() || element_count(file.at(needed).shape()) == 0) {
    problems.add(fmt::format("tensor '{}' is empty", needed));
  }
}

}  // namespace

std::vector<Batch> batches_of(std::vector<std::vector<int64_t>> sequences, const Architecture& architecture) {
  std::map<size_t, std::vector<size_t>> by_length;
  for (size_t number = 0; number < sequences.size(); ++number) {
    by_length[sequences[number].size()].push_back(number);
  }
  std::vector<Batch> batches;
  for (const auto& [length, numbers] : by_length) {
    const size_t most = static_cast<size_t>(rows_at_once(architecture, static_cast<int64_t>(length)));
    for (size_t first = 0; first < numbers.size(); first += most) {
      Batch batch;
      std::vector<at::Tensor> rows;
      for (size_t n = first; n < std::min(first + most, numbers.size()); ++n) {
        batch.sequences.push_back(static_cast<int64_t>(numbers[n]));
        rows.push_back(at::tensor(sequences[numbers[n]], at::kLong));
      }
      batch.inputs.ids = at::stack(rows);
      batches.push_back(std::move(batch));
    }
  }
  return batches;
}

std::vector<std::vector<int64_t>> read_token_rows(const std::filesystem::path& path, const Architecture& architecture) {
  const std::string subject = path.string();
  check_reads_tokens(architecture, subject);
  const nlohmann::json lists = parse_json(read_text_file(path, largest_token_file), subject);
  refuse_if(!lists.is_array() || lists.empty(), "{}: found {}, expected a list of lists of token ids", subject,
            lists.is_array() ? "an empty list" : lists.type_name());
  Problems problems;
  std::vector<std::vector<int64_t>> sequences;
  for (size_t number = 0; number < lists.size() && problems.list().size() < most_problems; ++number) {
    sequences.push_back(read_sequence(lists[number], number, architecture, problems));
  }
  problems.throw_if_any(subject);
  return sequences;
}

std::vector<Batch> read_token_lists(const std::filesystem::path& path, const Architecture& architecture) {
  return batches_of(read_token_rows(path, architecture), architecture);
}

std::vector<Batch> read_input_tensors(const std::filesystem::path& path, const Architecture& architecture) {
  const SafetensorsFile stored(path);
  const Weights file = weights_of(stored);
  const std::string subject = path.string(), needed = architecture.embedding.patch ? "pixel_values" : "input_ids";
  Problems problems;
  check_names(file, needed, architecture, problems);
  problems.throw_if_any(subject);
  const Inputs all = architecture.embedding.patch ? read_pixels(file, *architecture.embedding.patch, problems)
                                                  : read_tokens(file, architecture, problems);
  problems.throw_if_any(subject);
  const int64_t total = (all.pixels.defined() ? all.pixels : all.ids).size(0);
  const int64_t most =
      rows_at_once(architecture, all.pixels.defined() ? patch_positions(architecture) : all.ids.size(1));
  std::vector<Batch> batches;
  for (int64_t first = 0; first < total; first += most) {
    Batch batch;
    for (int64_t s = first; s < std::min(first + most, total); ++s) {
      batch.sequences.push_back(s);
    }
    batch.inputs = rows_of(all, first, std::ssize(batch.sequences));
    batches.push_back(std::move(batch));
  }
  return batches;
}

}  // namespace pare
