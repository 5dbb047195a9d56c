#pragma once
// Which operators of libtorch some code calls, by name.

#include <ATen/record_function.h>

#include <functional>
#include <map>
#include <string>

namespace pare::test {

inline std::map<std::string, int> operators_of(const std::function<void()>& code) {
  static std::map<std::string, int>* current = nullptr;  // callbacks are plain functions
  std::map<std::string, int> calls;
  current = &calls;
  const at::CallbackHandle handle = at::addThreadLocalCallback(
      at::RecordFunctionCallback([](const at::RecordFunction& f) -> std::unique_ptr<at::ObserverContext> {
        ++(*current)[f.name()];
        return nullptr;
      }).scopes({at::RecordScope::FUNCTION}));
  code();
  at::removeCallback(handle);
  return calls;
}

}  // namespace pare::test
