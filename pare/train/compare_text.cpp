// A comparison as people and programs read it.

#include "pare/train/compare.h"

#include <fmt/format.h>

#include "pare/support/numbers.h"
#include "pare/support/table.h"

namespace pare {

std::string comparison_text(const RunComparison& comparison) {
  Table table({Align::left, Align::right, Align::right, Align::right, Align::right, Align::right},
              {"run", "parameters", "loss", "difference", "seeds", "accuracy"});
  const ComparedRuns& first = comparison.rows.front();
  std::string words;
  bool equality = false;  // might be what is asked
  for (const ComparedRuns& row : comparison.rows) {
    const bool other = &row != &first;
    const std::string seeds = row.spread               ? fmt::format("{} (± {:.4f})", row.losses.size(), *row.spread)
                              : row.losses.size() == 1 ? "1"
                                                       : fmt::format("{} alike", row.losses.size());
    table.row({row.name, with_commas(row.parameters), fmt::format("{:.4f}", row.loss),
               other && row.difference.count > 0 ? fmt::format("{:+.4f}", row.difference.mean) : "", seeds,
               fmt::format("{:.2f} %", 100 * row.accuracy)});
    if (other) {
      words += wrapped(
          fmt::format("{} against {}: {}.", row.name, first.name, in_words(row.difference, comparison.margin)), 2, "");
      equality = equality || (!comparison.margin && row.difference.interval &&
                              difference_of(row.difference, {}) == Difference::too_few);
    }
  }
  if (equality) {
    words += "To test for equality, give a margin in nats: --margin X.\n";
  }
  for (const std::string& note : comparison.notes) {
    words += wrapped(note + ".", 2, "");
  }
  if (comparison.rows.size() > 1) {
    words += wrapped(
        "Differences are between runs of one seed. The 95 % interval of their mean (Student's t) is over "
        "initialisations: all runs saw the data in one order.",
        2, "");
  }
  return fmt::format("Validation after {} steps, on the same data in the same order. Loss in nats a target.\n\n{}{}{}",
                     with_commas(comparison.step), table.text(), words.empty() ? "" : "\n", words);
}

template <class T>
static nlohmann::ordered_json or_null(const std::optional<T>& value) {
  return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json(nullptr);
}

static nlohmann::ordered_json difference_json(const Estimate& difference, const std::optional<double>& margin) {
  nlohmann::ordered_json json = {
      {"pairs", difference.count},
      {"mean", difference.count > 0 ? nlohmann::ordered_json(difference.mean) : nlohmann::ordered_json(nullptr)},
      {"standard_error", or_null(difference.standard_error)},
      {"interval", nullptr},
      {"verdict", to_word(difference_of(difference, margin))},
      {"within_margin", margin ? nlohmann::ordered_json(is_within(difference, *margin)) : nullptr},
      {"pairs_needed", or_null(pairs_needed(difference, margin))}};
  if (difference.interval) {
    json["interval"] = {difference.interval->least, difference.interval->most};
  }
  return json;
}

nlohmann::ordered_json comparison_json(const RunComparison& comparison) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const ComparedRuns& row : comparison.rows) {
    rows.push_back(
        {{"name", row.name},
         {"paths", row.paths},
         {"seeds", row.seeds},
         {"steps", row.steps},
         {"done", row.done},
         {"start", row.start},
         {"teacher", row.teacher.empty() ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(row.teacher)},
         {"t", or_null(row.t)},
         {"parameters", row.parameters},
         {"outside_embeddings", row.outside_embeddings},
         {"lr", row.rate},
         {"loss", row.loss},
         {"spread", or_null(row.spread)},
         {"difference", &row == &comparison.rows.front() ? nlohmann::ordered_json(nullptr)
                                                         : difference_json(row.difference, comparison.margin)},
         {"losses", row.losses},
         {"accuracy", row.accuracy}});
  }
  return {
      {"step", comparison.step}, {"notes", comparison.notes}, {"margin", or_null(comparison.margin)}, {"runs", rows}};
}

}  // namespace pare
