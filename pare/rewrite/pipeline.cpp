#include "pare/rewrite/pipeline.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "pare/arch/count.h"
#include "pare/arch/slots.h"
#include "pare/arch/validate.h"
#include "pare/support/error.h"
#include "pare/support/mapped.h"
#include "pare/support/names.h"
#include "pare/support/numbers.h"

namespace pare {

namespace {

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts(1);
  int depth = 0;
  for (const char c : text) {
    depth += c == '{' ? 1 : c == '}' ? -1 : 0;
    if (c == separator && depth == 0) {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

bool is_number(const std::string& text) {
  return !text.empty() && text.size() <= 9 && std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
}

void check_option(const Pass& pass, const std::string& name, const std::string& value) {
  std::vector<std::string> names;
  for (const PassOption& option : pass.options) {
    names.emplace_back(option.name);
    if (option.name != name) {
      continue;
    }
    const std::vector<std::string> values = split(std::string(option.values), '|');
    const bool number_allowed = std::ranges::find(values, "N") != values.end();
    // A matrix's name is looked for where there is a model: the pass says what the model does not have.
    const bool name_allowed = std::ranges::find(values, "MATRIX") != values.end() && !value.empty();
    const bool known = value != "N" && std::ranges::find(values, value) != values.end();
    refuse_if(!known && !name_allowed && !(number_allowed && is_number(value)), "{}{{{}={}}}: expected {}", pass.id,
              name, escaped(value), option.values == "N" ? "a whole number" : fmt::format("one of {}", option.values));
    return;
  }
  throw InputError(fmt::format("pass {} has no option {}{} (options: {})", pass.id, quote(name),
                               did_you_mean(name, names),
                               names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", "))));
}

PassCall parse_call(std::string text) {
  text.erase(0, text.find_first_not_of(' '));
  text.erase(text.find_last_not_of(' ') + 1);
  const size_t brace = text.find('{');
  if (text.substr(0, brace) == "auto") {
    throw InputError(brace == std::string::npos ? "'auto' stands alone: it chooses the passes itself"
                                                : "'auto' has no options: it chooses the passes and theirs itself");
  }
  const Pass& pass = find_pass(text.substr(0, brace));
  Options options;
  if (brace != std::string::npos) {
    refuse_if(text.back() != '}', "pass {}: expected {{option=value,...}} after its name", quote(text));
    for (const std::string& entry : split(text.substr(brace + 1, text.size() - brace - 2), ',')) {
      const size_t equals = entry.find('=');
      const std::string name = entry.substr(0, equals);
      check_option(pass, name, equals == std::string::npos ? "" : entry.substr(equals + 1));
      options[name] = entry.substr(equals + 1);
    }
  }
  return call_of(pass, options);
}

int64_t indices_of(const Architecture& architecture) {
  const bool any = std::ranges::any_of(architecture.blocks, [](const Block& block) {
    return is<Shrunk>(block.attention.key) || is<Shrunk>(block.attention.value);
  });
  if (!any) {
    return 0;
  }
  int64_t indices = 0;
  const Slots slots = slots_of(architecture);
  for (const TensorSpec& spec : slots.tensors) {
    indices += spec.index ? element_count(spec.shape) : 0;
  }
  return indices;
}

PassStep propose(const Model& model, const PassCall& call, const std::optional<Budget>& budget) {
  // Structure first: what it refuses needs no numbers, and condition numbers take long.
  PassStep step{.call = call, .proposal = call.pass->propose({model.architecture, {}}, call.options, budget)};
  if (step.proposal.applies && model.has_weights()) {
    step.proposal = call.pass->propose(model, call.options, budget);
  } else if (!step.proposal.applies) {
    step.proposal.after = model;
  }
  const std::vector<Precondition>& conditions = step.proposal.preconditions;
  const bool reasons =
      step.proposal.over_budget || std::ranges::any_of(conditions, [](const Precondition& p) { return !p.holds; });
  PARE_CHECK(step.proposal.applies || reasons, fmt::format("{} refuses without a reason", call.pass->id));
  Problems problems;
  validate(step.proposal.after.architecture, problems);
  PARE_CHECK(problems.empty(), fmt::format("{} made an architecture that is not valid: {}", call.pass->id,
                                           fmt::join(problems.list(), "; ")));
  step.saved_parameters = count(model.architecture).total - count(step.proposal.after.architecture).total;
  step.more_indices = indices_of(step.proposal.after.architecture) - indices_of(model.architecture);
  return step;
}

void add_step(Pipeline& pipeline, PassStep step) {
  if (step.proposal.applies) {
    pipeline.after = step.proposal.after;
    pipeline.roundings = std::hypot(pipeline.roundings, step.proposal.roundings);
  }
  pipeline.steps.push_back(std::move(step));
}

// What a list of passes saves by structure alone.
int64_t saved_by(const Architecture& architecture, const std::vector<PassCall>& calls) {
  Model model{.architecture = architecture};
  for (const PassCall& call : calls) {
    model = call.pass->propose(model, call.options, std::nullopt).after;
  }
  return count(architecture).total - count(model.architecture).total;
}

size_t place_of(const PassCall& call) {
  const std::vector<const Pass*>& passes = all_passes();
  return static_cast<size_t>(std::ranges::find(passes, call.pass) - passes.begin());
}

// All that save of these, one after another; and one that need not, for what it frees.
Pipeline taken_from(const Model& model, const std::vector<PassCall>& calls, const Budget& budget,
                    const Pass* freeing = nullptr) {
  Pipeline pipeline{.after = model};
  for (const PassCall& call : calls) {
    const Budget left = budget.after(pipeline.roundings);
    // Numbers can only refuse more: no matrix is measured for what saves nothing.
    PassStep step = propose({pipeline.after.architecture, {}}, call, std::nullopt);
    const bool asked = step.saved_parameters > 0 || call.pass == freeing;
    if (asked || (step.proposal.applies && !call.pass->inverts)) {
      step = propose(pipeline.after, call, left);
    }
    if (step.proposal.applies && step.saved_parameters <= 0 && call.pass != freeing) {
      pipeline.saving_nothing.emplace_back(call.pass->id);
    } else if (step.proposal.applies && left.allows(step.proposal.roundings)) {
      add_step(pipeline, std::move(step));
    } else if (step.proposal.over_budget) {
      pipeline.left_out.push_back(fmt::format("{}: {}", call.pass->id, fmt::join(step.proposal.notes, "; ")));
    } else if (step.proposal.applies) {
      pipeline.left_out.push_back(fmt::format("{}: {}", call.pass->id, left.excess(step.proposal.roundings)));
    }
  }
  return pipeline;
}

struct Choice {
  std::vector<PassCall> calls;
  std::vector<std::string> left_out;
};

// Without each pass that takes more from those after it than it saves: two wide heads collapse to less, but shrink to
// less still. By structure alone.
Choice without_losing_ones(const Architecture& architecture, const std::vector<PassCall>& calls) {
  Choice choice{.calls = calls};
  const auto size = [](const Pipeline& pipeline) { return count(pipeline.after.architecture).total; };
  Pipeline taken = taken_from({architecture, {}}, calls, {});
  for (const PassCall& call : calls) {
    const auto is_it = [&call](const auto& other) { return other.pass == call.pass; };
    if (std::ranges::none_of(taken.steps, is_it, &PassStep::call)) {
      continue;  // it took nothing, from nobody
    }
    std::vector<PassCall> others = choice.calls;
    std::erase_if(others, is_it);
    Pipeline without = taken_from({architecture, {}}, others, {});
    if (const int64_t gain = size(taken) - size(without); gain > 0) {
      choice.left_out.push_back(
          fmt::format("{}: without it the others save {} parameters more", call.pass->id, with_commas(gain)));
      choice.calls = std::move(others);
      taken = std::move(without);
    }
  }
  return choice;
}

// The same passes, those that choose a matrix asked for this one; nothing where none of them was taken.
std::optional<std::vector<PassCall>> asked_for(const char* target, std::vector<PassCall> calls, const Pipeline& taken) {
  bool any = false;
  for (PassCall& call : calls) {
    if (call.options.contains("target")) {
      call.options["target"] = target;
      any = any || std::ranges::any_of(taken.steps, [&](const PassStep& step) { return step.call.pass == call.pass; });
    }
  }
  return any ? std::optional(std::move(calls)) : std::nullopt;
}

// What is left for others depends on which matrix goes, not only how well conditioned it is: a head without value
// matrix has no pair to shrink.
Pipeline with_best_target(const Model& model, const std::vector<PassCall>& calls, const Budget& budget,
                          const Pass* freeing = nullptr) {
  Pipeline best = taken_from(model, calls, budget, freeing);
  for (const char* target : {"q", "k", "v"}) {
    const std::optional<std::vector<PassCall>> with_target = asked_for(target, calls, best);
    if (!with_target) {
      break;
    }
    Pipeline other = taken_from(model, *with_target, budget, freeing);
    const int64_t gain = count(best.after.architecture).total - count(other.after.architecture).total;
    if (gain > 0 || (gain == 0 && other.roundings < best.roundings)) {
      best = std::move(other);
    }
  }
  return best;
}

// A pass that saves nothing itself may free what others take: a skip that is absorbed frees a basis. Its structure says
// whether it is worth trying, and the numbers whether it was.
void take_freeing(const Model& model, const std::vector<PassCall>& calls, const Budget& budget, Pipeline& best) {
  const auto size = [](const Pipeline& pipeline) { return count(pipeline.after.architecture).total; };
  if (!model.has_weights()) {
    return;
  }
  const std::vector<std::string> idle = best.saving_nothing;
  const int64_t without = size(taken_from({model.architecture, {}}, calls, {}));
  for (const std::string& id : idle) {
    const Pass& pass = find_pass(id);
    if (size(taken_from({model.architecture, {}}, calls, {}, &pass)) >= without) {
      continue;
    }
    Pipeline freed = with_best_target(model, calls, budget, &pass);
    if (size(freed) < size(best)) {
      best = std::move(freed);
      continue;
    }
    std::erase(best.saving_nothing, id);
    best.left_out.push_back(
        fmt::format("{}: saves nothing itself, and what it frees for others {}", id,
                    freed.left_out.empty() ? "is no less" : "is over the error allowed: " + freed.left_out.front()));
  }
}

}  // namespace

const Pass& find_pass(const std::string& id) {
  std::vector<std::string> ids;
  for (const Pass* pass : all_passes()) {
    if (pass->id == id) {
      return *pass;
    }
    ids.emplace_back(pass->id);
  }
  std::vector<std::string> words = ids;
  words.emplace_back("auto");
  throw InputError(
      fmt::format("there is no pass {}{} (passes: {})", quote(id), did_you_mean(id, words), fmt::join(ids, ", ")));
}

PassCall call_of(const Pass& pass, Options options) {
  for (const PassOption& option : pass.options) {
    options.emplace(option.name, option.fallback);
  }
  return {&pass, std::move(options)};
}

std::vector<PassCall> parse_passes(const std::string& text) {
  return mapped(split(text, ','), parse_call);
}

std::string text_of(const PassCall& call) {
  std::vector<std::string> options;
  for (const auto& [name, value] : call.options) {
    options.push_back(name + "=" + value);
  }
  return options.empty() ? std::string(call.pass->id) : fmt::format("{}{{{}}}", call.pass->id, fmt::join(options, ","));
}

int64_t saved_bytes(const PassStep& step, Dtype dtype) {
  return bytes_of(step.saved_parameters, dtype) - bytes_of(step.more_indices, Dtype::i32);
}

bool is_approximate(const Pipeline& pipeline) {
  return std::ranges::any_of(pipeline.steps, [](const PassStep& step) { return !step.proposal.approximation.empty(); });
}

Pipeline run_passes(const Model& model, const std::vector<PassCall>& asked) {
  const std::vector<PassCall> calls =
      mapped(asked, [](const PassCall& call) { return call_of(*call.pass, call.options); });
  Pipeline pipeline{.after = model};
  for (const PassCall& call : calls) {
    add_step(pipeline, propose(pipeline.after, call, std::nullopt));
  }
  if (std::ranges::is_sorted(calls, {}, place_of)) {
    return pipeline;
  }
  std::vector<PassCall> better = calls;
  std::ranges::stable_sort(better, [](const PassCall& a, const PassCall& b) { return place_of(a) < place_of(b); });
  const int64_t lost = saved_by(model.architecture, better) - saved_by(model.architecture, calls);
  if (lost > 0) {
    const std::vector<std::string> order = mapped(better, [](const PassCall& call) { return text_of(call); });
    pipeline.warnings.push_back(
        fmt::format("this order saves {} parameters less than '{}'", with_commas(lost), fmt::join(order, ",")));
  }
  return pipeline;
}

Pipeline choose_passes(const Model& model, const Budget& budget) {
  const std::vector<PassCall> calls = mapped(all_passes(), [](const Pass* pass) { return call_of(*pass); });
  const Choice choice = without_losing_ones(model.architecture, calls);
  Pipeline best = with_best_target(model, choice.calls, budget);
  take_freeing(model, choice.calls, budget, best);
  best.left_out.insert(best.left_out.begin(), choice.left_out.begin(), choice.left_out.end());
  return best;
}

}  // namespace pare
