#pragma once
// How a command ends that does not end well: exit code, words for people, a document for programs. docs/json/README.md
// lists the kinds.

#include <exception>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "pare/support/error.h"

namespace pare {

struct Failure {
  int exit_code = 70;
  std::string kind;    // input, io, out_of_memory, refused, verification_failed, interrupted or internal
  std::string prefix;  // of the line on stderr: "error", "refused", ...
  std::string message;
  std::vector<ErrorReason> reasons;
  std::vector<std::string> warnings = {};  // that came before it
};

Failure describe(const std::exception_ptr& thrown);
Failure describe(const VerificationFailed& failure);

std::string stderr_text(const Failure& failure);
// {"error": {"kind", "message", "reasons": [{"message", ...}]}}
nlohmann::ordered_json error_document(const Failure& failure);
// Its warnings; with `json` the document, unless one was printed; and the line on stderr, unless the document is
// enough.
void print_failure(const Failure& failure, bool json, bool quiet);

}  // namespace pare
