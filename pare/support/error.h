#pragma once
// The kinds of errors, and two answers that end a command. Only cli/main.cpp prints them and picks the exit code.

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace pare {

// One reason of an error, for programs that read `--json`: `message` says all of it, `fields` name its parts.
struct ErrorReason {
  std::string message;
  std::vector<std::pair<std::string, std::string>> fields = {};
};

struct Error : std::runtime_error {
  // Without reasons, the message is the only one.
  explicit Error(const std::string& message, std::vector<ErrorReason> why = {});
  std::vector<ErrorReason> reasons;   // at least one
  std::vector<std::string> warnings;  // what was noticed before it failed, and could not be handed back
};

// The user's file, flag or model is wrong. Exit code 1.
struct InputError : Error {
  using Error::Error;
};

// What is wrong, and what was expected, as fmt::format says it.
template <class... Args>
void refuse_if(bool wrong, fmt::format_string<Args...> text, Args&&... args) {
  if (wrong) {
    throw InputError(fmt::format(text, std::forward<Args>(args)...));
  }
}

// The system refused: a file, a disk, memory. Exit code 1.
struct IoError : Error {
  using Error::Error;
};

// A pass refused: its preconditions do not hold for this model. Exit code 2.
struct Refused : Error {
  using Error::Error;
};

// Two models are not the same function, or the check could not tell. Exit code 3.
struct VerificationFailed : Error {
  using Error::Error;
};

// A bug of ours. Exit code 70.
struct InternalError : std::logic_error {
  using std::logic_error::logic_error;
};

// Ctrl-C, seen at a safe place. Exit code 130.
struct Interrupted : std::runtime_error {
  explicit Interrupted(const std::string& what = "interrupted") : std::runtime_error(what) {}
};

// Collects every problem of one subject, so that the user sees them all at once.
class Problems {
 public:
  void add(std::string problem) { list_.push_back(std::move(problem)); }
  template <class... Args>
  void add_if(bool wrong, fmt::format_string<Args...> text, Args&&... args) {
    if (wrong) {
      add(fmt::format(text, std::forward<Args>(args)...));
    }
  }
  bool empty() const { return list_.empty(); }
  const std::vector<std::string>& list() const { return list_; }
  // Throws InputError "SUBJECT: PROBLEM", or "SUBJECT: N problems" with a line and a reason each.
  void throw_if_any(const std::string& subject) const;

 private:
  std::vector<std::string> list_;
};

[[noreturn]] void fail_check(const char* file, int line, const char* condition, const std::string& message);

}  // namespace pare

// A condition that only a bug of ours can break; users' input is checked with InputError instead.
#define PARE_CHECK(condition, message)                               \
  do {                                                               \
    if (!(condition)) {                                              \
      ::pare::fail_check(__FILE__, __LINE__, #condition, (message)); \
    }                                                                \
  } while (false)

// The end of a switch over all that there is.
#define PARE_UNREACHABLE(message) ::pare::fail_check(__FILE__, __LINE__, "unreachable", (message))
