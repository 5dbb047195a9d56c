#include "pare/support/memory.h"

#include <malloc.h>

#include <atomic>

namespace pare {

namespace {

std::atomic<int> alive = 0;

void map_blocks_from([[maybe_unused]] int bytes) {
#ifdef M_MMAP_THRESHOLD  // glibc; other allocators give memory back by themselves
  mallopt(M_MMAP_THRESHOLD, bytes);
  mallopt(M_TRIM_THRESHOLD, 2 * bytes);
#endif
}

}  // namespace

PromptlyFreed::PromptlyFreed() {
  if (alive++ == 0) {
    map_blocks_from(128 << 10);  // where glibc begins
  }
}

PromptlyFreed::~PromptlyFreed() {
  if (--alive == 0) {
    map_blocks_from(32 << 20);  // where glibc ends, once it has seen blocks of that size come and go
  }
}

}  // namespace pare
