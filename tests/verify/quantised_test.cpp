// Tensors one by one, statistics of rows, and what each tensor alone costs. Models in blocks need files, and are in
// tests/cli/verify_beside.py and tests/conformance/conversions.py.
#include "pare/verify/quantised.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "pare/arch/tensors.h"
#include "pare/verify/tensor_costs.h"
#include "pare/verify/text_statistics.h"
#include "tests/verify/helpers.h"

using namespace pare;
using namespace pare::test;

namespace {

constexpr const char* matrix = "blocks.1.mlp.down.weight";
constexpr const char* gain = "blocks.0.mlp.norm.weight";

Architecture headed(bool tied) {
  return parse(std::string(R"({"width": 12, "vocab": 23, "context": 32, "embedding": {"position": "learned"},
    "blocks": [{"repeat": 2, "attention": {"heads": 2, "head_width": 6, "norm": {"kind": "layer"}},
                "mlp": {"width": 20, "activation": "gelu"}}],
    "head": {"tied": )") +
               (tied ? "true" : "false") + "}}");
}

const ComparedTensor& named(const std::vector<ComparedTensor>& tensors, const std::string& name) {
  const auto found = std::ranges::find(tensors, name, &ComparedTensor::tensor);
  REQUIRE(found != tensors.end());
  return *found;
}

// A copy with one entry of one tensor times a factor.
Tensors with_entry(const Tensors& tensors, const std::string& name, int64_t entry, double factor) {
  Tensors changed = tensors;
  const at::Tensor moved = tensors.at(name).clone();
  moved.view({-1})[entry] *= factor;
  changed.at(name) = moved;
  return changed;
}

bool is_near(double a, double b, double most) {
  return std::abs(a - b) <= most;
}

at::Tensor numbers(std::vector<double> values) {
  return at::tensor(values, at::kDouble);
}

std::vector<std::string> names_of(const Architecture& a) {
  std::vector<std::string> names;
  for (const TensorSpec& spec : tensor_table(a)) {
    names.push_back(spec.name);
  }
  return names;
}

}  // namespace

TEST_CASE("the same numbers are the same, and nothing is in blocks") {
  for (const Architecture& a : {rich_architecture(), headed(true), headed(false)}) {
    const ModelFolder model = model_of(a, generic_tensors(a));
    const std::vector<ComparedTensor> tensors = compare_stored(model, model);
    CHECK(tensors.size() == tensor_table(a).size());
    CHECK(others_of(tensors).empty());
    for (const ComparedTensor& tensor : tensors) {
      CAPTURE(tensor.tensor);
      CHECK(tensor.how == StoredAs::same);
      CHECK(tensor.entries == element_count(tensor_table(a).at(tensor.tensor).shape));
      CHECK(tensor.wrong == 0);
      CHECK(tensor.relative_error == 0);
      CHECK(tensor.reason.empty());
    }
    CHECK_FALSE(judge_quantisation(model, model));
  }
}

TEST_CASE("rounded to a narrower type, and from it, it is rounded; the narrow numbers in a wide type are the same") {
  const Architecture a = rich_architecture();
  const Tensors tensors = generic_tensors(a);
  const ModelFolder exact = model_of(a, tensors);
  for (const at::ScalarType dtype : {at::kFloat, at::kHalf, at::kBFloat16}) {
    CAPTURE(at::toString(dtype));
    const ModelFolder narrow = model_of(a, tensors, dtype);
    for (const std::vector<ComparedTensor>& found : {compare_stored(exact, narrow), compare_stored(narrow, exact)}) {
      CHECK(found.size() == tensors.size());
      for (const ComparedTensor& tensor : found) {
        CAPTURE(tensor.tensor);
        CHECK(tensor.how == StoredAs::rounded);
        CHECK(tensor.wrong == 0);
        CHECK(tensor.relative_error > 0);
        CHECK(tensor.relative_error < unit_roundoff(dtype_of(dtype)));
        CHECK(tensor.reason.empty());
      }
    }
    const ModelFolder widened = model_of(a, rounded(rounded(tensors, dtype), at::kDouble));
    for (const ComparedTensor& tensor : compare_stored(narrow, widened)) {
      CHECK(tensor.how == StoredAs::same);
    }
    CHECK_FALSE(judge_quantisation(exact, narrow));
  }
}

TEST_CASE("one entry that is off makes its tensor another, in every type; the furthest comes first") {
  const Architecture a = rich_architecture();
  const Tensors tensors = generic_tensors(a);
  const ModelFolder exact = model_of(a, tensors);
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16}) {
    CAPTURE(at::toString(dtype));
    for (const char* name : {matrix, gain, "embed.token.weight"}) {
      CAPTURE(name);
      const std::vector<ComparedTensor> found =
          compare_stored(exact, model_of(a, with_entry(tensors, name, 7, 1.5), dtype));
      const std::vector<const ComparedTensor*> others = others_of(found);
      REQUIRE(others.size() == 1);
      CHECK(others[0]->tensor == name);
      CHECK(others[0]->wrong == 1);
      CHECK(contains(others[0]->reason, "1 of " + std::to_string(others[0]->entries) + " entries"));
    }
  }
  const at::Tensor stored = tensors.at(matrix), entry = stored.flatten()[7];
  const ModelFolder moved = model_of(a, with_entry(tensors, matrix, 7, 1.5));
  const double expected = 0.5 * entry.abs().item<double>() / stored.norm().item<double>();
  CHECK(named(compare_stored(exact, moved), matrix).relative_error == doctest::Approx(expected).epsilon(1e-9));

  Tensors both = with_entry(tensors, matrix, 7, 1.5);
  both.at("blocks.0.mlp.up.weight") = -both.at("blocks.0.mlp.up.weight");
  const std::vector<ComparedTensor> found = compare_stored(exact, model_of(a, both));
  const std::vector<const ComparedTensor*> others = others_of(found);
  REQUIRE(others.size() == 2);
  CHECK(others[0]->tensor == "blocks.0.mlp.up.weight");
  CHECK(others[0]->relative_error == doctest::Approx(2));
  CHECK(others[1]->tensor == matrix);
}

TEST_CASE("a gain that is stored as what is added to one is that gain") {
  const Architecture a = rich_architecture();
  Architecture plain = a;
  plain.final_norm->offset = 0;
  for (Block& block : plain.blocks) {
    block.attention.norm->offset = 0;
    block.mlp->norm->offset = 0;
  }
  const Tensors tensors = generic_tensors(a);
  Tensors whole = tensors;
  for (auto& [name, tensor] : whole) {
    if (contains(name, "norm.weight")) {
      tensor = tensor + 1;
    }
  }
  const ModelFolder reference = model_of(a, tensors);
  CHECK(others_of(compare_stored(reference, model_of(plain, whole))).empty());
  CHECK(others_of(compare_stored(model_of(plain, whole), reference)).empty());
  const std::vector<ComparedTensor> forgotten = compare_stored(reference, model_of(plain, tensors));
  CHECK(others_of(forgotten).size() == 5);
  CHECK(named(forgotten, gain).how == StoredAs::other);
}

TEST_CASE("a tied head is the table: beside one of its own it is the same or another by its numbers") {
  const Architecture tied = headed(true), untied = headed(false);
  const Tensors tensors = generic_tensors(tied);
  const at::Tensor table = tensors.at("embed.token.weight");
  Tensors same = tensors, other = tensors;
  same["head.weight"] = table;
  other["head.weight"] = table.flip({0});
  const ModelFolder reference = model_of(tied, tensors);
  for (const bool turned : {false, true}) {
    CAPTURE(turned);
    const auto compared = [&](const Tensors& own) {
      const ModelFolder candidate = model_of(untied, own);
      return turned ? compare_stored(candidate, reference) : compare_stored(reference, candidate);
    };
    const std::vector<ComparedTensor> with_same = compared(same), with_other = compared(other);
    CHECK(others_of(with_same).empty());
    CHECK(named(with_same, "head.weight").how == StoredAs::same);
    const std::vector<const ComparedTensor*> others = others_of(with_other);
    REQUIRE(others.size() == 1);
    CHECK(others[0]->tensor == "head.weight");
  }
}

TEST_CASE("tensors of another shape are compared with nothing") {
  const Architecture a = headed(false);
  Architecture wider = a;
  wider.context = 40;
  const std::vector<ComparedTensor> found =
      compare_stored(model_of(a, generic_tensors(a)), model_of(wider, generic_tensors(wider)));
  CHECK(found.size() == tensor_table(a).size() - 1);
  CHECK(std::ranges::find(found, "embed.position.weight", &ComparedTensor::tensor) == found.end());
}

TEST_CASE("statistics of rows, by hand") {
  const double two = std::log(2.0), none = std::numeric_limits<double>::quiet_NaN();
  Rows rows;
  rows.kl = numbers({0.4, 0.1, 0.3, 0.2});
  rows.agrees = numbers({1, 0, 1, 1});
  rows.reference_nll = numbers({two, none, 2 * two, 3 * two});
  rows.candidate_nll = numbers({2 * two, none, 2 * two, 4 * two});
  const std::optional<TextStatistics> s = statistics_of(rows);
  REQUIRE(s);
  CHECK(s->rows == 4);
  CHECK(s->predicted == 3);
  CHECK(s->mean_kl.value == doctest::Approx(0.25));
  CHECK(s->mean_kl.error == doctest::Approx(std::sqrt(0.05 / 3 / 4)));
  CHECK(s->median_kl == doctest::Approx(0.25));
  CHECK(s->high_kl == doctest::Approx(0.397));
  CHECK(s->max_kl == doctest::Approx(0.4));
  CHECK(s->reference_perplexity.value == doctest::Approx(4));
  CHECK(s->reference_perplexity.error == doctest::Approx(4 * two / std::sqrt(3.0)));
  CHECK(s->candidate_perplexity.value == doctest::Approx(std::exp2(8.0 / 3)));
  CHECK(s->nats_more.value == doctest::Approx(2 * two / 3));
  CHECK(s->nats_more.error == doctest::Approx(two / 3));
  const double first = 1.0 / 16, third = 1.0 / 256, mean = (first + third) / 3;
  const double variance = (first * first + third * third - 3 * mean * mean) / 2;
  CHECK(s->rms_probability.value == doctest::Approx(std::sqrt(mean)));
  CHECK(s->rms_probability.error == doctest::Approx(std::sqrt(variance / 3) / (2 * std::sqrt(mean))));
  CHECK(s->same_top.value == doctest::Approx(0.75));
  CHECK(s->same_top.error == doctest::Approx(0.25));
}

TEST_CASE("statistics of one row have no errors; without a next token or a choice there are none") {
  const double none = std::numeric_limits<double>::quiet_NaN();
  Rows rows;
  rows.kl = numbers({0.5});
  rows.agrees = numbers({1});
  rows.reference_nll = numbers({1});
  rows.candidate_nll = numbers({3});
  const std::optional<TextStatistics> s = statistics_of(rows);
  REQUIRE(s);
  CHECK(s->rows == 1);
  CHECK(s->predicted == 1);
  CHECK(s->mean_kl.error == 0);
  CHECK(s->median_kl == 0.5);
  CHECK(s->high_kl == 0.5);
  CHECK(s->max_kl == 0.5);
  CHECK(s->reference_perplexity.value == doctest::Approx(std::exp(1.0)));
  CHECK(s->reference_perplexity.error == 0);
  CHECK(s->nats_more.value == doctest::Approx(2));
  CHECK(s->rms_probability.value == doctest::Approx(std::exp(-1.0) - std::exp(-3.0)));
  CHECK(s->rms_probability.error == 0);

  Rows last = rows;
  last.reference_nll = numbers({none});
  last.candidate_nll = numbers({none});
  CHECK_FALSE(statistics_of(last));
  Rows unpredicted = rows;
  unpredicted.reference_nll = unpredicted.candidate_nll = at::Tensor();
  CHECK_FALSE(statistics_of(unpredicted));
  Rows unchosen = rows;
  unchosen.kl = unchosen.agrees = at::Tensor();
  CHECK_FALSE(statistics_of(unchosen));

  Rows alike = rows;  // a root of nothing is no division by it
  alike.candidate_nll = alike.reference_nll;
  CHECK(statistics_of(alike)->rms_probability.value == 0);
  CHECK(statistics_of(alike)->rms_probability.error == 0);
}

TEST_CASE("a tensor costs what a model costs that has it in place of the reference's; its own costs nothing") {
  for (const Architecture& a : {rich_architecture(), headed(true), headed(false)}) {
    CAPTURE(a.head.tied);
    const Tensors tensors = generic_tensors(a, 1), theirs = generic_tensors(a, 2);
    const ModelFolder reference = model_of(a, tensors), candidate = model_of(a, theirs);
    const ComparedModel exact{reference.model, {at::kDouble, at::kCPU}},
        other{candidate.model, {at::kDouble, at::kCPU}};
    const std::vector<Inputs> sequences = {random_inputs(a, 1, 9, 5), random_inputs(a, 1, 4, 6)};
    std::vector<std::string> names = names_of(a);
    for (const TensorCost& cost : costs_of_tensors(exact, exact, names, sequences, 1)) {
      CAPTURE(cost.tensor);
      CHECK(cost.mean_kl.value >= 0);
      CHECK(cost.max_kl < 1e-20);
    }

    const size_t once = names.size();
    for (size_t i = 0; i < once; ++i) {  // more than are replaced at once
      names.push_back(names[i]);
    }
    const std::vector<TensorCost> costs = costs_of_tensors(exact, other, names, sequences, 1);
    REQUIRE(costs.size() == 2 * once);
    CHECK(std::ranges::is_sorted(costs, std::greater(), [](const TensorCost& cost) { return cost.mean_kl.value; }));
    std::set<std::string> seen;
    for (const TensorCost& cost : costs) {
      CAPTURE(cost.tensor);
      seen.insert(cost.tensor);
      Tensors replaced = tensors;
      replaced.at(cost.tensor) = theirs.at(cost.tensor);
      const Verification whole = verify(reference, model_of(a, replaced), sequences, {});
      REQUIRE(whole.metrics.mean_kl_nats);
      CHECK(*whole.metrics.mean_kl_nats > 0);
      CHECK(is_near(cost.mean_kl.value, *whole.metrics.mean_kl_nats, 1e-12));
      REQUIRE(whole.statistics);
      CHECK(is_near(cost.mean_kl.error, whole.statistics->mean_kl.error, 1e-12));
      CHECK(is_near(cost.max_kl, whole.statistics->max_kl, 1e-12));
    }
    CHECK(seen.size() == once);
  }
}
