// Every claim is measured, and comes to the verdict that is recorded and that its page in experiments/ has.

#include "pare/claims/claim.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "pare/claims/report.h"

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
      const ClaimVerdict expected = claim.of_trained_models ? ClaimVerdict::undecided : claim.recorded;
      CHECK(to_words(measured.outcome.verdict) == to_words(expected));
      CHECK(!measured.outcome.compared.empty());
      CHECK(!measured.outcome.because.empty());
      for (const ClaimTable& table : measured.outcome.tables) {
        for (const std::vector<double>& row : table.rows) {
          CHECK(row.size() == table.columns.size());
        }
      }
    }
  }
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
  }
  CHECK(find_claim("no-such-claim") == nullptr);
  CHECK(text_of_file("experiments/README.md") == page_of_claims());
}
