// A tokenizer.json, and after a zero byte a text for it: ids are made, and text of them again.

#include "pare/data/tokenizer.h"
#include "pare/data/utf8.h"
#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return pare::fuzz(data, size, [](std::string_view bytes) {
    const size_t end = std::min(bytes.find('\0'), bytes.size());
    pare::Tokenizer tokenizer = pare::parse_tokenizer_json(bytes.substr(0, end), "fuzz");
    const std::string text = pare::repaired_utf8(bytes.substr(std::min(end + 1, bytes.size())));
    const std::vector<pare::TokenId> whole = tokenizer.encode(text);
    const size_t cut = tokenizer.last_cut(text);
    std::vector<pare::TokenId> parts;
    tokenizer.encode_part(std::string_view(text).substr(0, cut), pare::TextPart::begins, parts);
    tokenizer.encode_part(std::string_view(text).substr(cut),
                          cut > 0 ? pare::TextPart::continues : pare::TextPart::begins, parts);
    tokenizer.decode(tokenizer.with_special(whole));
  });
}
