#pragma once
// Numbers as people read them.

#include <cstdint>
#include <string>

namespace pare {

std::string with_commas(int64_t number);  // 33,554,432
std::string human_count(int64_t number);  // 6.9B
std::string human_bytes(uint64_t bytes);  // 13.7 GB, in powers of 1000
std::string human_time(double seconds);   // 42 s, 3 min 05 s, 2 h 07 min

}  // namespace pare
