#include "pare/support/sha256.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <array>

#include "pare/support/error.h"

namespace pare {

struct Sha256::State {
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  ~State() { EVP_MD_CTX_free(context); }
};

Sha256::Sha256() : state_(std::make_unique<State>()) {
  PARE_CHECK(EVP_DigestInit_ex(state_->context, EVP_sha256(), nullptr) == 1, "libcrypto has no SHA-256");
}

Sha256::~Sha256() = default;

void Sha256::update(std::span<const std::byte> bytes) {
  PARE_CHECK(EVP_DigestUpdate(state_->context, bytes.data(), bytes.size()) == 1, "libcrypto refuses to hash");
}

std::string Sha256::hex() {
  std::array<unsigned char, 32> digest;
  PARE_CHECK(EVP_DigestFinal_ex(state_->context, digest.data(), nullptr) == 1, "libcrypto refuses to end a hash");
  return fmt::format("{:02x}", fmt::join(digest, ""));
}

}  // namespace pare
