// What gantry-guest and gantry-relay share, and packets with descriptors beside them.
#include "proto/wire/mirror/endpoint.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <iterator>

#include "proto/base/hex.h"
#include "proto/base/packet.h"
#include "proto/wire/vm_proof.h"

namespace gantry::wire {
namespace {

struct Parsed {
    std::string host = "unset";
    std::uint64_t give_up_ms = 60'000;
    std::string problem;
};

Parsed parse(std::vector<std::string> words) {
    words.insert(words.begin(), "gantry-guest");
    std::vector<char*> arguments;
    for (std::string& word : words) {
        arguments.push_back(word.data());
    }
    Parsed parsed;
    parsed.problem =
        read_options(static_cast<int>(arguments.size()), arguments.data(),
                     {{"host", &parsed.host}, {"give-up-ms", nullptr, &parsed.give_up_ms}});
    return parsed;
}

TEST(EndpointOptions, AreReadOrRefusedByName) {
    const Parsed good = parse({"--host", "a:1", "--give-up-ms", "250"});
    EXPECT_EQ(good.problem, "");
    EXPECT_EQ(good.host, "a:1");
    EXPECT_EQ(good.give_up_ms, 250u);
    EXPECT_EQ(parse({}).problem, "");
    EXPECT_EQ(parse({"--hots", "a:1"}).problem,
              "unknown option '--hots'; known are --host, --give-up-ms");
    EXPECT_EQ(parse({"host", "a:1"}).problem,
              "unknown option 'host'; known are --host, --give-up-ms");
    EXPECT_EQ(parse({"--host"}).problem, "--host needs a value");
    for (const char* wrong : {"", "0", "-5", "5x", "soon"}) {
        EXPECT_EQ(parse({"--give-up-ms", wrong}).problem,
                  std::string("--give-up-ms needs milliseconds above 0, got '") + wrong + "'");
    }
}

TEST(Accept, EndsWhereNothingCanBeAccepted) {
    const int none = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    accept_forever("test", none, [](int) { ADD_FAILURE() << "accepted"; });
    ::close(none);
}

TEST(Listen, AHostMayStandInBrackets) {
    for (const char* address : {"127.0.0.1:0", "[127.0.0.1]:0"}) {
        const int listener = listen_tcp(address);
        EXPECT_GE(listener, 0) << address;
        ::close(listener);
    }
}

TEST(OpeningFrame, ComesInPiecesAndIsHeldAgainstItsKind) {
    AttachRequest request;
    std::vector<std::byte> stream(sizeof(FrameHeader) + sizeof request + 3, std::byte{7});
    const FrameHeader header{FrameKind::kAttach, sizeof request, 0};
    std::memcpy(stream.data(), &header, sizeof header);
    std::memcpy(stream.data() + sizeof header, &request, sizeof request);
    OpeningFrame<AttachRequest> opening;
    const std::size_t whole = stream.size() - 3;
    for (std::size_t i = 0; i + 1 < whole; ++i) {
        ASSERT_FALSE(opening.add(std::span(stream).subspan(i, 1)));
    }
    ASSERT_TRUE(opening.add(std::span(stream).subspan(whole - 1)));
    EXPECT_EQ(opening.rest().size(), 3u);
    AttachRequest got;
    EXPECT_TRUE(opening.read(FrameKind::kAttach, &got));
    EXPECT_EQ(std::memcmp(&got, &request, sizeof got), 0);
    EXPECT_FALSE(opening.read(FrameKind::kAttached, &got));
    stream[4] = static_cast<std::byte>(sizeof request + 1);  // The header's length.
    OpeningFrame<AttachRequest> longer;
    ASSERT_TRUE(longer.add(stream));
    EXPECT_FALSE(longer.read(FrameKind::kAttach, &got));
}

TEST(VmProof, IsAnHmacOfKeyLinkAndVm) {
    Sha256 key =
        from_hex<32>("000102030405060708090a0b0c0d0e0f101112131415161718191A1B1C1D1E1F").value();
    // Another link, another VM or another key: another proof.
    VmProof vm;
    EXPECT_FALSE(vm.names_vm());
    vm.vm[15] = 1;
    EXPECT_TRUE(vm.names_vm());
    const Sha256 proof = vm_proof(key, {1, 2}, {}, vm);
    EXPECT_TRUE(is_same_digest(proof, vm_proof(key, {1, 2}, {}, vm)));
    EXPECT_FALSE(is_same_digest(proof, vm_proof(key, {1, 3}, {}, vm)));
    VmProof neighbour;
    neighbour.vm[15] = 2;
    EXPECT_FALSE(is_same_digest(proof, vm_proof(key, {1, 2}, {}, neighbour)));
    key[0] ^= std::byte{1};
    EXPECT_FALSE(is_same_digest(proof, vm_proof(key, {1, 2}, {}, vm)));
}

std::ptrdiff_t open_descriptors() {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
}

TEST(Packet, DescriptorsBeyondThoseAskedForAreNotTaken) {
    int ends[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    const std::ptrdiff_t before = open_descriptors();
    const std::array<int, 3> sent = {ends[0], ends[1], ends[0]};
    const char text[] = "abc";
    ASSERT_EQ(send_packet_with(ends[0], text, sizeof text, sent.data(), sent.size()), 4);
    char got[8];
    std::array<int, 2> taken = {-1, -1};
    const ReceivedPacket one = receive_packet_with(ends[1], got, sizeof got, taken.data(), 1);
    EXPECT_EQ(one.bytes, 4);
    EXPECT_EQ(one.descriptor_count, 1u);
    EXPECT_TRUE(one.descriptors_cut);
    EXPECT_FALSE(one.bytes_cut);
    EXPECT_NE(::fcntl(taken[0], F_GETFD) & FD_CLOEXEC, 0);
    EXPECT_EQ(taken[1], -1);
    ::close(taken[0]);
    EXPECT_EQ(open_descriptors(), before);

    ASSERT_EQ(send_packet_with(ends[0], text, sizeof text, sent.data(), 1), 4);
    const ReceivedPacket none = receive_packet_with(ends[1], got, 2, nullptr, 0);
    EXPECT_TRUE(none.bytes_cut);
    EXPECT_TRUE(none.descriptors_cut);
    EXPECT_EQ(open_descriptors(), before);
    ::close(ends[0]);
    EXPECT_EQ(receive_packet_with(ends[1], got, sizeof got, nullptr, 0).bytes, 0);
    ::close(ends[1]);
}

}  // namespace
}  // namespace gantry::wire
