#include "pare/train/start.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "pare/algebra/operations.h"
#include "pare/data/tokenizer.h"
#include "pare/support/error.h"
#include "pare/support/names.h"
#include "pare/support/numbers.h"
#include "pare/train/initialise.h"

namespace pare {

namespace {

constexpr size_t most_named = 6;

std::string some_of(const std::vector<std::string>& names) {
  const size_t shown = std::min(names.size(), most_named);
  const std::string list = fmt::format("{}", fmt::join(names.begin(), names.begin() + static_cast<long>(shown), ", "));
  return names.size() > shown ? fmt::format("{} and {} more", list, names.size() - shown) : list;
}

std::string shape_text(const Shape& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

// In the run's own type; read when it is asked for, so that a start that no rank holds whole is never whole anywhere.
Weight taken(const Weight& weight, at::ScalarType type) {
  return Weight::made("taken", dtype_of(type), weight.shape(), {weight},
                      [type](std::vector<at::Tensor>& in) { return in[0].to(type); });
}

// Of a text that is read as bytes by a model to whose tokens bytes mean nothing; empty where they may.
std::string warning_of_bytes(const TrainConfig& config, const Architecture& source) {
  const DataConfig& data = config.data;
  const bool text = config.task == TrainTask::causal_lm || config.task == TrainTask::masked_lm;
  if (!text || data.format != DataFormat::bytes || !data.tokenizer.empty() || !data.shards.empty()) {
    return "";
  }
  constexpr int64_t bytes = 256;
  if (reads_bytes(config.from)) {
    return "";
  }
  const bool has_tokenizer = !tokenizers_in(config.from).empty();
  if (!has_tokenizer && source.vocab <= bytes + (data.mask_token ? 1 : 0)) {
    return "";
  }
  return fmt::format("each byte of the text is a token, but {} {}: to it these tokens may mean something else. {}",
                     quote(config.from),
                     has_tokenizer ? "has a tokenizer" : fmt::format("has {} tokens", with_commas(source.vocab)),
                     has_tokenizer ? fmt::format("data.tokenizer={} reads the text with it", shell_word(config.from))
                                   : "Name its tokenizer (data.tokenizer), unless it learned bytes");
}

}  // namespace

nlohmann::ordered_json source_manifest(const std::string& path, const ModelFolder& folder) {
  nlohmann::ordered_json files = nlohmann::ordered_json::object();
  for (const auto& [name, hash] : file_hashes(folder)) {
    files[name] = hash;
  }
  return {{"path", path}, {"family", folder.family}, {"sha256", files}};
}

Start start_of_run(const TrainConfig& config, const Inputs& sample) {
  Start start;
  if (config.from.empty()) {
    start.model = initial_model(config, sample);
    return start;
  }
  const ModelFolder source = open_model(config.from);
  Weights given = source.model.weights;
  if (source.model.architecture.head.tied) {  // a head of its own begins as the table that it was
    given[name_of(weight_of(head_matrix))] = as_head(given.at(name_of(weight_of(token_table))));
  }
  const bool same = source.model.architecture == config.architecture;
  start.model = same ? Model{config.architecture, {}} : initial_model(config, sample);
  const at::ScalarType type = config.dtype == TrainDtype::float64 ? at::kDouble : at::kFloat;
  std::vector<std::string> drawn, left;
  int64_t count = 0;
  const TensorTable table = tensor_table(config.architecture);
  for (const TensorSpec& spec : table) {
    const auto found = given.find(spec.name);
    if (found == given.end() || found->second.shape() != spec.shape) {
      drawn.push_back(spec.name);
      continue;
    }
    start.model.weights[spec.name] = spec.index ? found->second : taken(found->second, type);
    ++count;
  }
  nlohmann::ordered_json not_taken = nlohmann::ordered_json::array();
  for (const auto& [name, weight] : source.model.weights) {
    const TensorSpec* spec = table.find(name);
    if (spec && spec->shape == weight.shape()) {
      continue;
    }
    left.push_back(
        spec ? fmt::format("{} (it is {} there, {} here)", name, shape_text(weight.shape()), shape_text(spec->shape))
             : name);
    not_taken.push_back({{"tensor", name}, {"why", spec ? "another shape" : "this Architecture has none"}});
  }
  for (const auto& [name, tensor] : source.unused) {
    if (tensor.copy_of.empty()) {  // a pooler that pre-training left: the run's checkpoints will not have it
      left.push_back(name);
      not_taken.push_back({{"tensor", name}, {"why", "the model does not use it"}});
    }
  }
  if (count == 0) {
    throw InputError(fmt::format("from: {} has no tensor that this Architecture has in the same shape: it has {}",
                                 quote(config.from), some_of(left)));
  }
  if (const std::string warning = warning_of_bytes(config, source.model.architecture); !warning.empty()) {
    start.warnings.push_back(warning);
  }
  if (const int64_t seen = context_of(config), read = source.model.architecture.context;
      seen < read && !is_generated(config.task) && !config.architecture.embedding.patch) {
    start.warnings.push_back(fmt::format(
        "sequences have {} tokens, and {} reads {}: what it does with later positions is not trained, and may "
        "be lost. context={} trains all of them",
        seen, quote(config.from), read, read));
  }
  start.manifest["from"] = source_manifest(config.from, source);
  start.manifest["from"]["taken"] = count;
  start.manifest["from"]["not_taken"] = not_taken;
  start.manifest["from"]["drawn"] = drawn;
  start.note = fmt::format("from {}: {} of {} tensors taken", quote(config.from), count, table.size());
  start.note += left.empty() ? "" : fmt::format("; not taken: {}", some_of(left));
  start.note += drawn.empty() ? "" : fmt::format("; drawn: {}", some_of(drawn));
  return start;
}

}  // namespace pare
