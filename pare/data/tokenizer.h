#pragma once
// Text to token ids and back, as the tokenizers package does it. One thread at a time: words are remembered.

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "pare/data/added_tokens.h"
#include "pare/data/bpe.h"
#include "pare/data/decoder.h"
#include "pare/data/normalizer.h"
#include "pare/data/pre_tokenizer.h"
#include "pare/data/word_piece.h"

namespace pare {

// All that a tokenizer is made of.
struct TokenizerParts {
  std::string subject;  // the file, for messages
  Vocabulary vocabulary;
  std::vector<AddedToken> added;
  Normalizer normalizer{{}};
  PreTokenizer pre_tokenizer{{}};
  std::optional<std::variant<BpeModel, WordPieceModel>> model;
  std::vector<TokenId> before, after;  // what stands around each sequence
  std::vector<DecodeStep> decoder;
};

class Tokenizer {
 public:
  explicit Tokenizer(TokenizerParts parts);

  // Without what stands around a sequence. The text has to be valid UTF-8.
  std::vector<TokenId> encode(std::string_view text);
  // The same for a text in parts, which are cut at places that `last_cut` finds.
  void encode_part(std::string_view text, TextPart part, std::vector<TokenId>& ids);
  // The last place behind `from` where a text may be cut so that its parts give the tokens of the whole; 0 where there
  // is none. Some tokenizers allow none, and then a text has to be encoded whole.
  size_t last_cut(std::string_view text, size_t from = 0);
  // Characters of all texts so far that became no token, since the model has none for what it does not know.
  int64_t dropped() const;

  const std::vector<TokenId>& before() const { return parts_.before; }
  const std::vector<TokenId>& after() const { return parts_.after; }
  std::vector<TokenId> with_special(std::vector<TokenId> ids) const;

  // InputError for an id that is no token.
  std::string decode(const std::vector<TokenId>& ids, bool skip_special = true, TextEnd end = TextEnd::closed) const;
  bool has(TokenId id) const;  // a token that can be decoded

  const std::string& subject() const { return parts_.subject; }
  const Vocabulary& vocabulary() const { return parts_.vocabulary; }  // of the model, without tokens added to it
  std::optional<TokenId> id_of(std::string_view token) const;

 private:
  const AddedToken* added_token(TokenId id) const;
  void encode_section(std::string_view text, SectionPlace place, std::vector<TokenId>& ids);
  void encode_words(std::string_view text, SectionPlace place, std::vector<TokenId>& ids);
  bool cut_is_safe(std::string_view left, std::string_view right);
  void find_safe_cuts();
  TokenizerParts parts_;
  AddedTokenFinder raw_, normalized_;
  bool cuts_at_spaces_ = false, cuts_after_lines_ = false;
  int64_t dropped_by_samples_ = 0;
  bool cuts_anywhere_ = false;  // a text is one word that nothing changes: where its model lets it be cut
};

// The tokenizer of a model folder: tokenizer.json, else encoder.json and vocab.bpe, vocab.json and merges.txt,
// vocab.txt, llama2.c's tok*.bin, or the one in its GGUF file. A path to one of these files means that one. InputError
// where there is none, where it is damaged, and for kinds that are not supported, by name.
Tokenizer open_tokenizer(const std::filesystem::path& path);
// The files that it could be of a folder: none, the one that is opened, or several tok*.bin among which nobody chooses.
std::vector<std::filesystem::path> tokenizers_in(const std::filesystem::path& folder);

// What each text of a model in a folder begins with: what its tokenizer puts there, or else bos_token_id of its
// config.json, or of its metadata where it is GGUF; nothing where none says.
std::vector<TokenId> tokens_before_texts(const std::filesystem::path& folder);

// What ends a text that the model in a folder writes: eos_token_id, a number or several, of its generation_config.json,
// or else of its config.json; or else the eos_token of its tokenizer. Nothing where none of them says. GGUF has them in
// its metadata.
std::vector<TokenId> tokens_that_end_texts(const std::filesystem::path& folder);

// A tokenizer.json whose tokens are the bytes of a text, up to 256 of them: what a model reads that learned bytes.
// Every program that reads such files reads it.
std::string byte_tokenizer_json(int64_t vocab);
// Whether a folder's tokenizer is such a one.
bool reads_bytes(const std::filesystem::path& folder);

// The single kinds. What a vocabulary alone does not say is as the family that it belongs to has it: docs/text.md.
Tokenizer read_tokenizer_json(const std::filesystem::path& path);
Tokenizer parse_tokenizer_json(std::string_view text, const std::string& subject);
Tokenizer read_bpe_files(const std::filesystem::path& vocabulary, const std::filesystem::path& merges);
Tokenizer read_vocab_txt(const std::filesystem::path& path);
Tokenizer read_llama2c(const std::filesystem::path& path);

}  // namespace pare
