#include "pare/cli/failure.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <new>
#include <nlohmann/json.hpp>

#include "pare/cli/output.h"
#include "pare/model/device.h"
#include "pare/ranks/communicator.h"
#include "pare/support/table.h"

namespace pare {

namespace {

std::string first_line(const c10::Error& error) {
  const std::string text = error.what_without_backtrace();
  return text.substr(0, text.find('\n'));
}

Failure plain(int exit_code, const char* kind, const char* prefix, const std::string& message) {
  return {exit_code, kind, prefix, message, {{message}}};
}

Failure bug(const std::string& message) {
  return plain(70, "internal", "internal error", message);
}

}  // namespace

Failure describe(const VerificationFailed& failure) {
  return {3, "verification_failed", "verification failed", failure.what(), failure.reasons, failure.warnings};
}

Failure describe(const std::exception_ptr& thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const Interrupted& interrupted) {
    return plain(130, "interrupted", "", interrupted.what());
  } catch (const InputError& error) {
    return {1, "input", "error", error.what(), error.reasons, error.warnings};
  } catch (const Refused& refusal) {
    return {2, "refused", "refused", refusal.what(), refusal.reasons, refusal.warnings};
  } catch (const VerificationFailed& failure) {
    return describe(failure);
  } catch (const EndedElsewhere& error) {
    return plain(1, "ended_elsewhere", "", error.what());
  } catch (const IoError& error) {
    return {1, "io", "error", error.what(), error.reasons, error.warnings};
  } catch (const std::filesystem::filesystem_error& error) {
    return plain(1, "io", "error", error.what());
  } catch (const std::bad_alloc&) {
    return plain(1, "out_of_memory", "error", "out of memory");
  } catch (const c10::Error& error) {
    return is_out_of_memory(error) ? plain(1, "out_of_memory", "error", "out of memory: " + first_line(error))
                                   : bug(error.what_without_backtrace());
  } catch (const std::exception& error) {
    return bug(error.what());
  } catch (...) {
    return bug("something was thrown that is no exception");
  }
}

std::string stderr_text(const Failure& failure) {
  std::string text = fmt::format("pare: {}{}{}\n", failure.prefix, failure.prefix.empty() ? "" : ": ", failure.message);
  if (failure.kind == "internal") {
    text += "pare: this is a bug of pare, not of your input: please report it\n";
  }
  return fitted_message(text);
}

nlohmann::ordered_json error_document(const Failure& failure) {
  nlohmann::ordered_json reasons = nlohmann::ordered_json::array();
  for (const ErrorReason& reason : failure.reasons) {
    nlohmann::ordered_json entry = {{"message", reason.message}};
    for (const auto& [name, value] : reason.fields) {
      entry[name] = value;
    }
    reasons.push_back(std::move(entry));
  }
  return {{"error", {{"kind", failure.kind}, {"message", failure.message}, {"reasons", std::move(reasons)}}}};
}

void print_failure(const Failure& failure, bool json, bool quiet) {
  print_warnings(failure.warnings);
  if (json && !printed_document()) {
    try {
      print_json(error_document(failure));
    } catch (...) {  // nobody reads stdout, or it takes nothing: the exit code still says it
    }
  }
  if (!json || !quiet) {
    std::fputs(stderr_text(failure).c_str(), stderr);
  }
}

}  // namespace pare
