#include "pare/support/error.h"

#include <doctest/doctest.h>

#include "tests/support/helpers.h"

using namespace pare;

TEST_CASE("no problems throw nothing") {
  CHECK_NOTHROW(Problems().throw_if_any("model.json"));
}

TEST_CASE("one problem stands on the subject's line, several on their own") {
  Problems problems;
  problems.add("width is 0");
  CHECK(message_of<InputError>([&] { problems.throw_if_any("model.json"); }) == "model.json: width is 0");
  problems.add("heads is 0");
  CHECK(message_of<InputError>([&] { problems.throw_if_any("model.json"); }) ==
        "model.json: 2 problems\n  width is 0\n  heads is 0");
}

TEST_CASE("a flood of problems is cut, and counted") {
  Problems problems;
  for (int i = 0; i < 1000; ++i) {
    problems.add("problem " + std::to_string(i));
  }
  std::string message = message_of<InputError>([&] { problems.throw_if_any("model.json"); });
  CHECK(contains(message, "1000 problems"));
  CHECK(contains(message, "problem 19\n"));
  CHECK_FALSE(contains(message, "problem 20\n"));
  CHECK(message.ends_with("... and 980 more"));
}

TEST_CASE("an error has a reason for each problem, and one where there is only the message") {
  try {
    throw IoError("the disk is full");
  } catch (const Error& error) {
    REQUIRE(error.reasons.size() == 1);
    CHECK(error.reasons[0].message == "the disk is full");
  }
  Problems problems;
  for (int i = 0; i < 50; ++i) {
    problems.add("problem " + std::to_string(i));
  }
  try {
    problems.throw_if_any("model.json");
  } catch (const InputError& error) {  // more than the message shows
    REQUIRE(error.reasons.size() == 50);
    CHECK(error.reasons[49].message == "problem 49");
  }
}

TEST_CASE("a failed check says where, what and why") {
  std::string message = message_of<InternalError>([] { PARE_CHECK(1 + 1 == 3, "arithmetic is broken"); });
  CHECK(contains(message, "error_test.cpp:"));
  CHECK(contains(message, "1 + 1 == 3"));
  CHECK(contains(message, "arithmetic is broken"));
}
