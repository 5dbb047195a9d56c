#pragma once
// A list of what a function, or a member, gives for each element of another.

#include <functional>
#include <iterator>
#include <type_traits>
#include <vector>

namespace pare {

template <class Items, class F>
auto mapped(Items&& items, F&& f) {
  std::vector<std::decay_t<std::invoke_result_t<F&, decltype(*std::begin(items))>>> found;
  for (auto&& item : items) {
    found.push_back(std::invoke(f, item));
  }
  return found;
}

}  // namespace pare
