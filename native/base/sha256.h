// SHA-256 (FIPS 180-4), HMAC-SHA256 (RFC 2104) and what goes with them in a handshake.
#ifndef TFCOLLECTIVE_BASE_SHA256_H_
#define TFCOLLECTIVE_BASE_SHA256_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/status.h"

namespace tfc {

using Digest = std::array<uint8_t, 32>;

class Sha256 {
 public:
  Sha256();
  Sha256& Update(const void* data, size_t size);
  // The object must not be used after it.
  Digest Finish();

 private:
  void Compress(const uint8_t* block);

  std::array<uint32_t, 8> state_;
  std::array<uint8_t, 64> block_;
  size_t filled_ = 0;   // bytes in block_
  uint64_t total_ = 0;  // bytes given to Update
};

class HmacSha256 {
 public:
  HmacSha256(const void* key, size_t key_size);
  HmacSha256& Update(const void* data, size_t size);
  // The object must not be used after it.
  Digest Finish();

 private:
  Sha256 inner_;
  std::array<uint8_t, 64> outer_pad_;
};

// Takes the same time wherever the first difference is.
bool ConstantTimeEqual(const Digest& a, const Digest& b);

// Fills with bytes of the kernel's random generator (getrandom).
Status FillRandom(void* data, size_t size);

}  // namespace tfc

#endif  // TFCOLLECTIVE_BASE_SHA256_H_
