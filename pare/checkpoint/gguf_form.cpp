#include "pare/checkpoint/gguf_form.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "pare/arch/tensors.h"
#include "pare/checkpoint/bound_weights.h"
#include "pare/checkpoint/family.h"
#include "pare/checkpoint/gguf_rope.h"
#include "pare/support/error.h"
#include "pare/support/mapped.h"
#include "pare/support/names.h"

namespace pare {

namespace {

using nlohmann::json;

// The same names and shapes, to find out what a file would hold.
Weights without_data(const Architecture& architecture) {
  Weights weights;
  for (const TensorSpec& spec : tensor_table(architecture)) {
    weights[spec.name] = Weight::leaf(spec.name, Dtype::f32, spec.shape,
                                      []() -> at::Tensor { PARE_UNREACHABLE("a tensor without data is loaded"); });
  }
  return weights;
}

// What a family stores as one has one type.
Weights of_one_type(const Family& family, const Architecture& architecture, Weights weights) {
  for (const Binding& binding : family.bindings(architecture)) {
    const bool mixed = std::ranges::any_of(binding.canonical, [&](const std::string& name) {
      return weights.at(name).dtype() != weights.at(binding.canonical.front()).dtype();
    });
    for (const std::string& name : mixed ? binding.canonical : std::vector<std::string>()) {
      const Weight given = weights.at(name);
      weights[name] = Weight::made(
          name, Dtype::f64, given.shape(), {given}, [](std::vector<at::Tensor>& in) { return in[0].to(at::kDouble); },
          Weight::Rows::each);
    }
  }
  return weights;
}

// "model.layers.12.self_attn.q_proj.weight" is {"model.layers.{}.self_attn.q_proj", "12", ".weight"}.
struct FamilyName {
  std::string module, block, ending;
};

FamilyName family_name(const std::string& name) {
  FamilyName parts;
  const size_t dot = name.rfind('.');
  parts.module = name.substr(0, dot);
  parts.ending = dot == std::string::npos ? "" : name.substr(dot);
  for (size_t begin = 0; begin < parts.module.size();) {
    const size_t end = std::min(parts.module.find('.', begin), parts.module.size());
    const std::string part = parts.module.substr(begin, end - begin);
    if (!part.empty() && std::ranges::all_of(part, [](char c) { return c >= '0' && c <= '9'; })) {
      parts.block = part;
      parts.module.replace(begin, part.size(), "{}");
      break;
    }
    begin = end + 1;
  }
  return parts;
}

struct NamedWeights {
  Weights weights;                   // by their names in the file
  std::vector<std::string> nowhere;  // the family's, of which GGUF has no name
};

NamedWeights named_for_gguf(const GgufFamily& gguf, const Family& family, const Architecture& architecture,
                            const Weights& canonical) {
  const Attention& attention = architecture.blocks.front().attention;
  const GgufHeads heads{.all = attention.heads, .kv = attention.kv_heads};
  NamedWeights named;
  for (const auto& [name, weight] :
       family_weights(family, architecture, of_one_type(family, architecture, canonical))) {
    const FamilyName parts = family_name(name);
    const auto row = std::ranges::find(gguf.tensors, parts.module, &GgufRow::family);
    if (row == gguf.tensors.end()) {
      named.nowhere.push_back(name);
      continue;
    }
    const std::string theirs = fmt::format(fmt::runtime(row->theirs), parts.block) + parts.ending;
    named.weights[theirs] = gguf_done(row->change, theirs, weight, heads);
  }
  return named;
}

bool is_asked_for(const GgufFamily& gguf, std::string_view tensor) {
  return std::ranges::find(gguf.program.asks_for, tensor) != gguf.program.asks_for.end();
}

std::vector<GgufEntry> form_entries(const GgufFamily& gguf, const json& config, const Architecture& architecture) {
  std::vector<GgufEntry> own;
  for (const GgufKey& key : gguf.keys) {
    const json value = config.value(std::string(key.family), json());
    if (!value.is_null()) {
      own.push_back({std::string(key.theirs), key.kind, value});
    }
    if (!value.is_null() && key.theirs == "attention.key_length") {
      own.push_back({"attention.value_length", key.kind, value});
    }
  }
  own.push_back({"vocab_size", GgufKind::u32, architecture.vocab});
  own.insert(own.end(), gguf.constants.begin(), gguf.constants.end());
  const std::optional<Rope>& rope = architecture.blocks.front().attention.rope;
  if (rope) {
    const std::vector<GgufEntry> said = gguf_of_rope(*rope);
    own.insert(own.end(), said.begin(), said.end());
  }
  std::vector<GgufEntry> entries = {{"general.architecture", GgufKind::string, gguf.architecture}};
  for (GgufEntry& entry : own) {
    entry.key = fmt::format("{}.{}", gguf.architecture, entry.key);
    entries.push_back(std::move(entry));
  }
  if (architecture.embedding.types > 0) {  // a key of texts, but without it llama.cpp takes no table of types
    entries.push_back({"tokenizer.ggml.token_type_count", GgufKind::u32, architecture.embedding.types});
  }
  if (architecture.head.tied && is_asked_for(gguf, "output.weight")) {
    entries.push_back({gguf_tied_head, GgufKind::boolean, true});
  } else if (architecture.task == Task::causal_lm && !architecture.head.tied &&
             !gguf_head_is_another(gguf.model_type)) {
    entries.push_back({gguf_tied_head, GgufKind::boolean, false});
  }
  return entries;
}

// Beside the weights, by their names in the file.
void add_made_tensors(const GgufFamily& gguf, const Architecture& architecture, Weights& weights) {
  if (architecture.head.tied && is_asked_for(gguf, "output.weight") && weights.contains("token_embd.weight")) {
    weights["output.weight"] = weights.at("token_embd.weight");
  }
  const std::optional<Rope>& rope = architecture.blocks.front().attention.rope;
  const std::optional<at::Tensor> factors =
      rope && gguf.program.rope_factors ? factors_of_rope(*rope, architecture.context) : std::nullopt;
  if (factors) {
    weights[rope_factors_name] =
        Weight::leaf(rope_factors_name, Dtype::f32, factors->sizes().vec(), [factors = *factors] { return factors; });
  }
}

// The config.json that is read of what a file of this Architecture says.
json read_again(const GgufFamily& gguf, const Family& family, const Architecture& architecture) {
  const json config = family.write_config(architecture);
  NamedWeights named = named_for_gguf(gguf, family, architecture, without_data(architecture));
  add_made_tensors(gguf, architecture, named.weights);
  std::vector<GgufDeclared> declared;
  std::map<std::string, Shape> shapes;
  for (const auto& [name, weight] : named.weights) {
    declared.push_back({name, GgufType::f32, weight.shape()});
    shapes[name] = weight.shape();
  }
  const std::string header = gguf_header(form_entries(gguf, config, architecture), declared);
  const std::optional<GgufHeader> parsed =
      parse_gguf_header(header, gguf_file_bytes(header, declared), "what is to be written");
  json read = gguf_config(parsed->metadata, shapes, "what is to be written");
  if (const auto factors = named.weights.find(rope_factors_name); factors != named.weights.end()) {
    add_rope_factors(read, factors->second.load(), "what is to be written");
  }
  return read;
}

// What llama.cpp's program for the architecture does not run, though a file could say it.
void check_program(const GgufFamily& gguf, const Family& family, const Architecture& architecture, Problems& problems) {
  NamedWeights named = named_for_gguf(gguf, family, architecture, without_data(architecture));
  add_made_tensors(gguf, architecture, named.weights);
  for (const std::string& name : named.nowhere) {
    problems.add(fmt::format("GGUF has no name for {}", quote(name)));
  }
  const auto name_of = [](std::string_view tensor, size_t block) { return fmt::format(fmt::runtime(tensor), block); };
  for (size_t block = 0; block < architecture.blocks.size(); ++block) {
    for (const std::string_view tensor : gguf.program.lacks) {
      const bool there = named.weights.contains(name_of(tensor, block));
      problems.add_if(there && (block == 0 || tensor.starts_with("blk.")), "llama.cpp's {} has no {}{}",
                      gguf.architecture, name_of(tensor, block),
                      tensor == "output.weight" ? ": its head is tied to the token table" : "");
    }
    for (const std::string_view tensor : gguf.program.asks_for) {
      const bool there = named.weights.contains(name_of(tensor, block));
      problems.add_if(!there && (block == 0 || tensor.starts_with("blk.")),
                      "llama.cpp's {} asks for {}, which this model does not have", gguf.architecture,
                      name_of(tensor, block));
    }
  }
  const Attention& attention = architecture.blocks.front().attention;
  problems.add_if(!gguf.program.own_head_width && attention.heads * attention.head_width != architecture.width,
                  "{} heads of {} do not make up the width {}, as llama.cpp's {} asks", attention.heads,
                  attention.head_width, architecture.width, gguf.architecture);
}

// Whether it says the model or something near to it; of others only the first reason is found.
bool comes_near(const Family& family, Architecture architecture) {
  for (Block& block : architecture.blocks) {
    if (block.attention.rope) {
      block.attention.rope->width = block.attention.head_width;
    }
  }
  std::set<std::string> tensors;
  for (const Binding& binding : family.bindings(architecture)) {
    tensors.insert(binding.stored);
  }
  try {
    read_architecture(family, json(family.write_config(architecture)), "what is to be written", std::move(tensors));
    return true;
  } catch (const InputError&) {
    return false;
  }
}

// What is there in one of the two alone is one reason, not one for each of its settings.
std::vector<std::string> as_wholes(const std::vector<std::string>& reasons) {
  constexpr std::string_view missing = " is null, but the family can only say nothing",
                             there = " is absent, but in the family it is null";
  std::vector<std::string> alone;
  const auto is_within = [&](const std::string& reason) {
    return std::ranges::any_of(alone, [&](const std::string& part) { return reason.starts_with(part + "."); });
  };
  for (const std::string& reason : reasons) {
    if (reason.ends_with(missing) || reason.ends_with(there)) {
      alone.push_back(reason.substr(0, reason.find(' ')));
    }
  }
  std::vector<std::string> wholes;
  for (const std::string& reason : reasons) {
    const std::string part = reason.substr(0, reason.find(' '));
    if (!is_within(reason)) {
      wholes.push_back(reason.ends_with(missing) ? part + " is not there, but the family always has it"
                       : reason.ends_with(there) ? part + " is there, but the family has none"
                                                 : reason);
    }
  }
  return wholes;
}

// Why this architecture is not the model; empty where it is.
std::vector<std::string> reasons_against(const GgufFamily& gguf, const Family& family,
                                         const Architecture& architecture) {
  try {
    family_config(family, architecture);
    Family told = family;  // which knows what a file can say
    told.write_config = [&](const Architecture& said) { return read_again(gguf, family, said); };
    family_config(told, architecture);
    Problems problems;
    check_program(gguf, family, architecture, problems);
    return problems.list();
  } catch (const InputError& error) {
    const std::string before = fmt::format("a model of the family {}: ", family.model_type);
    return as_wholes(mapped(error.reasons, [&](const ErrorReason& reason) {
      return reason.message.starts_with(before) ? reason.message.substr(before.size()) : reason.message;
    }));
  }
}

std::vector<std::string> notes_on(const Architecture& architecture) {
  const auto has = [&](Activation activation) {
    return std::ranges::any_of(architecture.blocks, [&](const Block& block) {
      return block.mlp && dense_mlp(block).activation == activation;
    });
  };
  constexpr const char* cost = "answers differ by up to a thousandth of their range";
  if (has(Activation::gelu)) {
    return {fmt::format("llama.cpp has GELU by tanh, where this model has erf, and on a CPU in a table of float16: {}",
                        cost)};
  }
  if (has(Activation::gelu_tanh)) {
    return {fmt::format("on a CPU, llama.cpp has GELU in a table of float16: {}", cost)};
  }
  return {};
}

[[noreturn]] void refuse_model(const std::string& subject, std::string_view nearest,
                               const std::vector<std::string>& reasons, const std::string& advice) {
  std::string message =
      fmt::format("{}: llama.cpp has no architecture for this model; the nearest is {}:", subject, nearest);
  constexpr size_t most_shown = 20;
  for (size_t n = 0; n < std::min(reasons.size(), most_shown); ++n) {
    message += "\n  " + reasons[n];
  }
  if (reasons.size() > most_shown) {
    message += fmt::format("\n  ... and {} more", reasons.size() - most_shown);
  }
  throw Refused(message + "\n" + advice,
                mapped(reasons, [](const std::string& reason) { return ErrorReason{reason}; }));
}

}  // namespace

GgufForm gguf_form(const Model& model, const std::string& family, const std::string& subject,
                   const std::string& advice) {
  if (model.architecture.embedding.patch) {
    throw Refused(fmt::format("{}: it reads images (embedding.patch), and llama.cpp's architectures read tokens\n{}",
                              subject, advice));
  }
  std::vector<const GgufFamily*> candidates;
  for (const GgufFamily& gguf : gguf_families()) {
    candidates.insert(gguf.model_type == family ? candidates.begin() : candidates.end(), &gguf);
  }
  const GgufFamily* nearest = nullptr;
  std::tuple<bool, bool, size_t> how_far;
  std::vector<std::string> reasons;
  for (const GgufFamily* const gguf : candidates) {
    const Family& own = find_family(std::string(gguf->model_type), subject);
    std::vector<std::string> against = reasons_against(*gguf, own, model.architecture);
    if (against.empty()) {
      NamedWeights named = named_for_gguf(*gguf, own, model.architecture, model.weights);
      add_made_tensors(*gguf, model.architecture, named.weights);
      return {.family = gguf,
              .metadata = form_entries(*gguf, own.write_config(model.architecture), model.architecture),
              .weights = std::move(named.weights),
              .notes = notes_on(model.architecture)};
    }
    const std::tuple<bool, bool, size_t> far = {gguf->model_type != family, !comes_near(own, model.architecture),
                                                against.size()};
    if (nearest == nullptr || far < how_far) {
      nearest = gguf;
      how_far = far;
      reasons = std::move(against);
    }
  }
  refuse_model(subject, nearest->architecture, reasons, advice);
}

}  // namespace pare
