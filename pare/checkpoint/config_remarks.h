#pragma once
// What reading a configuration has to say beside the Architecture, and where it puts that. It adds also where it
// throws.

#include <string>
#include <vector>

namespace pare {

struct ConfigRemarks {
  std::vector<std::string>* warnings = nullptr;      // what is odd and no problem
  std::vector<std::string>* ignored_keys = nullptr;  // keys that nobody knows; without a list for them, a problem
};

}  // namespace pare
