#include "pare/cli/failure.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <filesystem>
#include <new>
#include <nlohmann/json.hpp>

#include "pare/cli/commands.h"

using namespace pare;

namespace {

template <typename Thrown>
Failure failure_of(const Thrown& thrown) {
  return describe(std::make_exception_ptr(thrown));
}

}  // namespace

TEST_CASE("every way to fail has an exit code and a kind") {
  const auto check = [](const Failure& failure, int exit_code, const char* kind, const char* begin) {
    CAPTURE(kind);
    CHECK(failure.exit_code == exit_code);
    CHECK(failure.kind == kind);
    CHECK(stderr_text(failure).starts_with(begin));
    const nlohmann::ordered_json document = error_document(failure);
    CHECK(document.size() == 1);
    CHECK(document["error"]["kind"] == kind);
    CHECK(document["error"]["message"] == failure.message);
    CHECK(document["error"]["reasons"].size() >= 1);
  };
  check(failure_of(InputError("a")), 1, "input", "pare: error: a\n");
  check(failure_of(IoError("a")), 1, "io", "pare: error: a\n");
  check(failure_of(std::filesystem::filesystem_error("a", std::error_code())), 1, "io", "pare: error: ");
  check(failure_of(std::bad_alloc()), 1, "out_of_memory", "pare: error: out of memory\n");
  check(failure_of(Refused("a")), 2, "refused", "pare: refused: a\n");
  check(failure_of(VerificationFailed("a")), 3, "verification_failed", "pare: verification failed: a\n");
  check(failure_of(InternalError("a")), 70, "internal", "pare: internal error: a\n");
  check(failure_of(std::runtime_error("a")), 70, "internal", "pare: internal error: a\n");
  check(failure_of(7), 70, "internal", "pare: internal error: ");
  check(failure_of(Interrupted()), 130, "interrupted", "pare: interrupted\n");
}

TEST_CASE("an error of libtorch is a bug of ours, unless memory ended") {
  try {
    at::ones({2, 3}).matmul(at::ones({2, 3}));
    FAIL("libtorch multiplied what does not fit");
  } catch (...) {
    CHECK(describe(std::current_exception()).kind == "internal");
  }
  try {
    at::empty({int64_t{1} << 60});
    FAIL("libtorch found an exabyte");
  } catch (...) {
    const Failure failure = describe(std::current_exception());
    CHECK(failure.kind == "out_of_memory");
    CHECK(failure.exit_code == 1);
  }
}

TEST_CASE("a reason's fields are members beside its message") {
  const Failure failure = failure_of(Refused("no", {{"a is b", {{"where", "a"}, {"found", "b"}}}, {"c", {}}}));
  CHECK(error_document(failure)["error"]["reasons"].dump() ==
        R"([{"message":"a is b","where":"a","found":"b"},{"message":"c"}])");
}

TEST_CASE("--json is found on any command line") {
  CHECK(has_flag({"audit", "--json"}, "--json"));
  CHECK(has_flag({"--json=true", "--nonsense"}, "--json"));
  CHECK_FALSE(has_flag({"audit", "--", "--json"}, "--json"));
  CHECK_FALSE(has_flag({"audit", "--jsonl", "--json=false"}, "--json"));
}
