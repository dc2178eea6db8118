// A worker for tests of the session: serves channel 0 of a memfd region that it hands out over a
// unix socket, or of a file, from a thread of the test's own process. It executes nothing; it keeps
// the order of what it saw and answers as the test says.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "proto/wire/attach.h"
#include "proto/wire/control_ops.h"
#include "proto/wire/region.h"
#include "proto/wire/ring.h"

namespace gantry::test {

struct Seen {
    std::uint16_t op;
    std::uint16_t lane;
    std::uint64_t context;
    std::uint64_t position;
    std::uint32_t flags;
    std::vector<std::byte> args;
    std::vector<std::byte> trailing;
};

class FakeWorker {
public:
    FakeWorker();
    ~FakeWorker();
    FakeWorker(const FakeWorker&) = delete;
    FakeWorker& operator=(const FakeWorker&) = delete;

    /// What to do with a command that wants a reply and is no control command; default: answer 0.
    std::function<void(FakeWorker&, const Seen&)> on_call;

    /// Sees control commands first; true when it has done what they ask for.
    std::function<bool(FakeWorker&, const Seen&)> on_control;

    /// Sets GANTRY_TRANSPORT and serves until destroyed.
    void start();

    void answer(const Seen& command, std::uint32_t status, const void* payload = nullptr,
                std::uint32_t payload_bytes = 0, std::uint32_t flags = 0);
    void answer_bulk(const Seen& command, std::uint64_t offset, std::uint64_t bytes);

    /// Ends without a word: the link closes, the words say that the worker is dead if asked to.
    void die(bool leave_a_note);
    void hold(bool held) { held_.store(held); }

    // These wait for the channel, which the region of a file has only when a program has claimed
    // it.
    [[nodiscard]] wire::HostWords& host() { return await_words(), *host_; }
    [[nodiscard]] wire::GuestWords& guest() { return await_words(), *guest_; }
    [[nodiscard]] wire::ReplyPage& reply(std::uint32_t lane) {
        return await_words(), replies_[lane];
    }
    /// The region as the host has it mapped, and where its parts lie.
    [[nodiscard]] std::byte* region() { return region_; }
    [[nodiscard]] const wire::ChannelLayout& layout() const { return await_words(), layout_; }
    [[nodiscard]] std::byte* bulk() { return region_ + layout().bulk; }
    std::vector<Seen> take_seen();

    /// Runs before the answer to an attach.
    std::function<void()> on_attach = [] {};
    std::uint32_t accept = 1;
    std::uint32_t attach_wire_version = wire::kWireVersion;
    std::size_t attach_reply_bytes = sizeof(wire::AttachReply);  ///< Of it, what is sent.
    std::uint64_t region_bytes = 16ull << 20;
    bool by_file = false;  ///< The region is a file: that of a VM, which its programs share.
    std::uint64_t hello_hash = 0x1234;
    std::string printed;  ///< Drained once, as piece for descriptor 1.
    std::atomic<int> confirms{0};
    std::atomic<bool> pause_confirms{false};

private:
    void serve();
    void make_region();
    void make_listener();
    bool attach();
    void open_channel();
    void find_words(std::uint32_t channels);
    void await_words() const;
    void execute(const Seen& command);
    void control(const Seen& command);

    std::string path_;
    int listener_ = -1;
    int link_ = -1;
    int memfd_ = -1;
    std::byte* region_ = nullptr;
    wire::ChannelLayout layout_{};
    wire::GuestDirectory* guest_directory_ = nullptr;
    wire::HostDirectory* host_directory_ = nullptr;
    wire::GuestWords* guest_ = nullptr;
    wire::HostWords* host_ = nullptr;
    wire::ReplyPage* replies_ = nullptr;
    std::atomic<bool> has_words_{false};  ///< layout_ and the pointers above are there.
    wire::RingConsumer consumer_;
    std::thread thread_;
    std::atomic<bool> stop_{false};
    std::atomic<bool> held_{false};
    std::atomic_flag seen_lock_ = ATOMIC_FLAG_INIT;
    std::vector<Seen> seen_;
};

}  // namespace gantry::test
