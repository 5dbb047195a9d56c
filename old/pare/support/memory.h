#pragma once
// When freed memory goes back to the system.

namespace pare {

// While one lives, every large block is a mapping of its own that is gone when it is freed. Otherwise the allocator
// keeps the holes of freed blocks: loading a model tensor by tensor then holds a quarter more than the model.
// Not for computing: a fresh mapping for every intermediate costs more than the products that fill it.
class PromptlyFreed {
 public:
  PromptlyFreed();
  ~PromptlyFreed();
  PromptlyFreed(const PromptlyFreed&) = delete;
  PromptlyFreed& operator=(const PromptlyFreed&) = delete;
};

}  // namespace pare
