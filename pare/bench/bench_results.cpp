#include "pare/bench/bench.h"

#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>

namespace pare {

namespace {

// By round.
std::map<int64_t, double> rates_by_round(const Bench& bench, size_t model, Timed what) {
  std::map<int64_t, double> rates;
  for (const BenchTurn& turn : bench.turns) {
    if (turn.model == model && turn.what == what && turn.seconds > 0) {
      rates[turn.round] = turn.work / turn.seconds;
    }
  }
  return rates;
}

std::optional<SpeedRatio> ratio_of(const std::map<int64_t, double>& of, const std::map<int64_t, double>& to,
                                   double factor = 1) {
  std::vector<double> ratios;
  for (const auto& [round, rate] : of) {
    if (const auto other = to.find(round); other != to.end()) {
      ratios.push_back(factor * rate / other->second);
    }
  }
  if (ratios.empty()) {
    return std::nullopt;
  }
  return SpeedRatio{quartiles_of(ratios), median_interval(ratios)};
}

nlohmann::ordered_json number_or_null(const std::optional<int64_t>& value) {
  return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json();
}

nlohmann::ordered_json ratio_json(const std::optional<SpeedRatio>& ratio) {
  if (!ratio) {
    return nullptr;
  }
  nlohmann::ordered_json json = {{"median", ratio->quartiles.median}, {"interval", nullptr}};
  if (ratio->interval) {
    json["interval"] = {ratio->interval->least, ratio->interval->most};
  }
  json["rounds"] = ratio->quartiles.count;
  return json;
}

nlohmann::ordered_json speed_json(const Bench& bench, size_t model, Timed what) {
  const std::vector<double> rates = rates_of(bench, model, what);
  if (rates.empty()) {
    return nullptr;
  }
  const Quartiles q = quartiles_of(rates);
  return {{"median", q.median},
          {"quartiles", {q.lower, q.upper}},
          {"rounds", q.count},
          {"ratio", ratio_json(ratio_to_first(bench, model, what))}};
}

}  // namespace

std::vector<double> rates_of(const Bench& bench, size_t model, Timed what) {
  std::vector<double> rates;
  for (const auto& [round, rate] : rates_by_round(bench, model, what)) {
    rates.push_back(rate);
  }
  return rates;
}

std::optional<SpeedRatio> ratio_to_first(const Bench& bench, size_t model, Timed what) {
  return ratio_of(rates_by_round(bench, model, what), rates_by_round(bench, 0, what));
}

std::optional<SpeedRatio> share_of_read(const Bench& bench, size_t model) {
  return ratio_of(rates_by_round(bench, model, Timed::decode), rates_by_round(bench, model, Timed::read),
                  static_cast<double>(bench.models[model].step_bytes));
}

std::vector<std::string> noise_of(const Bench& bench) {
  std::vector<Scatter> scatter;
  for (size_t model = 0; model < bench.models.size(); ++model) {
    for (const Timed what : all_timed) {
      if (const std::vector<double> rates = rates_of(bench, model, what); rates.size() > 1) {
        scatter.push_back(
            {fmt::format("{} of {}", word(what), bench.models[model].name), quartiles_of(rates).spread()});
      }
    }
  }
  return noise_of(bench.use, scatter);
}

nlohmann::ordered_json bench_json(const Bench& bench) {
  const BenchOptions& options = bench.options;
  nlohmann::ordered_json models = nlohmann::ordered_json::array(), turns = nlohmann::ordered_json::array();
  for (size_t n = 0; n < bench.models.size(); ++n) {
    const BenchedModel& model = bench.models[n];
    models.push_back({{"name", model.name},
                      {"dtype", word(model.dtype)},
                      {"engine", model.engine},
                      {"parameters", model.parameters},
                      {"weight_bytes", model.weight_bytes},
                      {"step_bytes", model.step_bytes},
                      {"loaded_bytes", number_or_null(model.loaded_bytes)},
                      {"peak_bytes", number_or_null(model.peak_bytes)},
                      {"train_bytes", number_or_null(model.train_bytes)},
                      {"left_out", model.left_out},
                      {"prefill", speed_json(bench, n, Timed::prefill)},
                      {"decode", speed_json(bench, n, Timed::decode)},
                      {"read", speed_json(bench, n, Timed::read)},
                      {"share_of_read", ratio_json(share_of_read(bench, n))},
                      {"train", speed_json(bench, n, Timed::train)}});
  }
  for (const BenchTurn& turn : bench.turns) {
    turns.push_back({{"round", turn.round},
                     {"model", turn.model},
                     {"what", word(turn.what)},
                     {"work", turn.work},
                     {"seconds", turn.seconds}});
  }
  nlohmann::ordered_json use;
  if (bench.use) {
    use = {{"cores", bench.use->cores},
           {"own", bench.use->own},
           {"others", bench.use->others},
           {"stolen", bench.use->stolen}};
  }
  const std::vector<std::string> noise = noise_of(bench);
  return {{"device", options.device.is_cpu() ? "cpu" : "cuda"},
          {"threads", bench.threads},
          {"instructions", bench.instructions},
          {"seed", options.seed},
          {"rounds", options.rounds},
          {"prompt", options.prompt},
          {"tokens", options.tokens},
          {"batch", options.train ? nlohmann::ordered_json(options.batch) : nlohmann::ordered_json()},
          {"models", std::move(models)},
          {"turns", std::move(turns)},
          {"machine", std::move(use)},
          {"noisy", !noise.empty()},
          {"noise", noise}};
}

}  // namespace pare
