#include "pare/checkpoint/adapter.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "pare/checkpoint/bound_weights.h"
#include "pare/checkpoint/pytorch_file.h"
#include "pare/checkpoint/safetensors.h"
#include "pare/support/error.h"
#include "pare/support/files.h"
#include "pare/support/names.h"
#include "pare/support/sha256.h"

namespace pare {

namespace fs = std::filesystem;

namespace {

constexpr const char* adapter_config_name = "adapter_config.json";
constexpr uint64_t largest_adapter_config = 16 << 20;
constexpr std::string_view peft_prefix = "base_model.model.";

// What a tensor of the file is to the module that it names.
enum class AdapterPart { first, second, embedding_first, embedding_second, whole };

struct Named {
  std::string module;  // of a whole tensor, its name
  AdapterPart part;
  bool beneath = false;  // of a whole tensor: peft has an adapter of that module too
};

std::string without_ending(const std::string& name, std::string_view ending) {
  return name.substr(0, name.size() - ending.size());
}

// Nothing for a name that PEFT gives no tensor of LoRA.
std::optional<Named> named(std::string name) {
  if (!name.starts_with(peft_prefix)) {
    return std::nullopt;
  }
  name.erase(0, peft_prefix.size());
  constexpr std::pair<std::string_view, AdapterPart> endings[] = {{".lora_A.weight", AdapterPart::first},
                                                                  {".lora_B.weight", AdapterPart::second},
                                                                  {".lora_embedding_A", AdapterPart::embedding_first},
                                                                  {".lora_embedding_B", AdapterPart::embedding_second}};
  for (const auto& [ending, part] : endings) {
    if (name.ends_with(ending)) {
      return Named{without_ending(name, ending), part};
    }
  }
  if (name.find("lora_") != std::string::npos) {
    return std::nullopt;
  }
  for (const std::string_view kind : {".weight", ".bias"}) {
    const std::string layer = fmt::format(".base_layer{}", kind);
    if (name.ends_with(layer)) {  // peft keeps an embedding beside its adapter
      return Named{without_ending(name, layer) + std::string(kind), AdapterPart::whole, true};
    }
  }
  return Named{std::move(name), AdapterPart::whole};
}

// The last number in a name, as peft takes it: "model.layers.12.mlp.up_proj".
std::optional<int64_t> layer_of(std::string_view module) {
  std::optional<int64_t> layer;
  for (size_t begin = 0; begin < module.size();) {
    const size_t end = std::min(module.find('.', begin), module.size());
    const std::string_view part = module.substr(begin, end - begin);
    constexpr size_t most_digits = 9;
    if (end < module.size() && !part.empty() && part.size() <= most_digits &&
        std::ranges::all_of(part, [](char c) { return c >= '0' && c <= '9'; })) {
      layer = std::stoll(std::string(part));
    }
    begin = end + 1;
  }
  return layer;
}

bool is_module(std::string_view name, std::string_view ending) {
  return name == ending ||
         (name.size() > ending.size() && name.ends_with(ending) && name[name.size() - ending.size() - 1] == '.');
}

// As Python's `re` reads a pattern of names and dots: a dot is any character.
bool spells(std::string_view name, std::string_view pattern) {
  return std::ranges::equal(name, pattern, [](char c, char wanted) { return c == wanted || wanted == '.'; });
}

bool ends_as(std::string_view module, std::string_view pattern) {
  return spells(module, pattern) ||
         (module.size() > pattern.size() && module[module.size() - pattern.size() - 1] == '.' &&
          spells(module.substr(module.size() - pattern.size()), pattern));
}

// The product of two matrices and a number, added to a weight.
struct Delta {
  Weight first, second;  // A [r, in] and B [out, r]
  bool transposed = false;
  double scale = 0;
};

at::Tensor with_delta(const std::string& name, const Weight& base, const Delta& delta, int64_t begin, int64_t count) {
  const at::Tensor rows = base.can_load_rows() ? base.load_rows(begin, count) : base.load().narrow(0, begin, count);
  const at::Tensor a = delta.first.load().to(at::kDouble);
  const at::Tensor b = delta.second.load().to(at::kDouble);
  const at::Tensor added =
      delta.transposed ? at::mm(a.narrow(1, begin, count).t(), b.t()) : at::mm(b.narrow(0, begin, count), a);
  const at::Tensor sum = rows.to(at::kDouble) + added * delta.scale;
  check_finite(sum, name, fmt::format("the base model with the adapter, of scale {:g},", delta.scale));
  return sum;
}

Weight changed(const std::string& name, const Weight& base, const Delta& delta) {
  const auto rows = [name, base, delta](int64_t begin, int64_t count) {
    return with_delta(name, base, delta, begin, count);
  };
  return Weight::leaf(
      name, Dtype::f64, base.shape(), [rows, all = base.shape()[0]] { return rows(0, all); }, rows);
}

// The same numbers, so that they can be compared with a sum.
Weight in_float64(const std::string& name, const Weight& base) {
  return Weight::made(
      name, Dtype::f64, base.shape(), {base}, [](std::vector<at::Tensor>& in) { return in[0].to(at::kDouble); },
      Weight::Rows::each);
}

class Application {
 public:
  Application(const Adapter& adapter, const Family& family, const Architecture& architecture, Weights& stored,
              std::vector<std::string>& warnings)
      : settings_(adapter.settings),
        family_(family),
        stored_(stored),
        warnings_(warnings),
        tensors_(weights_of(adapter.file)),
        bound_(bound_names(family, architecture, stored)) {}

  std::map<std::string, Dtype> run(const std::string& subject) {
    std::map<std::string, std::map<AdapterPart, std::string>> modules;
    std::vector<std::string> foreign, whole;
    for (const auto& [name, tensor] : tensors_) {
      const std::optional<Named> found = named(name);
      if (!found) {
        foreign.push_back(name);
      } else if (found->part == AdapterPart::whole) {
        replace(found->module, tensor);
        whole.push_back(found->beneath ? "" : found->module);
      } else {
        modules[found->module][found->part] = name;
      }
    }
    problems_.add_if(!foreign.empty(), "{} is no tensor of LoRA{}{}", foreign.empty() ? "" : quote(foreign.front()),
                     foreign.size() > 1 ? fmt::format(", nor are {} more", foreign.size() - 1) : "",
                     std::ranges::any_of(
                         foreign, [](const std::string& name) { return name.find("magnitude") != std::string::npos; })
                         ? ": DoRA is not supported"
                         : "");
    for (const auto& [module, parts] : modules) {
      problems_.add_if(std::ranges::find(whole, module + ".weight") != whole.end(),
                       "tensor {} is of a module with an adapter, which peft keeps under another name: it would not "
                       "read it",
                       quote(module + ".weight"));
      add(module, parts);
    }
    for (const std::string& target : settings_.targets.value_or(std::vector<std::string>())) {
      const bool there =
          std::ranges::any_of(modules, [&](const auto& entry) { return is_module(entry.first, target); });
      problems_.add_if(!there, "target_modules names {}, of which the file has no tensors", quote(target));
    }
    problems_.add_if(modules.empty() && problems_.empty(), "the file has no tensors of LoRA");
    problems_.throw_if_any(subject);
    if (!turned_.empty()) {
      warnings_.push_back(
          fmt::format("{}: fan_in_fan_out is {}, but {} is stored the other way: read as it is stored, as "
                      "peft does",
                      subject, settings_.fan_in_fan_out, quote(turned_.front())));
    }
    return std::move(types_);
  }

 private:
  // As the family calls it; empty where it has no such tensor.
  std::string known(const std::string& name) const {
    const std::string current = current_name(family_, name), prefixed = std::string(family_.base_prefix) + current;
    return bound_.contains(current) ? current : bound_.contains(prefixed) ? prefixed : "";
  }

  // The weight that is to be changed under the family's name, in the file or in its place. Of tied tensors the others
  // stay as they are, if `alone`.
  std::string place_of(const std::string& name, bool alone) {
    const BoundName& bound = bound_.at(name);
    const std::string place = bound.in_file.empty() ? name : bound.in_file;
    const auto there = stored_.find(place);
    const Weight base = there == stored_.end() ? tied_to(bound) : there->second;
    if (!base) {
      return "";
    }
    for (const std::string& other : alone ? bound.tied : std::vector<std::string>()) {
      const std::string& file = bound_.at(other).in_file;
      keep(file.empty() ? other : file, base);
    }
    stored_[place] = base;
    return place;
  }

  void keep(const std::string& name, const Weight& base) {
    const auto there = stored_.find(name);
    const Weight as_it_is = there == stored_.end() ? base : there->second;
    if (types_.emplace(name, as_it_is.dtype()).second) {
      stored_[name] = in_float64(name, as_it_is);
    }
  }

  Weight tied_to(const BoundName& bound) const {
    for (const std::string& other : bound.tied) {
      if (const std::string& file = bound_.at(other).in_file; !file.empty()) {
        return stored_.at(file);
      }
    }
    return {};
  }

  void replace(const std::string& name, const Weight& tensor) {
    const std::string known_name = known(name);
    if (known_name.empty()) {
      problems_.add(fmt::format("tensor {} is none of the base model's", quote(name)));
      return;
    }
    const size_t dot = name.rfind('.');
    const std::string module = name.substr(0, dot == std::string::npos ? name.size() : dot);
    const bool saved =
        std::ranges::any_of(settings_.saved, [&](const std::string& each) { return is_module(module, each); });
    const std::string place = place_of(known_name, saved);
    if (place.empty()) {  // one that the base model's file lacks, such as a head
      stored_[known_name] = in_float64(known_name, tensor);
      types_.emplace(known_name, tensor.dtype());
      return;
    }
    const Dtype dtype = file_type(place);
    if (stored_.at(place).shape() != tensor.shape()) {
      problems_.add(fmt::format("tensor {} has shape [{}], but [{}] in the base model{}", quote(name),
                                fmt::join(tensor.shape(), ", "), fmt::join(stored_.at(place).shape(), ", "),
                                ": was its vocabulary resized for the adapter? Save the base model so too"));
      return;
    }
    types_.emplace(place, dtype);
    stored_[place] = in_float64(place, tensor);
    for (const std::string& other : saved ? std::vector<std::string>() : bound_.at(known_name).tied) {
      if (const std::string& file = bound_.at(other).in_file; !file.empty()) {
        types_.emplace(file, dtype);
        stored_[file] = stored_.at(place);
      }
    }
  }

  Dtype file_type(const std::string& place) const {
    const auto before = types_.find(place);
    return before == types_.end() ? stored_.at(place).dtype() : before->second;
  }

  void add(const std::string& module, const std::map<AdapterPart, std::string>& parts) {
    const bool embedding =
        parts.contains(AdapterPart::embedding_first) || parts.contains(AdapterPart::embedding_second);
    const auto first = parts.find(embedding ? AdapterPart::embedding_first : AdapterPart::first),
               second = parts.find(embedding ? AdapterPart::embedding_second : AdapterPart::second);
    if (first == parts.end() || second == parts.end() || parts.size() != 2) {
      problems_.add(
          fmt::format("module {} has {}, expected lora_A and lora_B", quote(module), quote(parts.begin()->second)));
      return;
    }
    Delta delta{.first = tensors_.at(first->second), .second = tensors_.at(second->second)};
    const Shape &a = delta.first.shape(), &b = delta.second.shape();
    if (a.size() != 2 || b.size() != 2 || a[0] != b[1]) {
      problems_.add(
          fmt::format("module {} has lora_A [{}] and lora_B [{}], expected [rank, inputs] and [outputs, rank]",
                      quote(module), fmt::join(a, ", "), fmt::join(b, ", ")));
      return;
    }
    const std::optional<double> alpha = alpha_of(module);
    if (!check_settings(module, a[0]) || !alpha) {
      return;
    }
    delta.scale = *alpha / (settings_.by_root ? std::sqrt(static_cast<double>(a[0])) : static_cast<double>(a[0]));
    const std::string name = known(module + ".weight");
    const std::string place = name.empty() ? "" : place_of(name, true);
    if (place.empty()) {
      problems_.add(
          fmt::format("module {} is none of the base model's: was the adapter made for another model?", quote(module)));
      return;
    }
    const std::vector<std::string>& ours = bound_.at(name).canonical;
    if (embedding && std::ranges::none_of(ours, [](const std::string& each) { return each.starts_with("embed."); })) {
      problems_.add(fmt::format("module {} has {}, but is no embedding", quote(module), quote(first->second)));
      return;
    }
    delta.transposed = embedding || bound_.at(name).transposed;
    const Shape expected = delta.transposed ? Shape{a[1], b[0]} : Shape{b[0], a[1]};
    const Weight base = stored_.at(place);
    if (base.shape() != expected) {
      problems_.add(fmt::format(
          "module {} has lora_A [{}] and lora_B [{}], which make [{}], but the base model's has [{}]", quote(module),
          fmt::join(a, ", "), fmt::join(b, ", "), fmt::join(expected, ", "), fmt::join(base.shape(), ", ")));
      return;
    }
    if (!embedding && delta.transposed != settings_.fan_in_fan_out) {
      turned_.push_back(module);
    }
    types_.emplace(place, base.dtype());
    stored_[place] = changed(place, base, delta);
  }

  bool check_settings(const std::string& module, int64_t rank) {
    const bool targeted = !settings_.targets || std::ranges::any_of(*settings_.targets, [&](const std::string& target) {
      return is_module(module, target);
    });
    problems_.add_if(!targeted, "module {} is none that target_modules names", quote(module));
    const bool excluded =
        std::ranges::any_of(settings_.excluded, [&](const std::string& each) { return is_module(module, each); });
    problems_.add_if(excluded, "module {} is one that exclude_modules names", quote(module));
    const bool by_name =
        !settings_.targets || std::ranges::find(*settings_.targets, module) != settings_.targets->end();
    const std::optional<int64_t> layer = layer_of(module);
    const bool transformed = by_name || settings_.layers.empty() || (layer && settings_.layers.contains(*layer));
    problems_.add_if(!transformed, "module {} is in none of the layers that layers_to_transform names", quote(module));
    problems_.add_if(!settings_.ranks.contains(rank), "module {} has rank {}, expected {}", quote(module), rank,
                     fmt::join(settings_.ranks, " or "));
    return targeted && settings_.ranks.contains(rank);
  }

  std::optional<double> alpha_of(const std::string& module) {
    std::optional<double> found;
    for (const auto& [pattern, alpha] : settings_.alphas) {
      const bool whole = pattern.starts_with("^");
      if (whole ? spells(module, std::string_view(pattern).substr(1)) : ends_as(module, pattern)) {
        if (found && *found != alpha) {
          problems_.add(fmt::format("alpha_pattern has {:g} and {:g} for module {}", *found, alpha, quote(module)));
          return std::nullopt;
        }
        found = alpha;
      }
    }
    return found.value_or(settings_.alpha);
  }

  const AdapterSettings& settings_;
  const Family& family_;
  Weights& stored_;
  std::vector<std::string>& warnings_;
  const Weights tensors_;
  const std::map<std::string, BoundName> bound_;
  std::map<std::string, Dtype> types_;
  std::vector<std::string> turned_;
  Problems problems_;
};

}  // namespace

Adapter open_adapter(const fs::path& folder, std::vector<std::string>* unknown) {
  const std::string subject = quote(folder.string());
  refuse_if(!is_folder(folder), "--adapter: {} is no folder, expected one with {} and adapter_model.safetensors",
            subject, adapter_config_name);
  refuse_if(!path_exists(folder / adapter_config_name), "--adapter: {} has no {}: not an adapter of peft", subject,
            adapter_config_name);
  std::string config = read_text_file(folder / adapter_config_name, largest_adapter_config);
  AdapterSettings settings = parse_adapter_config(config, shown(folder / adapter_config_name), unknown);
  const fs::path safetensors = folder / "adapter_model.safetensors", pytorch = folder / "adapter_model.bin";
  refuse_if(!path_exists(safetensors) && !path_exists(pytorch),
            "--adapter: {} has neither adapter_model.safetensors nor adapter_model.bin: the weights are missing",
            subject);
  return {
      .path = folder,
      .config = std::move(config),
      .settings = std::move(settings),
      .file = path_exists(safetensors) ? TensorFile(SafetensorsFile(safetensors)) : TensorFile(PytorchFile(pytorch))};
}

std::map<std::string, std::string> file_hashes(const Adapter& adapter) {
  return {{adapter_config_name, sha256_of(adapter.config)},
          {adapter.file.path().filename().string(), adapter.file.sha256()}};
}

nlohmann::ordered_json to_json(const Adapter& adapter) {
  return {{"path", adapter.path.string()},
          {"alpha", adapter.settings.alpha},
          {"ranks", adapter.settings.ranks},
          {"rslora", adapter.settings.by_root}};
}

std::set<std::string> names_in(const Adapter& adapter) {
  std::set<std::string> names;
  for (const auto& [name, tensor] : adapter.file.tensors()) {
    if (const std::optional<Named> found = named(name); found && found->part == AdapterPart::whole) {
      names.insert(found->module);
    }
  }
  return names;
}

std::map<std::string, Dtype> apply_adapter(const Adapter& adapter, const Family& family,
                                           const Architecture& architecture, Weights& stored,
                                           std::vector<std::string>& warnings) {
  return Application(adapter, family, architecture, stored, warnings).run(shown(adapter.path));
}

}  // namespace pare
