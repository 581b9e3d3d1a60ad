#include "base/sha256.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace tfc {
namespace {

std::string Hex(const Digest& digest) {
  static const char* const kDigits = "0123456789abcdef";
  std::string text;
  for (const uint8_t byte : digest) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

std::string Hash(const std::string& text) { return Hex(Sha256().Update(text.data(), text.size()).Finish()); }

std::string Mac(const std::string& key, const std::string& text) {
  return Hex(HmacSha256(key.data(), key.size()).Update(text.data(), text.size()).Finish());
}

// FIPS 180-4 examples.
TEST(Sha256Test, KnownAnswers) {
  EXPECT_EQ(Hash(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(Hash("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(Hash("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(Hash(std::string(1000000, 'a')), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256Test, PiecesGiveTheSameAsTheWhole) {
  for (size_t size = 0; size < 200; ++size) {
    const std::string text(size, 'x');
    Sha256 pieces;
    for (size_t at = 0; at < size; at += 7) pieces.Update(text.data() + at, std::min<size_t>(7, size - at));
    EXPECT_EQ(Hex(pieces.Finish()), Hash(text)) << size;
  }
}

// RFC 4231, cases 1, 2 and 6.
TEST(HmacSha256Test, KnownAnswers) {
  EXPECT_EQ(Mac(std::string(20, '\x0b'), "Hi There"),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(Mac("Jefe", "what do ya want for nothing?"),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(Mac(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First"),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST(ConstantTimeEqualTest, SeesEveryByte) {
  const Digest digest = Sha256().Finish();
  EXPECT_TRUE(ConstantTimeEqual(digest, digest));
  for (size_t i = 0; i < digest.size(); ++i) {
    Digest other = digest;
    other[i] ^= 0x80;
    EXPECT_FALSE(ConstantTimeEqual(digest, other)) << i;
  }
}

TEST(FillRandomTest, GivesFreshBytes) {
  std::vector<uint8_t> a(64);
  std::vector<uint8_t> b(64);
  ASSERT_TRUE(FillRandom(a.data(), a.size()).ok());
  ASSERT_TRUE(FillRandom(b.data(), b.size()).ok());
  EXPECT_NE(a, b);
}

}  // namespace
}  // namespace tfc
