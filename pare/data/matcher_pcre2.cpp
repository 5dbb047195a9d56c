#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include "pare/data/matcher.h"
#include "pare/support/error.h"

namespace pare {

namespace {

constexpr size_t first_stack = 32 * 1024, largest_stack = 16 * 1024 * 1024;  // of compiled expressions

std::string message_of(int error) {
  PCRE2_UCHAR text[256];
  const int length = pcre2_get_error_message(error, text, sizeof text);
  return length < 0 ? fmt::format("error {}", error)
                    : std::string(reinterpret_cast<const char*>(text), static_cast<size_t>(length));
}

}  // namespace

// One for all copies. Its buffers are used by each match, so a Tokenizer serves one thread at a time.
struct ByteMatcher::Compiled {
  pcre2_code* code = nullptr;
  pcre2_match_data* data = nullptr;
  pcre2_match_context* context = nullptr;
  pcre2_jit_stack* stack = nullptr;
  bool fast = false;
  std::string subject;

  Compiled() = default;
  Compiled(const Compiled&) = delete;
  Compiled& operator=(const Compiled&) = delete;
  ~Compiled() {
    pcre2_jit_stack_free(stack);
    pcre2_match_context_free(context);
    pcre2_match_data_free(data);
    pcre2_code_free(code);
  }
};

ByteMatcher::ByteMatcher(const std::string& expression, const std::string& subject) {
  auto made = std::make_shared<Compiled>();
  made->subject = subject;
  int error = 0;
  PCRE2_SIZE place = 0;
  made->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(expression.data()), expression.size(), PCRE2_MULTILINE,
                             &error, &place, nullptr);
  if (made->code == nullptr) {
    throw InputError(fmt::format("{} cannot be compiled: {}", subject, message_of(error)));
  }
  made->data = pcre2_match_data_create_from_pattern(made->code, nullptr);
  made->context = pcre2_match_context_create(nullptr);
  made->fast = pcre2_jit_compile(made->code, PCRE2_JIT_COMPLETE) == 0;  // some systems forbid it
  if (made->fast) {
    made->stack = pcre2_jit_stack_create(first_stack, largest_stack, nullptr);
    pcre2_jit_stack_assign(made->context, nullptr, made->stack);
  }
  if (made->data == nullptr || made->context == nullptr) {
    throw IoError("no memory for a pattern");
  }
  compiled_ = std::move(made);
}

bool ByteMatcher::find(std::string_view in, size_t from, ByteSpan& found) const {
  const Compiled& c = *compiled_;
  const PCRE2_SPTR text = reinterpret_cast<PCRE2_SPTR>(in.data());
  const int result = c.fast ? pcre2_jit_match(c.code, text, in.size(), from, 0, c.data, c.context)
                            : pcre2_match(c.code, text, in.size(), from, 0, c.data, c.context);
  if (result == PCRE2_ERROR_NOMATCH) {
    return false;
  }
  if (result < 0) {
    throw InputError(fmt::format("{} is too expensive for this text: {}", c.subject, message_of(result)));
  }
  const PCRE2_SIZE* places = pcre2_get_ovector_pointer(c.data);
  found = {places[0], places[1]};
  return true;
}

}  // namespace pare
