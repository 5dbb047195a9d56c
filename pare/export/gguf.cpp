#include "pare/export/gguf.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "pare/arch/tensors.h"
#include "pare/checkpoint/family.h"
#include "pare/checkpoint/gguf_form.h"
#include "pare/checkpoint/unused_tensors.h"
#include "pare/data/tokens_beside.h"
#include "pare/data/utf8.h"
#include "pare/export/gguf_encoding.h"
#include "pare/export/gguf_texts.h"
#include "pare/support/error.h"
#include "pare/support/files.h"
#include "pare/support/gguf_writer.h"
#include "pare/support/json.h"
#include "pare/support/memory.h"
#include "pare/support/names.h"
#include "pare/support/numbers.h"
#include "pare/support/progress.h"
#include "pare/verify/certificate.h"

namespace pare {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr uint64_t largest_settings = 64'000'000;

// What a certificate beside the model says of it: nothing is decided by that.
json claimed(const ModelFolder& source) {
  try {
    return is_folder(source.path) ? read_certificate(source.path).value_or(json::object()) : json::object();
  } catch (const InputError&) {
    return json::object();
  }
}

// Vectors, gains of norms and tables that are added stay in float32, as ggml's converter has it: its programs ask for
// that.
bool stays_float32(const std::string& name, const Shape& shape) {
  return shape.size() < 2 || !name.ends_with(".weight") || name.ends_with("_norm.weight") ||
         name == "position_embd.weight" || name == "token_types.weight";
}

GgufType type_of(const std::string& name, const Shape& shape, GgufType wanted) {
  const bool whole = static_cast<uint64_t>(shape.back()) % gguf_block(wanted)->elements == 0;
  return stays_float32(name, shape) ? GgufType::f32 : whole ? wanted : GgufType::f16;
}

uint32_t file_type(GgufType type) {  // llama.cpp's number for "mostly that"
  return type == GgufType::f32 ? 0 : type == GgufType::f16 ? 1 : type == GgufType::q8_0 ? 7 : 32;
}

// The tables first, then block by block.
std::vector<GgufDeclared> declared_of(const Weights& weights, GgufType wanted) {
  std::vector<std::pair<int64_t, GgufDeclared>> numbered;
  for (const auto& [name, weight] : weights) {
    const int64_t block = name.starts_with("blk.") ? std::stoll(name.substr(4)) : -1;
    numbered.emplace_back(block, GgufDeclared{name, type_of(name, weight.shape(), wanted), weight.shape()});
  }
  std::ranges::stable_sort(numbered, {}, [](const auto& each) { return each.first; });
  std::vector<GgufDeclared> declared;
  for (auto& [block, tensor] : numbered) {
    declared.push_back(std::move(tensor));
  }
  return declared;
}

// llama.cpp looks at names: with these in it, it asks for tokens that other models need not have.
bool may_be_named(const std::string& name) {
  std::string small = name;
  std::ranges::transform(small, small.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c; });
  const auto has = [&small](std::string_view part) { return small.find(part) != std::string::npos; };
  return !name.empty() && !invalid_utf8(name) && !has("phi3") && !has("phi-3") && !has("modern-bert");
}

std::string name_of_model(const ModelFolder& source) {
  const fs::path path = source.path.filename().empty() ? source.path.parent_path() : source.path;
  const std::string file = (path.extension() == ".gguf" ? path.stem() : path.filename()).string();
  return source.model.architecture.name.empty() ? file : source.model.architecture.name;
}

std::vector<GgufEntry> general_entries(const ModelFolder& source, GgufType type) {
  std::vector<GgufEntry> entries = {{"general.type", GgufKind::string, "model"},
                                    {"general.file_type", GgufKind::u32, file_type(type)},
                                    {"general.quantization_version", GgufKind::u32, 2}};
  if (const std::string name = name_of_model(source); may_be_named(name)) {
    entries.push_back({"general.name", GgufKind::string, name});
  }
  return entries;
}

// A tensor whose rows can be had alone is never held whole.
void write_tensor_data(GgufWriter& writer, const GgufDeclared& tensor, const Weight& weight) {
  constexpr int64_t piece = 1 << 21;  // elements
  const int64_t rows = tensor.shape.front(), row = element_count(tensor.shape) / std::max<int64_t>(rows, 1);
  if (!weight.can_load_rows() || rows * row <= piece) {
    writer.write(tensor.name, gguf_encoded(weight.load(), tensor.type, tensor.name));
    return;
  }
  // Of a vector, blocks would lie across its entries; those are in float32.
  const int64_t step = std::max<int64_t>(1, piece / row);
  for (int64_t begin = 0; begin < rows; begin += step) {
    const at::Tensor part = weight.load_rows(begin, std::min(step, rows - begin));
    writer.write(tensor.name, gguf_encoded(part, tensor.type, tensor.name));
  }
}

// How sentence-transformers makes one vector of all that an encoder answers, where its files lie beside the model: the
// number that llama.cpp has for it.
std::optional<int> pooling_of(const ModelFolder& source) {
  const fs::path file = source.path / "modules.json";
  if (source.model.architecture.task != Task::encoder || !is_folder(source.path) || !path_exists(file)) {
    return std::nullopt;
  }
  const json modules = parse_json(read_text_file(file, largest_settings), file.string());
  for (const json& module : modules.is_array() ? modules : json::array()) {
    const json type = module.is_object() ? module.value("type", json()) : json();
    const json path = module.is_object() ? module.value("path", json()) : json();
    if (!type.is_string() || !type.get_ref<const std::string&>().ends_with(".Pooling") || !path.is_string()) {
      continue;
    }
    const json settings = settings_in(source.path / path.get<std::string>() / "config.json");
    for (const auto& [key, number] : {std::pair("pooling_mode_mean_tokens", 1), std::pair("pooling_mode_cls_token", 2),
                                      std::pair("pooling_mode_lasttoken", 3)}) {
      if (settings.value(key, json()) == true) {
        return number;
      }
    }
  }
  return std::nullopt;
}

// ---- what is larger there

bool is_tokens(const GgufEntry& entry) {
  return entry.key == "tokenizer.ggml.tokens";
}

void note_other_types(const std::vector<GgufDeclared>& declared, GgufType wanted, std::vector<std::string>& notes) {
  std::vector<std::string> others;
  for (const GgufDeclared& tensor : declared) {
    if (tensor.type != wanted && tensor.type != GgufType::f32) {
      others.push_back(tensor.name);
    }
  }
  if (!others.empty()) {
    notes.push_back(
        fmt::format("larger: in float16, since its rows are no multiple of {} numbers, of which a block of {} is "
                    "made: {}",
                    gguf_block(wanted)->elements, gguf_block(wanted)->name, some_names(others)));
  }
}

uint64_t source_bytes(const GgufDeclared& tensor, const Weight& weight) {
  return static_cast<uint64_t>(bytes_of(element_count(tensor.shape), weight.dtype()));
}

void note_larger(const ModelFolder& source, const GgufForm& form, const std::vector<GgufDeclared>& declared,
                 GgufType wanted, std::vector<std::string>& notes) {
  const auto head = std::ranges::find(declared, "output.weight", &GgufDeclared::name);
  if (head != declared.end() && source.model.architecture.head.tied) {
    notes.push_back(fmt::format("larger by {}: llama.cpp's {} asks for a head, so the token table is there twice",
                                human_bytes(gguf_bytes(*head)), form.family->architecture));
  }
  uint64_t wider = 0;
  for (const GgufDeclared& tensor : declared) {
    const uint64_t stored = source_bytes(tensor, form.weights.at(tensor.name)), written = gguf_bytes(tensor);
    wider += tensor.type == GgufType::f32 && wanted != GgufType::f32 && written > stored ? written - stored : 0;
  }
  if (wider > 0) {
    notes.push_back(fmt::format("larger by {}: llama.cpp asks for vectors, norms and tables of positions in float32",
                                human_bytes(wider)));
  }
  if (wanted != GgufType::q8_0 && is_in_blocks(source)) {
    notes.push_back(fmt::format("larger: what the source has in blocks ({}) is written out in {}",
                                types_of_gguf(source), gguf_block(wanted)->name));
  }
  const json made = claimed(source);
  const json form_of = made.value("form", json()),
             neutral = form_of.is_object() ? form_of.value("neutral_parameters", json()) : json();
  if (neutral.is_number_unsigned() && neutral > 0 && form_of.value("name", json()) == "compat") {
    notes.push_back(
        fmt::format("larger: {} of its parameters do nothing, as its certificate says, and the strict form, "
                    "which pare runs, does without",
                    with_commas(neutral.get<int64_t>())));
  }
}

// ---- what else could be exported

std::string option_text(const json& options) {
  std::vector<std::string> words;
  for (const auto& [name, value] : options.items()) {
    words.push_back(fmt::format("{}={}", name, value.is_string() ? value.get<std::string>() : value.dump()));
  }
  return words.empty() ? "" : fmt::format("{{{}}}", fmt::join(words, ","));
}

// What these make has no place in any family, so --form compat has none for it either.
constexpr std::string_view without_compat[] = {"absorb_skip",    "cache_keys_only",    "collapse_heads",
                                               "merge_skipless", "lower_mlp_to_heads", "precompute_first_layer"};

// For what a rewrite made in the strict form: how to have it, or most of it, in the layout of its original.
std::string compat_advice(const json& certificate) {
  const json reference = certificate.value("reference", json()), form = certificate.value("form", json());
  const json path = reference.is_object() ? reference.value("path", json()) : json();
  if (!path.is_string() || !form.is_object() || form.value("name", json()) != "strict") {
    return "";
  }
  std::vector<std::string> passes, left;
  for (const json& pass : certificate.value("passes", json::array())) {
    const json id = pass.is_object() ? pass.value("id", json()) : json();
    if (id.is_string() && pass.value("applies", json()) == true) {
      const bool has_place = std::ranges::find(without_compat, id.get<std::string>()) == std::end(without_compat);
      (has_place ? passes : left).push_back(id.get<std::string>() + option_text(pass.value("options", json::object())));
    }
  }
  const std::string original = quote(path.get<std::string>());
  if (passes.empty()) {
    return fmt::format(
        "llama.cpp has nothing that could hold what {} makes; its original can be tried:\n"
        "  pare export {} -o OUT --to gguf\n",
        fmt::join(left, " and "), original);
  }
  return fmt::format(
      "with --form compat{} it has the layout of its original, and llama.cpp runs it if it runs that:\n"
      "  pare rewrite {} -o COMPAT --passes {} --form compat\n  pare export COMPAT -o OUT --to gguf\n",
      left.empty() ? "" : fmt::format(" and without {}", fmt::join(left, " and ")), original,
      quote(fmt::format("{}", fmt::join(passes, ","))));
}

std::string advice_on(const ModelFolder& source) {
  const Architecture& a = source.model.architecture;
  std::string first = source.family == native_family().model_type ? compat_advice(claimed(source)) : "";
  if (source.family == "bert" && (a.task != Task::encoder || a.head.transform)) {
    first =
        "llama.cpp's bert gives hidden states alone. The encoder without what stands behind it can be exported; in "
        "Python:\n  transformers.BertModel.from_pretrained(MODEL, add_pooling_layer=False).save_pretrained(ENCODER)\n";
  }
  return first +
         "--to onnx takes every model, and so does --to hf, with Python of pare's own where no family of transformers "
         "can say it";
}

}  // namespace

ModelFolder gguf_source(const ModelFolder& source) {
  ModelFolder encoder = source;
  if (!source.model.architecture.head.transform || !pooling_of(source)) {
    return encoder;
  }
  encoder.model.architecture.head.transform.reset();
  Weights kept;
  for (const TensorSpec& spec : tensor_table(encoder.model.architecture)) {
    kept[spec.name] = source.model.weights.at(spec.name);
  }
  encoder.model.weights = std::move(kept);
  encoder.unused =
      unused_tensors(find_family(source.family, shown(source.path)), encoder.model.architecture, encoder.stored.files);
  return encoder;
}

bool is_q8_0(const ModelFolder& source) {
  bool some = false, all = true;
  for (const GgufFile& file : source.gguf) {
    for (const auto& [name, tensor] : file.tensors()) {
      const bool blocks = gguf_block(tensor.type)->elements > 1;
      some = some || tensor.type == GgufType::q8_0;
      all = all && (!blocks || tensor.type == GgufType::q8_0);
    }
  }
  return some && all;
}

std::vector<std::string> write_gguf(const fs::path& file, const ModelFolder& source, GgufType type,
                                    const fs::path& tokenizer) {
  const json original = claimed(source).value("reference", json());
  const json family = original.is_object() ? original.value("family", json()) : json();
  const bool made = source.family == native_family().model_type && family.is_string();
  GgufForm form = gguf_form(source.model, made ? family.get<std::string>() : source.family, quote(shown(source.path)),
                            advice_on(source));
  GgufTexts texts = gguf_texts(tokenizer, source.path, source.model.architecture.vocab);
  std::vector<std::string> notes = std::move(form.notes);
  notes.insert(notes.end(), texts.notes.begin(), texts.notes.end());
  if (const size_t bytes = gguf_header(texts.entries, {}).size(); std::ranges::any_of(texts.entries, is_tokens)) {
    notes.push_back(fmt::format("of these bytes {} are the tokenizer", human_bytes(bytes)));
  }

  std::vector<GgufEntry> metadata = std::move(form.metadata);
  if (const std::optional<int> pooling = pooling_of(source)) {
    metadata.push_back({fmt::format("{}.pooling_type", form.family->architecture), GgufKind::u32, *pooling});
    notes.push_back(fmt::format("llama.cpp makes one vector of a text by {}, as modules.json says",
                                *pooling == 1   ? "the mean of its hidden states"
                                : *pooling == 2 ? "the hidden state of its first token"
                                                : "the hidden state of its last token"));
  }
  for (std::vector<GgufEntry> more : {general_entries(source, type), std::move(texts.entries)}) {
    std::ranges::move(more, std::back_inserter(metadata));
  }
  const std::vector<GgufDeclared> declared = declared_of(form.weights, type);
  note_other_types(declared, type, notes);
  note_larger(source, form, declared, type, notes);
  uint64_t total = 0;
  for (const GgufDeclared& tensor : declared) {
    total += gguf_bytes(tensor);
  }
  Progress progress("writing", total, Progress::Unit::bytes);
  const PromptlyFreed promptly;
  GgufWriter writer(file, metadata, declared);
  for (const GgufDeclared& tensor : declared) {
    write_tensor_data(writer, tensor, form.weights.at(tensor.name));
    progress.advance(gguf_bytes(tensor));
  }
  writer.finish();
  return notes;
}

}  // namespace pare
