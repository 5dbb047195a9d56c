// Every claim is measured, and comes to the verdict that is recorded and that its page in experiments/ has.

#include "pare/claims/claim.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <sstream>

#include "pare/claims/probed_models.h"
#include "pare/claims/report.h"
#include "pare/claims/stated.h"
#include "pare/report/figure.h"
#include "pare/support/error.h"
#include "tests/support/helpers.h"

using namespace pare;

namespace {

std::string text_of_file(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace

TEST_CASE("every claim comes to its recorded verdict, with two seeds") {
  for (const PaperClaim& claim : claims()) {
    for (const uint64_t seed : {0, 1}) {
      CAPTURE(claim.id);
      CAPTURE(seed);
      const Measured measured = measure(claim, {ClaimScale::smoke, seed});
      CAPTURE(measured.outcome.because);
      const ClaimVerdict expected =
          claim.of_trained_models || claim.of_times || claim.trains() ? ClaimVerdict::undecided : claim.recorded;
      CHECK(to_words(measured.outcome.verdict) == to_words(expected));
      CHECK(!measured.outcome.compared.empty());
      CHECK(!measured.outcome.because.empty());
      std::istringstream lines(text_of(measured));
      for (std::string line; std::getline(lines, line);) {
        CAPTURE(line);
        CHECK(std::count_if(line.begin(), line.end(), [](char c) { return (c & 0xC0) != 0x80; }) <= 80);
      }
      const Report page = report_of(measured, "now", {});
      for (const Figure& figure : page.sections.at(0).figures) {
        CAPTURE(figure.title);
        CHECK(figure.y.words != "");
        CHECK(!figure.series.empty());
        check_figure(figure);
      }
      for (const ClaimTable& table : measured.outcome.tables) {
        for (const std::vector<double>& row : table.rows) {
          CHECK(row.size() == table.columns.size());
        }
        CHECK(!table.measured.empty());
        CHECK((table.names.empty() || table.names.size() == table.rows.size()));
        CHECK(table.names.empty() == table.rows_are.empty());
      }
    }
  }
}

TEST_CASE("a sentence that explains the recorded verdict is not shown beside another") {
  PaperClaim claim = *find_claim("pgop-overhead");
  const std::string usual = measure(claim, {}).outcome.because;
  claim.recorded = ClaimVerdict::holds;
  claim.measure = [usual](const Trial&) {
    return Outcome{.verdict = ClaimVerdict::does_not_hold, .because = usual, .compared = {{"", "", ""}}};
  };
  const Measured measured = measure(claim, {});
  CHECK(measured.outcome.verdict == ClaimVerdict::does_not_hold);
  CHECK(measured.outcome.because.find("against the verdict that is recorded, \"holds\"") != std::string::npos);
}

TEST_CASE("what an interrupt leaves is shown, decides nothing, and names the run that did") {
  const std::vector<ProbedModel> models(3);
  const auto measured_until = [&models](size_t interrupted_at) {
    Outcome found;
    size_t done = 0;
    measure_each(models, found, [&](const ProbedModel&) {
      if (done++ == interrupted_at) {
        throw Interrupted();
      }
      found.compared.push_back({"a model", "1", "2"});
    });
    return found;
  };
  CHECK(measured_until(3).partial.empty());
  CHECK(measured_until(2).compared.size() == 2);
  CHECK(measured_until(2).partial == "2 of 3 measurements");
  CHECK_THROWS_WITH_AS(measured_until(0), "interrupted before the first model was measured", Interrupted);
  PaperClaim claim = *find_claim("asymmetry-vs-rank");
  claim.measure = [&](const Trial&) {
    Outcome found = measured_until(1);
    found.verdict = ClaimVerdict::holds;
    return found;
  };
  const Measured measured = measure(claim, {});
  CHECK(measured.outcome.verdict == ClaimVerdict::undecided);
  CHECK(measured.outcome.because == "interrupted, with 1 of 3 measurements done");
  CHECK(to_json(measured)["partial"] == true);
  CHECK(report_of(measured, "now", {}).partial == "Interrupted: 1 of 3 measurements were done, and decide nothing.");
  const std::string text = text_of(measured);
  CHECK(text.find("recorded   holds, by pare reproduce asymmetry-vs-rank --scale small --model") != std::string::npos);
}

TEST_CASE("a column ± is the band of the one before it, settings are not drawn, and rows with names are bars") {
  PaperClaim claim = *find_claim("pgop-overhead");
  claim.measure = [](const Trial&) {
    Outcome outcome{.verdict = ClaimVerdict::does_not_hold};
    outcome.tables = {
        {"by layer", {"layer", "rank", "±", "width"}, {{0, 5, 0.5, 9}, {1, 4, 0.25, 9}}, "rank", {"width"}},
        {"by model", {"rank", "±"}, {{5, 0.5}, {4, 0.25}}, "rank", {}, "model", {"a", "b"}}};
    return outcome;
  };
  const std::vector<Figure> figures = report_of(measure(claim, {}), "now", {}).sections.at(0).figures;
  REQUIRE(figures.size() == 2);
  for (const Figure& figure : figures) {
    REQUIRE(figure.series.size() == 1);
    CHECK(figure.series[0].y == std::vector<double>{5, 4});
    CHECK(figure.series[0].spread == std::vector<double>{0.5, 0.25});
    CHECK(figure.y.words == "rank");
  }
  CHECK(figures[0].kind == FigureKind::lines);
  CHECK(figures[1].kind == FigureKind::bars);
  CHECK(figures[1].x.names == std::vector<std::string>{"a", "b"});
}

// Its numbers, without signs and commas: "-589,824 for ..." has 589824.
std::set<std::string> numbers_in(const std::string& text) {
  static const std::regex number(R"([0-9][0-9,]*(\.[0-9]+)?(e[-+]?[0-9]+)?)");
  std::set<std::string> found;
  for (std::sregex_iterator at(text.begin(), text.end(), number), end; at != end; ++at) {
    std::string digits = at->str();
    std::erase(digits, ',');
    found.insert(digits);
  }
  return found;
}

TEST_CASE("numbers of the list are those of its experiments' pages, and what else is shown has a test") {
  size_t measured = 0;
  for (const StatedClaim& claim : stated_claims()) {
    CAPTURE(claim.place);
    CAPTURE(claim.name);
    CAPTURE(claim.number);
    CHECK(!claim.says.empty());
    CHECK(claim.would_take.empty() == claim.verdict.has_value());  // what is not measured says what it would take
    if (!claim.verdict) {
      CHECK(!numbers_in(claim.would_take).empty());
      CHECK((claim.name + claim.page + claim.number + claim.test).empty());
      continue;
    }
    ++measured;
    const std::string page = text_of_file(claim.page);
    CHECK(!page.empty());
    CHECK(claim.number.find('\n') == std::string::npos);
    const std::set<std::string> there = numbers_in(page);
    if (claim.is_experiment()) {
      for (const std::string& number : numbers_in(claim.number)) {
        CAPTURE(number);
        CHECK(there.contains(number));
      }
    } else {  // its test computes the number
      const size_t colon = claim.test.find(": ");
      const std::string tests = text_of_file(claim.test.substr(0, colon));
      CHECK(tests.find("\nTEST_CASE(\"" + claim.test.substr(colon + 2) + "\") {\n") != std::string::npos);
    }
    CHECK((claim.verdict == ClaimVerdict::undecided || !claim.test.empty() || !claim.number.empty()));
  }
  CHECK(measured >= 40);
  std::istringstream lines(list_of_claims());
  for (std::string line; std::getline(lines, line);) {
    CHECK(std::count_if(line.begin(), line.end(), [](char c) { return (c & 0xC0) != 0x80; }) <= 80);
  }
}

TEST_CASE("runs that were kept come to the recorded verdict, and to the sentence that their page has") {
  for (const PaperClaim& claim : claims()) {
    const std::filesystem::path there = std::filesystem::path("experiments") / claim.id;
    if (!std::filesystem::exists(there / "runs.json")) {
      CHECK_FALSE((claim.keeps_runs() && claim.recorded != ClaimVerdict::undecided));
      continue;
    }
    CAPTURE(claim.id);
    const TemporaryFolder folder;
    std::filesystem::copy_file(there / "runs.json", folder.path() / "runs.json");
    const Measured measured = measure(claim, {.scale = ClaimScale::small, .folder = folder.path()});
    CHECK(to_words(measured.outcome.verdict) == to_words(claim.recorded));
    const std::string page = text_of_file(there / "README.md");
    CHECK(page.find(measured.outcome.because) != std::string::npos);
    if (claim.discussed.empty()) {
      continue;
    }
    // Of a discussion, every loss and difference is one of that page.
    const std::string discussion = text_of_file(there / claim.discussed);
    const std::regex number("[0-9]\\.[0-9]{4}");
    for (std::sregex_iterator at(discussion.begin(), discussion.end(), number); at != std::sregex_iterator(); ++at) {
      CHECK_MESSAGE(page.find(at->str()) != std::string::npos, at->str());
    }
  }
}

TEST_CASE("a table of what nobody has measured yet is not shown") {
  PaperClaim claim = *find_claim("pgop-overhead");
  claim.measure = [](const Trial&) {
    Outcome outcome{.verdict = ClaimVerdict::does_not_hold};
    outcome.tables = {{"by model", {"rank", "±"}, {}, "rank", {}, "model", {}}};
    outcome.figures = {{.title = "curves of no run"}};
    return outcome;
  };
  const Measured measured = measure(claim, {});
  CHECK(measured.outcome.tables.empty());
  CHECK(report_of(measured, "now", {}).sections.at(0).figures.empty());
  CHECK(page_of(measured).find("by model") == std::string::npos);
}

TEST_CASE("claims have names of their own, a page each, and one list") {
  std::set<std::string> names;
  for (const PaperClaim& claim : claims()) {
    CAPTURE(claim.id);
    CHECK(names.insert(claim.id).second);
    CHECK(find_claim(claim.id) == &claim);
    const std::string page = text_of_file(std::filesystem::path("experiments") / claim.id / "README.md");
    CHECK(page.find("**" + to_words(claim.recorded) + "**") != std::string::npos);
    CHECK(page.find(claim.says) != std::string::npos);
    const bool untrained =
        claim.trains() && claim.recorded == ClaimVerdict::undecided;  // its page may be of smoke scale
    CHECK((untrained || page.find("\n" + recorded_run(claim) + "\n") != std::string::npos));
  }
  CHECK(find_claim("no-such-claim") == nullptr);
  CHECK(text_of_file("experiments/README.md") == page_of_claims());
}
