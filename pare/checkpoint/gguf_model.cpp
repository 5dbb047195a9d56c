#include "pare/checkpoint/gguf_model.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "pare/checkpoint/family.h"
#include "pare/checkpoint/gguf_blocks.h"
#include "pare/checkpoint/gguf_rope.h"
#include "pare/support/error.h"
#include "pare/support/files.h"
#include "pare/support/interrupt.h"
#include "pare/support/names.h"

namespace pare {

namespace {

std::optional<Dtype> plain_dtype(GgufType type) {
  switch (type) {
    case GgufType::f32:
      return Dtype::f32;
    case GgufType::f16:
      return Dtype::f16;
    case GgufType::bf16:
      return Dtype::bf16;
    case GgufType::f64:
      return Dtype::f64;
    default:
      return std::nullopt;
  }
}

float fact_of(const BlockRange& range, GgufFact fact) {
  switch (fact) {
    case GgufFact::step:
      return range.step;
    case GgufFact::low:
      return range.low;
    case GgufFact::high:
      return range.high;
    case GgufFact::within:
      return range.within;
    case GgufFact::outside:
      return range.outside;
    case GgufFact::moved:
      return range.moved;
    case GgufFact::value:
    case GgufFact::group:
      break;
  }
  PARE_UNREACHABLE("no fact of a range");
}

void take_fact(GgufType type, std::span<const std::byte> blocks, GgufFact fact, std::span<float> into) {
  std::vector<BlockRange> ranges(into.size());
  ranges_of_blocks(type, blocks, ranges);
  std::ranges::transform(ranges, into.begin(), [fact](const BlockRange& range) { return fact_of(range, fact); });
}

// Counted from the beginning of the tensor.
at::Tensor groups_of(const GgufTensor& stored, int64_t first, const Shape& shape) {
  const int64_t row = element_count(shape) / std::max<int64_t>(shape[0], 1);
  const int64_t together = plain_dtype(stored.type) ? 1 : static_cast<int64_t>(elements_of_scale(stored.type));
  at::Tensor groups = at::empty(shape, at::kDouble);
  double* const numbers = groups.data_ptr<double>();
  for (int64_t i = 0; i < groups.numel(); ++i) {
    numbers[i] = static_cast<double>((first * row + i) / together);
  }
  return groups;
}

// `rows` entries of the first axis from `first` on. Blocks lie within the last axis, so an entry is whole blocks, but
// in a vector.
at::Tensor load(const GgufFile& file, const std::string& name, GgufFact fact, int64_t first, int64_t rows) {
  check_interrupt();
  const GgufTensor& stored = file.tensors().at(name);
  const GgufBlock& block = *gguf_block(stored.type);
  Shape shape = stored.shape;
  shape[0] = rows;
  if (fact == GgufFact::group) {
    return groups_of(stored, first, shape);
  }
  const std::optional<Dtype> plain = plain_dtype(stored.type);
  at::Tensor tensor = at::empty(shape, scalar_type(plain.value_or(Dtype::f32)));
  const uint64_t all = (stored.end - stored.begin) / static_cast<uint64_t>(stored.shape[0]);
  const uint64_t begin = static_cast<uint64_t>(first) * all;
  const int64_t blocks = tensor.numel() / static_cast<int64_t>(block.elements);
  constexpr int64_t piece = 1 << 14;  // blocks
  auto* const out = static_cast<std::byte*>(tensor.data_ptr());
  at::parallel_for(0, (blocks + piece - 1) / piece, 1, [&](int64_t from, int64_t to) {
    std::vector<std::byte> bytes;
    for (int64_t i = from; i < to; ++i) {
      const auto count = static_cast<uint64_t>(std::min(piece, blocks - i * piece));
      const uint64_t done = static_cast<uint64_t>(i * piece), offset = begin + done * block.bytes;
      if (plain) {
        file.read(name, offset, {out + done * block.bytes, count * block.bytes});
        continue;
      }
      bytes.resize(count * block.bytes);
      file.read(name, offset, bytes);
      const std::span<float> numbers(reinterpret_cast<float*>(out) + done * block.elements, count * block.elements);
      if (fact == GgufFact::value) {
        dequantise(stored.type, bytes, numbers);
      } else {
        take_fact(stored.type, bytes, fact, numbers);
      }
    }
  });
  check_finite(tensor, name, quote(file.path().filename().string()));
  const bool is_distance =
      fact == GgufFact::step || fact == GgufFact::within || fact == GgufFact::outside || fact == GgufFact::moved;
  return plain && is_distance ? at::zeros_like(tensor) : tensor;
}

Weights weights_of_file(const GgufFile& file, GgufFact fact) {
  Weights weights;
  for (const auto& [name, stored] : file.tensors()) {
    const Weight::LoadRows rows = [file, fact, name = name](int64_t begin, int64_t count) {
      return load(file, name, fact, begin, count);
    };
    const std::optional<Dtype> plain = fact == GgufFact::group ? Dtype::f64 : plain_dtype(stored.type);
    const bool by_rows = plain_dtype(stored.type) || stored.shape.size() > 1;
    weights[name] = Weight::leaf(
        name, plain.value_or(Dtype::f32), stored.shape, [rows, all = stored.shape[0]] { return rows(0, all); },
        by_rows ? rows : nullptr);
  }
  return weights;
}

void refuse_other_types(std::span<const GgufFile> files) {
  std::map<std::string_view, std::vector<std::string>> refused;
  for (const GgufFile& file : files) {
    for (const auto& [name, stored] : file.tensors()) {
      if (!plain_dtype(stored.type) && !can_dequantise(stored.type)) {
        refused[gguf_block(stored.type)->name].push_back(quote(name));
      }
    }
  }
  Problems problems;
  for (auto& [type, names] : refused) {
    const size_t all = names.size();
    names.resize(std::min<size_t>(all, 3));
    problems.add(
        fmt::format("{} {} of the type {}, which pare does not read; read are {}: take another quantisation "
                    "of the model, such as Q4_K_M, Q8_0 or F16 ({}{})",
                    all, all == 1 ? "tensor is" : "tensors are", type, readable_gguf_types(), fmt::join(names, ", "),
                    all > 3 ? ", ..." : ""));
  }
  problems.throw_if_any(quote(shown(files.front().path())));
}

// "blk.12.attn_q.weight" is {"blk.{}.attn_q", "12", ".weight"}.
struct NameParts {
  std::string module, block, ending;
};

NameParts parts_of(const std::string& name) {
  NameParts parts;
  const size_t dot = name.rfind('.');
  parts.module = name.substr(0, dot);
  parts.ending = dot == std::string::npos ? "" : name.substr(dot);
  if (parts.module.starts_with("blk.")) {
    const size_t begin = 4, end = std::min(parts.module.find('.', begin), parts.module.size());
    const std::string number = parts.module.substr(begin, end - begin);
    if (!number.empty() && std::ranges::all_of(number, [](char c) { return c >= '0' && c <= '9'; })) {
      parts.block = number;
      parts.module.replace(begin, number.size(), "{}");
    }
  }
  return parts;
}

const GgufRow* row_of(const GgufFamily& family, const NameParts& parts, const Weights& stored) {
  const auto found = std::ranges::find_if(family.tensors, [&](const GgufRow& row) {
    return row.theirs == parts.module && (row.beside.empty() || stored.contains(std::string(row.beside)));
  });
  return found == family.tensors.end() ? nullptr : &*found;
}

}  // namespace

std::optional<GgufFact> gguf_fact_of(std::string_view word) {
  constexpr std::pair<std::string_view, GgufFact> words[] = {
      {"value", GgufFact::value}, {"step", GgufFact::step},     {"low", GgufFact::low},
      {"high", GgufFact::high},   {"within", GgufFact::within}, {"outside", GgufFact::outside},
      {"moved", GgufFact::moved}, {"group", GgufFact::group}};
  const auto found = std::ranges::find(words, word, &std::pair<std::string_view, GgufFact>::first);
  return found == std::end(words) ? std::nullopt : std::optional(found->second);
}

Weights weights_of(std::span<const GgufFile> files, GgufFact fact) {
  refuse_other_types(files);
  Weights weights;
  for (const GgufFile& file : files) {
    weights.merge(weights_of_file(file, fact));
  }
  return weights;
}

namespace {

std::map<std::string, Shape> shapes_of(const Weights& weights) {
  std::map<std::string, Shape> shapes;
  for (const auto& [name, weight] : weights) {
    shapes[name] = weight.shape();
  }
  return shapes;
}

// Beside "blk.3.attn_q.weight" or in its place: llama.cpp does not read it, so it must not stand for what it reads.
void refuse_names_of_family(const GgufFamily& family, const std::string& name, const std::string& subject) {
  const std::string prefixed = std::string(find_family(std::string(family.model_type), subject).base_prefix) + name;
  const auto row = std::ranges::find_if(family.tensors, [&](const GgufRow& each) {
    const std::string theirs = fmt::format("*{}.*", fmt::format(fmt::runtime(each.family), "*"));
    return glob_match(theirs, name) || glob_match(theirs, prefixed);
  });
  refuse_if(
      row != family.tensors.end(),
      "{}: tensor {} has the name that Hugging Face gives it, and llama.cpp reads {} only: was it not renamed when "
      "the file was made?",
      subject, quote(name), row == family.tensors.end() ? "" : quote(row->theirs));
}

// By the family's names and in its order of rows. What nobody expects keeps its name.
Weights of_family(const GgufMetadata& metadata, const Weights& stored, GgufFact fact, const std::string& subject) {
  const GgufFamily& family = gguf_family(metadata, subject);
  const std::map<std::string, Shape> shapes = shapes_of(stored);
  nlohmann::json unused;
  const GgufReading reading{metadata, shapes, unused};
  GgufHeads heads{.all = reading.whole("attention.head_count").value_or(0)};
  heads.kv = reading.whole("attention.head_count_kv").value_or(heads.all);
  Weights weights;
  for (const auto& [name, weight] : stored) {
    const NameParts parts = parts_of(name);
    if (const GgufRow* const row = row_of(family, parts, stored)) {
      const std::string ours = fmt::format(fmt::runtime(row->family), parts.block) + parts.ending;
      const bool is_number = fact == GgufFact::value || fact == GgufFact::low || fact == GgufFact::high;
      const bool keeps = !is_number && row->change == GgufChange::plus_one;  // a distance does not move
      weights[ours] = keeps ? weight : gguf_undone(row->change, ours, name, weight, heads);
    } else {
      refuse_names_of_family(family, name, subject);
      weights[name] = weight;
    }
  }
  return weights;
}

}  // namespace

GgufModel open_gguf_model(const std::filesystem::path& path) {
  GgufModel model;
  model.files = open_gguf(path);
  const GgufMetadata& metadata = model.files.front().metadata();
  const std::string subject = quote(shown(path));
  gguf_family(metadata, subject);  // before types are looked at: what the file is comes first
  Weights stored = weights_of(model.files);
  model.config = gguf_config(metadata, shapes_of(stored), subject);
  if (const auto factors = stored.find(rope_factors_name);
      factors != stored.end() && model.config.contains("rope_parameters")) {
    add_rope_factors(model.config, factors->second.load(), subject);
    stored.erase(factors);
  }
  model.weights = of_family(metadata, stored, GgufFact::value, subject);
  return model;
}

Weights gguf_facts(std::span<const GgufFile> files, GgufFact fact) {
  Weights stored = weights_of(files, fact);
  stored.erase(rope_factors_name);
  return of_family(files.front().metadata(), stored, fact, quote(shown(files.front().path())));
}

}  // namespace pare
