#include "pare/audit/survey.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "pare/algebra/morph_plan.h"
#include "pare/arch/architecture_json.h"
#include "pare/arch/count.h"
#include "pare/audit/trained_away.h"
#include "pare/redundancy/redundancy.h"
#include "pare/rewrite/pipeline.h"
#include "pare/support/mapped.h"
#include "pare/support/numbers.h"
#include "pare/support/table.h"

namespace pare {

namespace {

void take_norms(Architecture& a) {
  a = with_scales_folded(without_norms(a));
}

// Those of serial blocks: in a parallel one both sublayers have one skip.
void take_mlp_skips(Architecture& a) {
  for (Block& block : a.blocks) {
    if (block.mlp && block.wiring == Wiring::serial) {
      block.mlp->skip = false;
    }
  }
}

void take_attention_skips(Architecture& a) {
  for (Block& block : a.blocks) {
    block.attention.skip = false;
    if (block.mlp && block.wiring == Wiring::parallel) {
      block.mlp->skip = false;
    }
  }
}

void take_rope(Architecture& a) {
  for (Block& block : a.blocks) {
    block.attention.rope.reset();
  }
}

struct Step {
  const char *what, *column;
  void (*take)(Architecture& architecture);
};
// First what was trained away already, at a cost that was measured.
constexpr Step steps[] = {
    {"norms", "norms", take_norms},
    {"MLP skips", "MLP", take_mlp_skips},
    {"attention skips", "skips", take_attention_skips},
    {"RoPE", "RoPE", take_rope},
};

int64_t removable_from(const Architecture& a, int64_t parameters) {
  return parameters - count(choose_passes({a, {}}).after.architecture).total;
}

// With all others gone, each that is put back and takes more of it than anybody would see. A question of yes or no
// needs few layers: as many as any pattern of kinds is long.
std::vector<std::string_view> find_in_the_way(Architecture a) {
  constexpr size_t enough = 12;
  constexpr double seen = 1e-4;
  if (!a.layers && a.blocks.size() > enough) {
    a.blocks.resize(enough);
  }
  const int64_t parameters = count(a).total;
  const auto removable_with = [&](const Step* kept) {
    Architecture left = a;
    for (const Step& step : steps) {
      if (&step != kept) {
        step.take(left);
      }
    }
    return removable_from(left, parameters);
  };
  const int64_t most = removable_with(nullptr);
  std::vector<std::string_view> found;
  for (const Step& step : steps) {
    Architecture without = a;
    step.take(without);
    if (without != a && static_cast<double>(most - removable_with(&step)) > seen * static_cast<double>(parameters)) {
      found.emplace_back(step.what);
    }
  }
  return found;
}

double percent(int64_t part, int64_t whole) {
  return whole == 0 ? 0 : 100 * static_cast<double>(part) / static_cast<double>(whole);
}

std::string share(int64_t part, const SurveyRow& row) {
  return fmt::format("{:.2f}", percent(part, row.parameters));
}

std::string table_of(const std::vector<SurveyRow>& rows) {
  std::vector<std::string> head = {"model", "size", "redundant", "file", "cache"};
  for (const Step& step : steps) {
    head.emplace_back(step.column);
  }
  std::vector<Align> aligned(head.size(), Align::right);
  aligned.front() = Align::left;
  Table table(aligned, head);
  for (const SurveyRow& row : rows) {
    std::vector<std::string> cells = {
        row.name, human_count(row.parameters), (row.at_least ? ">" : "") + share(row.redundant, row),
        share(row.removable, row),
        row.cache == 0 ? "-" : fmt::format("{:.0f}", percent(row.cache - row.cache_left, row.cache))};
    for (const Step& step : steps) {
      const auto found = std::ranges::find(row.obstacles, step.what, &Obstacle::what);
      cells.push_back(found == row.obstacles.end() ? "-" : share(found->removable, row));
    }
    table.row(cells);
  }
  return table.text();
}

std::string by_passes(const std::vector<SurveyRow>& rows) {
  std::map<std::string_view, int64_t> models;
  for (const SurveyRow& row : rows) {
    for (const auto& [pass, saved] : row.taken) {
      ++models[pass];
    }
  }
  std::vector<std::pair<std::string_view, int64_t>> most(models.begin(), models.end());
  std::ranges::stable_sort(most, std::greater(), [](const auto& entry) { return entry.second; });
  return fmt::format(
      "{}", fmt::join(mapped(most, [](const auto& entry) { return fmt::format("{} ({})", entry.first, entry.second); }),
                      ", "));
}

std::string legend(const std::vector<SurveyRow>& rows) {
  std::string text =
      "\n" + wrapped("All in % of the parameters; the cache, of the numbers that a token adds to it.", 0);
  const auto line = [&text](const char* column, const std::string& words) {
    text += wrapped(words, 11, fmt::format("{:<11}", column));
  };
  line("redundant", "no output depends on them (docs/redundancy.md); >: at least as many");
  line("file", "what a stored file can lose now, exactly: 'pare rewrite MODEL -o OUT'. By, and for how many models: " +
                   by_passes(rows));
  line("cache", "what cache_keys_only takes from the cache; -: there is none");
  line("norms", "what stands in the way: a file could lose so much without norms;");
  line("MLP",
       "without the skips around MLPs too; 'pare audit MODEL' has the commands that train both away, and what "
       "that cost;");
  line("skips", "without those around attention too; models without any have only been trained from nothing;");
  line("RoPE", "without rotary positions too; -: there are none");
  return text;
}

std::string details(const SurveyRow& row) {
  std::string text =
      fmt::format("\n{}: {}, {}\n", row.name, with_commas(row.parameters), norms_in_words(row.architecture));
  const auto line = [&](const std::string& name, int64_t number) {
    text += fmt::format("  {:<34}{:>16}{:>9} %\n", name, with_commas(number), share(number, row));
  };
  line(row.at_least ? "redundant, at least" : "redundant", row.redundant);
  line("a file can lose", row.removable);
  for (const auto& [pass, saved] : row.taken) {
    line(fmt::format("  {}", pass), saved);
  }
  for (const Obstacle& obstacle : row.obstacles) {
    line(fmt::format("{} {}", &obstacle == row.obstacles.data() ? "without" : "  and without", obstacle.what),
         obstacle.removable);
  }
  if (!row.in_the_way.empty()) {
    text += wrapped(fmt::format("in the way: {}", fmt::join(row.in_the_way, ", ")), 4, "  ");
  }
  if (row.cache > 0) {
    text += fmt::format("  {:<34}{:>16}\n", "cache, numbers for each token",
                        row.cache == row.cache_left
                            ? fmt::format("{}, stays", with_commas(row.cache))
                            : fmt::format("{} -> {}", with_commas(row.cache), with_commas(row.cache_left)));
  }
  return text;
}

}  // namespace

SurveyRow survey(const std::string& name, const Architecture& architecture) {
  SurveyRow row{.name = name, .architecture = architecture, .parameters = count(architecture).total};
  const Redundancy counted = redundancy(architecture);
  row.redundant = counted.total;
  row.at_least = !counted.is_exact();
  const Pipeline taken = choose_passes({architecture, {}});
  row.removable = row.parameters - count(taken.after.architecture).total;
  for (const PassStep& step : taken.steps) {
    if (step.proposal.applies) {
      row.taken.emplace_back(step.call.pass->id, step.saved_parameters);
    }
  }
  row.cache = cache_elements_per_token(architecture);
  const PassStep cached = run_passes({architecture, {}}, {call_of(find_pass("cache_keys_only"))}).steps.front();
  row.cache_left = cache_elements_per_token(cached.proposal.after.architecture);
  Architecture left = architecture;
  for (const Step& step : steps) {
    const Architecture before = left;
    step.take(left);
    if (left != before) {
      row.obstacles.push_back({step.what, removable_from(left, row.parameters)});
    }
  }
  row.in_the_way = find_in_the_way(architecture);
  return row;
}

std::vector<std::string_view> obstacle_names() {
  return mapped(steps, [](const Step& step) { return std::string_view(step.what); });
}

int64_t removable_without(const SurveyRow& row, std::string_view what) {
  int64_t removable = row.removable;
  for (const std::string_view name : obstacle_names()) {
    const auto found = std::ranges::find(row.obstacles, name, &Obstacle::what);
    removable = found == row.obstacles.end() ? removable : std::max(removable, found->removable);
    if (name == what) {
      break;
    }
  }
  return removable;
}

std::string norms_in_words(const Architecture& architecture) {
  bool before = false, after = false;
  std::optional<NormKind> kind;
  for (const Block& block : architecture.blocks) {
    const Attention& t = block.attention;
    for (const std::optional<Norm>* norm : {&t.norm, &t.output_norm}) {
      if (*norm && (*norm)->kind != NormKind::scale) {
        kind = (*norm)->kind;
        const bool is_after = norm == &t.output_norm || (*norm)->place == NormPlace::post;
        (is_after ? after : before) = true;
      }
    }
  }
  if (!kind) {
    return "no norms";
  }
  const char* name = *kind == NormKind::layer ? "LayerNorm" : *kind == NormKind::rms ? "RMSNorm" : "DyT";
  return fmt::format("{} {} each sublayer", name, !after ? "before" : before ? "before and after" : "after");
}

std::string text_of(const std::vector<SurveyRow>& rows, bool detailed) {
  std::string text = table_of(rows) + legend(rows);
  if (detailed) {
    for (const SurveyRow& row : rows) {
      text += details(row);
    }
  }
  return text;
}

nlohmann::ordered_json to_json(const std::vector<SurveyRow>& rows) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const SurveyRow& row : rows) {
    nlohmann::ordered_json json = {{"name", row.name},
                                   {"task", word(row.architecture.task)},
                                   {"norms", norms_in_words(row.architecture)},
                                   {"parameters", row.parameters},
                                   {"redundant", row.redundant},
                                   {"redundant_is_lower_bound", row.at_least},
                                   {"removable", row.removable}};
    json["passes"] = nlohmann::ordered_json::array();
    for (const auto& [pass, saved] : row.taken) {
      json["passes"].push_back({{"id", pass}, {"saved_parameters", saved}});
    }
    json["cache_elements_per_token"] = row.cache;
    json["cache_elements_left"] = row.cache_left;
    json["in_the_way"] = row.in_the_way;
    json["removable_without"] = nlohmann::ordered_json::array();
    for (const Obstacle& obstacle : row.obstacles) {
      json["removable_without"].push_back({{"what", obstacle.what}, {"removable", obstacle.removable}});
    }
    list.push_back(std::move(json));
  }
  return {{"presets", list}};
}

}  // namespace pare
