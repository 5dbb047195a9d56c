#pragma once
// The kinds of errors, and two answers that end a command. Only cli/main.cpp prints them and picks the exit code.

#include <stdexcept>
#include <string>
#include <vector>

namespace pare {

// The user's file, flag or model is wrong. Exit code 1.
struct InputError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The system refused: a file, a disk, memory. Exit code 1.
struct IoError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A pass refused: its preconditions do not hold for this model. Exit code 2.
struct Refused : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Two models are not the same function, or the check could not tell. Exit code 3.
struct VerificationFailed : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A bug of ours. Exit code 70.
struct InternalError : std::logic_error {
  using std::logic_error::logic_error;
};

// Ctrl-C, seen at a safe place. Exit code 130.
struct Interrupted : std::runtime_error {
  Interrupted() : std::runtime_error("interrupted") {}
};

// Collects every problem of one subject, so that the user sees them all at once.
class Problems {
 public:
  void add(std::string problem) { list_.push_back(std::move(problem)); }
  bool empty() const { return list_.empty(); }
  const std::vector<std::string>& list() const { return list_; }
  // Throws InputError "SUBJECT: PROBLEM", or "SUBJECT: N problems" with a line each.
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
