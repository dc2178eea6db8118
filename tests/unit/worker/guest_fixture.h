// A guest on a real ring and the inside of a worker on the soft GPU's driver, for tests.
//
// A test that makes a Host runs in a child process of its own (in_child), since a worker holds
// fixed addresses.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <thread>
#include <type_traits>

#include "host-daemon/execution/dispatch/execution.h"
#include "proto/cuda/gen/opcodes.h"
#include "proto/cuda/gen/wire_structs.h"
#include "proto/wire/ring.h"

namespace gantry::worker {

using namespace std::chrono_literals;
using cuda::HandleKind;
using cuda::Op;
using wire::ControlOp;
namespace payload = cuda::wire;
namespace hand = cuda::wire_hand;

inline constexpr std::uint64_t kRegionBytes = 64ull << 20;
inline constexpr std::uint64_t kQuotaBytes = 256ull << 20;
inline constexpr std::uint32_t kSpinUs = 20;
inline constexpr std::uint32_t kLane = 2;
inline const std::uint64_t kContext = cuda::primary_context_handle(0);
inline const std::uint64_t kModule = cuda::make_handle(HandleKind::kModule, 1ull << 24);
inline const std::uint64_t kKernel = cuda::make_handle(HandleKind::kFunction, 1ull << 24);
inline const std::uint64_t kStream = cuda::make_handle(HandleKind::kStream, 1ull << 24);
inline const std::uint64_t kEvent = cuda::make_handle(HandleKind::kEvent, 1ull << 24);

inline constexpr char kPtx[] = R"(.version 8.0
.target sm_75
.address_size 64
.visible .global .align 4 .u32 total;
.visible .entry add_to(.param .u64 data, .param .u32 value)
{
    .reg .b32 %r<8>;
    .reg .b64 %d<8>;
    ld.param.u64 %d1, [data];
    ld.param.u32 %r1, [value];
    mov.u32 %r2, %tid.x;
    mul.wide.u32 %d2, %r2, 4;
    add.s64 %d3, %d1, %d2;
    ld.global.u32 %r3, [%d3];
    add.u32 %r4, %r3, %r1;
    st.global.u32 [%d3], %r4;
    mov.u64 %d4, total;
    atom.global.add.u32 %r5, [%d4], %r1;
    ret;
}
)";

/// A launch of one thread, of a kernel without parameters.
inline hand::LaunchCall one_thread(std::uint64_t kernel, std::uint64_t stream) {
    hand::LaunchCall launch{};
    launch.kernel = kernel;
    launch.stream = stream;
    for (int i = 0; i < 3; ++i) {
        launch.grid[i] = launch.block[i] = 1;
    }
    return launch;
}

/// The word holds `value` within ten seconds.
template <typename Word>
bool reaches(const std::atomic<Word>& word, std::type_identity_t<Word> value) {
    for (int i = 0; i < 20'000 && word.load() != value; ++i) {
        std::this_thread::sleep_for(500us);
    }
    return word.load() == value;
}

/// The guest's side: sends commands on one lane and waits for their answers.
class Guest {
public:
    explicit Guest(ChannelMemory& memory, std::uint64_t tail) : memory_(memory) {
        ring_.attach(const_cast<std::byte*>(memory.ring()), memory.layout().ring_bytes,
                     &memory.host_words().head, tail);
    }
    struct Reply {
        std::uint32_t status = ~0u;
        std::vector<std::byte> payload;
        std::uint64_t bulk_bytes = 0;
        template <typename T>
        T as() const {
            T value{};
            if (!payload.empty()) {
                std::memcpy(&value, payload.data(), std::min(sizeof(T), payload.size()));
            }
            return value;
        }
    };
    std::uint32_t next_flags = 0;  ///< CommandFlag bits for the next command.
    std::uint64_t post(std::uint16_t op, std::span<const std::byte> args,
                       std::span<const std::byte> trailing, bool wants_reply = false) {
        wire::RingRecord record;
        while (!ring_.try_reserve(op, lane_, static_cast<std::uint32_t>(args.size()),
                                  static_cast<std::uint32_t>(trailing.size()), &record)) {
            std::this_thread::yield();
        }
        record.header->context = kContext;
        record.header->flags = next_flags | (wants_reply ? wire::kCommandWantsReply : 0u);
        next_flags = 0;
        record.header->bulk_page = 64;
        record.header->bulk_pages = 16;
        if (!args.empty()) {  // No bytes may have no address.
            std::memcpy(record.args(), args.data(), args.size());
        }
        if (!trailing.empty()) {
            std::memcpy(record.trailing(), trailing.data(), trailing.size());
        }
        record.publish();
        memory_.guest_words().doorbell.fetch_add(1);
        wire::futex_wake_all(&memory_.guest_words().doorbell);
        return record.position;
    }
    Reply wait(std::uint64_t position) {
        wire::ReplyPage& page = memory_.reply(lane_);
        Reply reply;
        if (reaches(page.seq, position + 1)) {
            reply.status = page.status;
            reply.payload.assign(page.payload, page.payload + page.payload_bytes);
            reply.bulk_bytes = page.bulk_bytes;
        }
        return reply;
    }
    template <typename T>
    Reply call(Op op, const T& args, std::span<const std::byte> trailing = {}) {
        const auto bytes = std::as_bytes(std::span(&args, 1)).first(payload::kWireBytes<T>);
        return wait(post(static_cast<std::uint16_t>(op), bytes, trailing, true));
    }
    template <typename T>
    Reply control(ControlOp op, const T& args) {
        return wait(
            post(static_cast<std::uint16_t>(op), std::as_bytes(std::span(&args, 1)), {}, true));
    }
    /// Without an answer; where the record lies.
    template <typename AnyOp, typename T>
    std::uint64_t send(AnyOp op, const T& args, std::span<const std::byte> trailing = {}) {
        return post(static_cast<std::uint16_t>(op), std::as_bytes(std::span(&args, 1)), trailing);
    }
    void write(std::uint64_t address, std::span<const std::byte> bytes) {
        send(ControlOp::kWriteDevice, wire::WriteDeviceCall{address, bytes.size(), 0}, bytes);
    }
    std::vector<std::uint32_t> read(std::uint64_t address, std::size_t words) {
        const wire::ReadDeviceCall args{address, words * 4, 0, 0};
        const Reply reply = control(ControlOp::kReadDevice, args);
        std::vector<std::uint32_t> values(words);
        if (reply.status == 0 && reply.bulk_bytes == words * 4) {
            std::memcpy(values.data(), memory_.bulk(0, words * 4).data(), words * 4);
        }
        return values;
    }
    std::uint64_t allocate(std::uint64_t bytes) {
        return call(Op::cuMemAlloc_v2, payload::cuMemAlloc_v2_call{bytes})
            .as<payload::cuMemAlloc_v2_reply>()
            .dptr;
    }
    /// Sends `text` from `begin` to `end` as image `image_id`.
    void stage_piece(std::uint64_t image_id, std::size_t begin, std::size_t end,
                     std::span<const char> text = kPtx) {
        const wire::StageImageCall stage{image_id, text.size(), begin};
        send(ControlOp::kStageImage, stage, std::as_bytes(text).subspan(begin, end - begin));
    }
    /// Loads a PTX text, staged as image `image_id`.
    std::uint32_t load(std::uint64_t handle, std::uint64_t image_id,
                       std::size_t bytes = sizeof(kPtx)) {
        hand::LoadCall load{};
        load.handle = handle;
        load.image_id = image_id;
        load.image_bytes = bytes;
        load.part_count = 1;
        const hand::ImagePart part{0, bytes, hand::ImageKind::kPtx, 0};
        return call(Op::cuModuleLoadDataEx, load, std::as_bytes(std::span(&part, 1))).status;
    }
    void load_module() {
        stage_piece(1, 0, sizeof(kPtx));
        EXPECT_EQ(load(kModule, 1), 0u);
        const std::string name = "add_to";
        const auto reply = call(Op::cuModuleGetFunction, hand::NameCall{kModule, kKernel},
                                std::as_bytes(std::span(name)));
        EXPECT_EQ(reply.status, 0u);
        EXPECT_EQ(reply.as<hand::KernelReply>().param_bytes, 12u);
        EXPECT_EQ(reply.as<hand::KernelReply>().layout_known, 1u);
    }
    void add(std::uint64_t data, std::uint32_t value, std::uint64_t stream) {
        hand::LaunchCall launch = one_thread(kKernel, stream);
        launch.block[0] = 64;
        launch.param_bytes = 12;
        std::byte params[12];
        std::memcpy(params, &data, 8);
        std::memcpy(params + 8, &value, 4);
        send(Op::cuLaunchKernel, launch, params);
    }
    std::uint32_t synchronise(std::uint64_t stream) {
        return call(Op::cuStreamSynchronize, payload::cuStreamSynchronize_call{stream}).status;
    }
    std::uint64_t total_address() {
        const std::string name = "total";
        return call(Op::cuModuleGetGlobal_v2, hand::NameCall{kModule, 0},
                    std::as_bytes(std::span(name)))
            .as<hand::GlobalReply>()
            .address;
    }
    /// As another thread of the guest.
    void use_lane(std::uint16_t lane) { lane_ = lane; }
    [[nodiscard]] std::uint64_t tail() const { return ring_.tail(); }
    void retain() {
        EXPECT_EQ(call(Op::cuDevicePrimaryCtxRetain, hand::ContextCall{kContext, 0, 0}).status, 0u);
    }

private:
    ChannelMemory& memory_;
    wire::RingProducer ring_;
    std::uint16_t lane_ = kLane;
};

/// A worker's inside, in this process.
struct Host {
    using WaitHere = ProcessOptions::WaitHere;
    explicit Host(std::uint64_t quota = kQuotaBytes, std::uint32_t spin_us = kSpinUs,
                  WaitHere wait_here = WaitHere::kWithProcessorsToSpare) {
        auto loaded = driver::DriverLibrary::load(GANTRY_TEST_SOFT_DRIVER);
        GANTRY_ASSERT(loaded.ok(), "%s", loaded.error().text.c_str());
        library = std::move(loaded).value();
        device = std::move(Device::open(*library, 0)).value();
        ProcessOptions options;
        options.spin_us = spin_us;
        options.wait_here = wait_here;
        if (wait_here == WaitHere::kAlways) {
            // On a busy machine the soft GPU has no processor for as long as the loop looks.
            options.word_patience = std::chrono::milliseconds(500);
        }
        options.always_prepares_launches = true;
        options.limits.device_memory_bytes = quota;
        options.baseline.memory_bytes = quota;
        const auto facts = device->facts(options.baseline).value();
        execution = std::make_unique<Execution>(*device, output, options);
        process = &execution->process();
        process->facts = facts;
        output.attach(device->extension());
    }
    std::unique_ptr<driver::DriverLibrary> library;
    std::unique_ptr<Device> device;
    OutputCapture output;
    std::unique_ptr<Execution> execution;
    GuestProcess* process = nullptr;
};

inline std::unique_ptr<ChannelMemory> map_region(int fd) {
    return ChannelMemory::map(control::UniqueFd(dup(fd)), {0, kRegionBytes}).value();
}

/// As in a virtual machine: its memory moves by a hypervisor that does not see the host's writes.
inline std::unique_ptr<ChannelMemory> map_guest_memory(int fd) {
    ChannelMemory::Where where{0, kRegionBytes};
    where.sleep = wire::Sleep::kPoll;
    return ChannelMemory::map(control::UniqueFd(dup(fd)), where).value();
}

/// A worker that serves a guest from its beginning.
struct Serving {
    explicit Serving(std::uint64_t quota = kQuotaBytes, std::uint32_t spin_us = kSpinUs,
                     Host::WaitHere wait_here = Host::WaitHere::kWithProcessorsToSpare)
        : Serving(map_region(ChannelMemory::create_region(kRegionBytes)->get()), quota, spin_us,
                  wait_here) {}
    explicit Serving(std::unique_ptr<ChannelMemory> memory, std::uint64_t quota = kQuotaBytes,
                     std::uint32_t spin_us = kSpinUs,
                     Host::WaitHere wait_here = Host::WaitHere::kWithProcessorsToSpare)
        : host(quota, spin_us, wait_here),
          channel(serve(std::move(memory))),
          guest(channel, 1ull << wire::kGenerationShift) {}

    Host host;
    ChannelMemory& channel;
    Guest guest;

private:
    ChannelMemory& serve(std::unique_ptr<ChannelMemory> memory) {
        EXPECT_TRUE(host.execution->serve(std::move(memory), 1).ok());
        return *host.process->channel.memory();
    }
};

/// Runs `body` in a child; true when it had no failure.
template <typename Body>
bool in_child(Body body) {
    std::fflush(nullptr);  // Else the child would print what this process has not written yet.
    const pid_t pid = fork();
    if (pid == 0) {
        body();
        std::fflush(nullptr);
        _exit(testing::Test::HasFailure() ? 1 : 0);
    }
    int status = 0;
    waitpid(pid, &status, 0);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace gantry::worker
