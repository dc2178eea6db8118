// Digests and hexadecimal text.
#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "proto/base/hex.h"
#include "proto/base/sha256.h"

namespace gantry {
namespace {

constexpr std::string_view kKey =
    "000102030405060708090a0b0c0d0e0f101112131415161718191A1B1C1D1E1F";

TEST(Sha256, AgreesWithPublishedVectors) {
    EXPECT_EQ(to_hex(sha256_of(std::as_bytes(std::span(std::string_view("abc"))))),
              "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    EXPECT_EQ(to_hex(sha256_of({})),
              "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    constexpr std::string_view kText =
        "hello world, a message of more than sixty-four bytes so that two blocks are mixed";
    EXPECT_EQ(to_hex(hmac_sha256(from_hex<32>(kKey).value(), std::as_bytes(std::span(kText)))),
              "b47603330375b947ea10e4e20e2d085aa1a2f4b93c6aef33c03f6baa086b68c2");
}

TEST(Sha256, DigestsThatDifferInOneBitAreNotTheSame) {
    const Sha256 one = sha256_of({});
    Sha256 other = one;
    EXPECT_TRUE(is_same_digest(one, other));
    other.back() ^= std::byte{1};
    EXPECT_FALSE(is_same_digest(one, other));
}

TEST(Hex, ReadsBothCasesAndNothingButWholeBytes) {
    EXPECT_EQ(to_hex(from_hex<32>(kKey).value()),
              "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f");
    EXPECT_FALSE(from_hex<32>("0001"));
    EXPECT_FALSE(from_hex<32>(std::string(63, '0') + "g"));
    EXPECT_FALSE(from_hex<32>(std::string(65, '0')));
    EXPECT_EQ(to_hex({}), "");
}

TEST(Hex, UuidsAreReadWithOrWithoutDashes) {
    constexpr std::string_view kUuid = "67616e74-7279-4000-8000-0000000000ff";
    const auto uuid = from_uuid_text(std::string(kUuid));
    ASSERT_TRUE(uuid);
    EXPECT_EQ((*uuid)[0], std::byte{0x67});
    EXPECT_EQ(to_uuid_text(*uuid), kUuid);
    EXPECT_EQ(from_uuid_text("67616e747279400080000000000000ff"), uuid);
    EXPECT_FALSE(from_uuid_text("67616e74-7279-4000-8000-0000000000f"));
    EXPECT_FALSE(from_uuid_text("67616e74-7279-4000-8000-0000000000fx"));
    EXPECT_FALSE(from_uuid_text(""));
}

}  // namespace
}  // namespace gantry
