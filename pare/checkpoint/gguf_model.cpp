#include "pare/checkpoint/gguf_model.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "pare/checkpoint/gguf_blocks.h"
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

// ---- what the converter did, undone

// Within each head, rows that turn together lie side by side; the family has all first ones and then all second ones.
at::Tensor by_halves(const at::Tensor& rows, int64_t heads) {
  return rows.unflatten(0, {heads, rows.size(0) / heads / 2, 2}).transpose(1, 2).flatten(0, 2).contiguous();
}

Weight heads_by_halves(const std::string& name, const Weight& stored, int64_t heads) {
  const int64_t rows = stored.shape().front();
  if (heads < 1 || rows % (2 * heads) != 0) {
    return stored;  // a shape that nobody expects, which is said where shapes are compared
  }
  const int64_t width = rows / heads;
  Weight::LoadRows load_rows = nullptr;
  if (stored.can_load_rows()) {
    load_rows = [stored, width](int64_t begin, int64_t count) {
      const int64_t first = begin / width, last = (begin + count + width - 1) / width;
      const at::Tensor whole = by_halves(stored.load_rows(first * width, (last - first) * width), last - first);
      return whole.narrow(0, begin - first * width, count).clone();
    };
  }
  return Weight::leaf(
      name, stored.dtype(), stored.shape(), [stored, heads] { return by_halves(stored.load(), heads); }, load_rows);
}

// A gain is stored as one more than what the family has. What that rounded is lost already; taking the one away again
// is exact for every sum that it can have been.
Weight without_one(const std::string& name, const std::string& theirs, const Weight& stored) {
  return Weight::made(
      name, stored.dtype(), stored.shape(), {stored},
      [theirs](std::vector<at::Tensor>& in) {
        const at::Tensor gain = in[0].to(at::kDouble), less = (gain - 1).to(in[0].scalar_type());
        refuse_if(!at::equal(less.to(at::kDouble) + 1, gain),
                  "tensor {} has gains that are not one more than a number of its type, as Gemma's are: was this file "
                  "converted by llama.cpp?",
                  quote(theirs));
        return less;
      },
      Weight::Rows::each);
}

Weight turned(const std::string& name, const Weight& stored) {
  if (stored.shape().size() != 2) {
    return stored;
  }
  return Weight::made(name, stored.dtype(), {stored.shape()[1], stored.shape()[0]}, {stored},
                      [](std::vector<at::Tensor>& in) { return in[0].t().contiguous(); });
}

// [all queries; all keys; all values] to queries, key and value of each key head in turn.
Weight by_key_heads(const std::string& name, const Weight& stored, int64_t heads, int64_t kv_heads) {
  const int64_t rows = stored.shape().front(), all = heads + 2 * kv_heads;
  if (heads < 1 || kv_heads < 1 || heads % kv_heads != 0 || rows % all != 0) {
    return stored;
  }
  return Weight::made(name, stored.dtype(), stored.shape(), {stored}, [=](std::vector<at::Tensor>& in) {
    const int64_t width = rows / all;
    std::vector<at::Tensor> parts = in[0].split_with_sizes({heads * width, kv_heads * width, kv_heads * width});
    for (at::Tensor& part : parts) {
      part = part.unflatten(0, {kv_heads, part.size(0) / kv_heads});
    }
    return at::cat(parts, 1).flatten(0, 1).contiguous();
  });
}

struct Heads {
  int64_t all = 0, kv = 0;
};

Weight undone(GgufChange change, const std::string& name, const std::string& theirs, const Weight& stored,
              const Heads& heads) {
  switch (change) {
    case GgufChange::none:
      return stored;
    case GgufChange::query_rows:
      return heads_by_halves(name, stored, heads.all);
    case GgufChange::key_rows:
      return heads_by_halves(name, stored, heads.kv);
    case GgufChange::plus_one:
      return without_one(name, theirs, stored);
    case GgufChange::transposed:
      return turned(name, stored);
    case GgufChange::stacked:
      return by_key_heads(name, stored, heads.all, heads.kv);
  }
  PARE_UNREACHABLE("a change that nobody undoes");
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

// Factors by which wavelengths grow. The converter writes them for Llama 3's way of scaling, with the context that it
// began with and the bounds that all of its models have; any others are taken as they are.
void add_factors(nlohmann::json& config, const at::Tensor& stored) {
  nlohmann::json& rope = config["rope_parameters"];
  const at::Tensor factors = stored.to(at::kDouble).contiguous();
  const std::span<const double> all(factors.const_data_ptr<double>(), static_cast<size_t>(factors.numel()));
  if (rope["rope_type"] != "default" || all.empty() || !rope["rope_theta"].is_number() ||
      std::ranges::all_of(all, [](double factor) { return factor == 1; })) {
    return;
  }
  constexpr double original = 8192, low = 1, high = 4;
  const double theta = rope["rope_theta"].get<double>(), factor = *std::ranges::max_element(all);
  bool llama3 = factor > 1;
  for (size_t i = 0; i < all.size(); ++i) {
    const double wavelength =
        2 * std::numbers::pi * std::pow(theta, static_cast<double>(i) / static_cast<double>(all.size()));
    const double smooth = (original / wavelength - low) / (high - low);
    const double expected = wavelength < original / high  ? 1
                            : wavelength > original / low ? factor
                                                          : 1 / ((1 - smooth) / factor + smooth);
    llama3 = llama3 && std::abs(all[i] - expected) <= 1e-5 * expected;  // they were computed in float32
  }
  if (llama3) {
    rope.update({{"rope_type", "llama3"},
                 {"factor", factor},
                 {"low_freq_factor", low},
                 {"high_freq_factor", high},
                 {"original_max_position_embeddings", static_cast<int64_t>(original)}});
    return;
  }
  rope.update({{"rope_type", "longrope"},
               {"short_factor", all},
               {"long_factor", all},
               {"attention_factor", 1.0},
               {"original_max_position_embeddings", config.value("max_position_embeddings", nlohmann::json())}});
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

// By the family's names and in its order of rows. What nobody expects keeps its name.
Weights of_family(const GgufMetadata& metadata, const Weights& stored, GgufFact fact, const std::string& subject) {
  const GgufFamily& family = gguf_family(metadata, subject);
  const std::map<std::string, Shape> shapes = shapes_of(stored);
  nlohmann::json unused;
  const GgufReading reading{metadata, shapes, unused};
  Heads heads{.all = reading.whole("attention.head_count").value_or(0)};
  heads.kv = reading.whole("attention.head_count_kv").value_or(heads.all);
  Weights weights;
  for (const auto& [name, weight] : stored) {
    const NameParts parts = parts_of(name);
    if (const GgufRow* const row = row_of(family, parts, stored)) {
      const std::string ours = fmt::format(fmt::runtime(row->family), parts.block) + parts.ending;
      const bool is_number = fact == GgufFact::value || fact == GgufFact::low || fact == GgufFact::high;
      const bool keeps = !is_number && row->change == GgufChange::plus_one;  // a distance does not move
      weights[ours] = keeps ? weight : undone(row->change, ours, name, weight, heads);
    } else {
      weights[name] = weight;
    }
  }
  return weights;
}

constexpr const char* factors_name = "rope_freqs.weight";  // no part of the weights: the configuration says it

}  // namespace

GgufModel open_gguf_model(const std::filesystem::path& path) {
  GgufModel model;
  model.files = open_gguf(path);
  const GgufMetadata& metadata = model.files.front().metadata();
  const std::string subject = quote(shown(path));
  gguf_family(metadata, subject);  // before types are looked at: what the file is comes first
  Weights stored = weights_of(model.files);
  model.config = gguf_config(metadata, shapes_of(stored), subject);
  if (const auto factors = stored.find(factors_name);
      factors != stored.end() && model.config.contains("rope_parameters")) {
    add_factors(model.config, factors->second.load());
    stored.erase(factors);
  }
  model.weights = of_family(metadata, stored, GgufFact::value, subject);
  return model;
}

Weights gguf_facts(std::span<const GgufFile> files, GgufFact fact) {
  Weights stored = weights_of(files, fact);
  stored.erase(factors_name);
  return of_family(files.front().metadata(), stored, fact, quote(shown(files.front().path())));
}

}  // namespace pare
