// What a model's folder says of generation, and pare does not apply unless somebody asks for it.

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <span>

#include "pare/cli/generating.h"
#include "pare/support/files.h"
#include "pare/support/json.h"
#include "pare/support/log.h"
#include "pare/support/names.h"

namespace pare {

namespace {

using nlohmann::json;

constexpr uint64_t largest_settings = 64'000'000;
constexpr double usual_top_k = 50;  // of transformers, where nobody says

// Settings of transformers that pare lacks, with the number that changes nothing.
constexpr std::pair<const char*, double> lacking_always[] = {{"no_repeat_ngram_size", 0},
                                                             {"suppress_tokens", 0},
                                                             {"begin_suppress_tokens", 0},
                                                             {"bad_words_ids", 0},
                                                             {"sequence_bias", 0},
                                                             {"min_new_tokens", 0},
                                                             {"min_length", 0},
                                                             {"forced_bos_token_id", -1},
                                                             {"forced_eos_token_id", -1},
                                                             {"exponential_decay_length_penalty", 0},
                                                             {"num_beams", 1},
                                                             {"penalty_alpha", 0},
                                                             {"guidance_scale", 1}};
constexpr std::pair<const char*, double> lacking_in_draws[] = {
    {"typical_p", 1}, {"epsilon_cutoff", 0}, {"eta_cutoff", 0}};

class Unapplied {
 public:
  explicit Unapplied(const json& settings) : settings_(settings) {}

  void add_lacking(std::span<const std::pair<const char*, double>> keys) {
    for (const auto& [key, neutral] : keys) {
      const json found = settings_.value(key, json());
      const bool list = found.is_structured() && !found.empty();
      if (list || (found.is_number() && found.get<double>() != neutral)) {
        named_.push_back(list ? key : fmt::format("{} {:g}", key, found.get<double>()));
        lacking_.emplace_back(key);
      }
    }
  }

  void add(const char* key, const char* flag, double neutral, double without) {
    const json found = settings_.value(key, json());
    const double value = found.is_number() ? found.get<double>() : without;
    if (found.is_number() && value != neutral) {
      named_.push_back(fmt::format("{} {:g}", key, value));
    }
    if (value != neutral) {
      flags_.push_back(fmt::format("{} {:g}", flag, value));
    }
  }

  void add_drawn() {
    if (settings_.value("do_sample", json()) != true) {
      return;
    }
    named_.emplace_back("do_sample");
    add("temperature", "--temperature", 0, 1);
    add("top_k", "--top-k", 0, usual_top_k);
    add("top_p", "--top-p", 1, 1);
    add("min_p", "--min-p", 0, 0);
    add_lacking(lacking_in_draws);
  }

  void add_stops() {
    const json found = settings_.value("stop_strings", json());
    std::vector<json> stops;
    found.is_array() ? stops.assign(found.begin(), found.end()) : stops.assign(found.is_string() ? 1 : 0, found);
    for (const json& stop : stops) {
      flags_.push_back("--stop " + shell_word(stop.is_string() ? escaped(stop.get<std::string>()) : "..."));
    }
    if (!stops.empty()) {
      named_.emplace_back("stop_strings");
    }
  }

  void warn(const std::string& subject) const {
    if (named_.empty()) {
      return;
    }
    std::string said =
        fmt::format("{} sets {}, which transformers would apply, and pare does not", subject, fmt::join(named_, ", "));
    if (!flags_.empty()) {
      said += fmt::format(": give {}", fmt::join(flags_, " "));
    }
    if (!lacking_.empty()) {
      said += fmt::format("; pare has no setting for {}", fmt::join(lacking_, ", "));
    }
    log_warning(said);
  }

 private:
  const json& settings_;
  std::vector<std::string> named_, flags_, lacking_;
};

}  // namespace

void warn_of_settings(const GenerateFlags& flags, const ModelFolder& stored) {
  for (const char* const name : {"generation_config.json", "config.json"}) {  // the first, as transformers does
    const std::filesystem::path path = stored.path / name;
    if (!path_exists(path)) {
      continue;
    }
    const json settings = parse_json(read_text_file(path, largest_settings), path.string());
    if (!settings.is_object()) {
      return;
    }
    Unapplied unapplied(settings);
    if (!flags.penalty_given) {
      unapplied.add("repetition_penalty", "--repetition-penalty", 1, 1);
    }
    if (!flags.temperature_given) {
      unapplied.add_drawn();
    }
    if (flags.stops.empty()) {
      unapplied.add_stops();
    }
    unapplied.add_lacking(lacking_always);
    unapplied.warn(escaped(path.string()));
    return;
  }
}

}  // namespace pare
