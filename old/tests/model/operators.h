#pragma once
// Which operators of libtorch some code calls, how often, and on what.

#include <ATen/record_function.h>

#include <functional>
#include <map>
#include <set>
#include <string>

namespace pare::test {

struct Operators {
  std::map<std::string, int> calls;
  std::set<std::string> on_float64;  // those given a float64 tensor that is more than a number
};

inline Operators operators_of(const std::function<void()>& code) {
  static Operators* current = nullptr;  // callbacks are plain functions
  Operators found;
  current = &found;
  const auto enter = [](const at::RecordFunction& f) -> std::unique_ptr<at::ObserverContext> {
    ++current->calls[f.name()];
    for (const c10::IValue& input : f.inputs()) {
      if (input.isTensor() && input.toTensor().defined() && input.toTensor().scalar_type() == at::kDouble &&
          input.toTensor().dim() > 0) {
        current->on_float64.insert(f.name());
      }
    }
    return nullptr;
  };
  const at::CallbackHandle handle = at::addThreadLocalCallback(
      at::RecordFunctionCallback(enter).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
  code();
  at::removeCallback(handle);
  return found;
}

}  // namespace pare::test
