#include "base/sha256.h"

#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace tfc {
namespace {

constexpr size_t kBlock = 64;

constexpr std::array<uint32_t, 64> kRound = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

uint32_t Rotate(uint32_t x, int n) { return (x >> n) | (x << (32 - n)); }

uint32_t LoadBig(const uint8_t* p) {
  return uint32_t{p[0]} << 24 | uint32_t{p[1]} << 16 | uint32_t{p[2]} << 8 | uint32_t{p[3]};
}

void StoreBig(uint32_t x, uint8_t* p) {
  for (int i = 0; i < 4; ++i) p[i] = static_cast<uint8_t>(x >> (24 - 8 * i));
}

std::array<uint32_t, 64> Schedule(const uint8_t* block) {
  std::array<uint32_t, 64> w;
  for (size_t i = 0; i < 16; ++i) w[i] = LoadBig(block + 4 * i);
  for (size_t i = 16; i < 64; ++i) {
    const uint32_t s0 = Rotate(w[i - 15], 7) ^ Rotate(w[i - 15], 18) ^ (w[i - 15] >> 3);
    const uint32_t s1 = Rotate(w[i - 2], 17) ^ Rotate(w[i - 2], 19) ^ (w[i - 2] >> 10);
    w[i] = w[i - 16] + s0 + w[i - 7] + s1;
  }
  return w;
}

// The key as one block: hashed when it is longer, padded with zeros when it is shorter.
std::array<uint8_t, kBlock> KeyBlock(const void* key, size_t key_size) {
  std::array<uint8_t, kBlock> block = {};
  if (key_size > kBlock) {
    const Digest digest = Sha256().Update(key, key_size).Finish();
    std::copy(digest.begin(), digest.end(), block.begin());
  } else if (key_size > 0) {
    std::memcpy(block.data(), key, key_size);
  }
  return block;
}

}  // namespace

Sha256::Sha256()
    : state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19},
      block_{} {}

void Sha256::Compress(const uint8_t* block) {
  const std::array<uint32_t, 64> w = Schedule(block);
  auto [a, b, c, d, e, f, g, h] = state_;
  for (size_t i = 0; i < 64; ++i) {
    const uint32_t s1 = Rotate(e, 6) ^ Rotate(e, 11) ^ Rotate(e, 25);
    const uint32_t t1 = h + s1 + ((e & f) ^ (~e & g)) + kRound[i] + w[i];
    const uint32_t s0 = Rotate(a, 2) ^ Rotate(a, 13) ^ Rotate(a, 22);
    const uint32_t t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
    h = g;
    g = f;
    f = e;
    e = d + t1;
    d = c;
    c = b;
    b = a;
    a = t1 + t2;
  }
  const std::array<uint32_t, 8> added = {a, b, c, d, e, f, g, h};
  for (size_t i = 0; i < 8; ++i) state_[i] += added[i];
}

Sha256& Sha256::Update(const void* data, size_t size) {
  const auto* bytes = static_cast<const uint8_t*>(data);
  total_ += size;
  while (size > 0) {
    const size_t take = std::min(size, kBlock - filled_);
    std::memcpy(block_.data() + filled_, bytes, take);
    filled_ += take;
    bytes += take;
    size -= take;
    if (filled_ == kBlock) {
      Compress(block_.data());
      filled_ = 0;
    }
  }
  return *this;
}

Digest Sha256::Finish() {
  const uint64_t bits = total_ * 8;
  const uint8_t one = 0x80;
  const uint8_t zero = 0;
  Update(&one, 1);
  while (filled_ != kBlock - 8) Update(&zero, 1);
  uint8_t length[8];
  StoreBig(static_cast<uint32_t>(bits >> 32), length);
  StoreBig(static_cast<uint32_t>(bits), length + 4);
  Update(length, sizeof(length));
  Digest digest;
  for (size_t i = 0; i < 8; ++i) StoreBig(state_[i], digest.data() + 4 * i);
  return digest;
}

HmacSha256::HmacSha256(const void* key, size_t key_size) : outer_pad_(KeyBlock(key, key_size)) {
  std::array<uint8_t, kBlock> inner_pad = outer_pad_;
  for (uint8_t& byte : inner_pad) byte ^= 0x36;
  for (uint8_t& byte : outer_pad_) byte ^= 0x5c;
  inner_.Update(inner_pad.data(), inner_pad.size());
}

HmacSha256& HmacSha256::Update(const void* data, size_t size) {
  inner_.Update(data, size);
  return *this;
}

Digest HmacSha256::Finish() {
  const Digest inner = inner_.Finish();
  return Sha256().Update(outer_pad_.data(), outer_pad_.size()).Update(inner.data(), inner.size()).Finish();
}

bool ConstantTimeEqual(const Digest& a, const Digest& b) {
  volatile uint8_t difference = 0;  // volatile: the compiler may not leave the loop early
  for (size_t i = 0; i < a.size(); ++i) difference = static_cast<uint8_t>(difference | (a[i] ^ b[i]));
  return difference == 0;
}

Status FillRandom(void* data, size_t size) {
  auto* bytes = static_cast<uint8_t*>(data);
  while (size > 0) {
    const ssize_t got = ::getrandom(bytes, size, 0);
    if (got < 0) {
      if (errno == EINTR) continue;
      return Status::FromErrno("getrandom", errno);
    }
    bytes += got;
    size -= static_cast<size_t>(got);
  }
  return Status::Ok();
}

}  // namespace tfc
