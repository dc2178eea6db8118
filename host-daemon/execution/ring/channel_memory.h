// ChannelMemory: one guest process's channel of a region, mapped into this worker.
//
// Invariant: every pointer it gives lies inside the mapping, whatever the guest writes: the layout
// is computed from numbers that the host chose or that were read once and checked. The pinned pool
// is mapped a second time at wire::kPinnedBase, the address that the guest's pointers into it
// carry.
//
// Owner: the Session of this worker. Threads: immutable after map(); the words it points to follow
// proto/wire/region.h. Failure: a Result with reason `region.*`; nothing stays mapped then.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "proto/base/result.h"
#include "proto/control/unique_fd.h"
#include "proto/wire/region.h"
#include "proto/wire/ring.h"
#include "proto/wire/wait.h"

namespace gantry::worker {

class ChannelMemory {
public:
    struct Where {
        std::uint64_t file_offset = 0;  ///< Of the region in its file, a page multiple.
        std::uint64_t region_bytes = 0;
        std::uint32_t channel_count = 1;
        std::uint32_t channel_index = 0;
        wire::Sleep sleep = wire::Sleep::kFutex;
    };

    /// Creates the memory of a region for one process: a memfd that cannot be resized any more, so
    /// that neither side can make the other fault by truncating it.
    static Result<control::UniqueFd> create_region(std::uint64_t region_bytes);

    static Result<std::unique_ptr<ChannelMemory>> map(control::UniqueFd file, const Where& where);
    ~ChannelMemory();
    ChannelMemory(const ChannelMemory&) = delete;
    ChannelMemory& operator=(const ChannelMemory&) = delete;

    [[nodiscard]] const wire::ChannelLayout& layout() const { return layout_; }
    [[nodiscard]] const Where& where() const { return where_; }
    [[nodiscard]] int file() const { return file_.get(); }
    [[nodiscard]] wire::Sleep sleep() const { return where_.sleep; }

    [[nodiscard]] wire::GuestDirectory& guest_directory() const {
        return at<wire::GuestDirectory>(0);
    }
    [[nodiscard]] wire::HostDirectory& host_directory() const {
        return at<wire::HostDirectory>(wire::kPageBytes);
    }
    [[nodiscard]] wire::GuestWords& guest_words() const {
        return at<wire::GuestWords>(layout_.guest_words);
    }
    [[nodiscard]] wire::HostWords& host_words() const {
        return at<wire::HostWords>(layout_.host_words);
    }
    [[nodiscard]] wire::ReplyPage& reply(std::uint32_t lane) const {
        return at<wire::ReplyPage>(layout_.replies + std::uint64_t{lane} * wire::kPageBytes);
    }
    /// Asks for the line of a lane's page in which an answer begins, for writing: the guest is
    /// looking at it, and it comes while the command is executed. A round trip between two cores
    /// of one socket took 0.155 us with this and 0.19 us without (tests/bench/launch_loop.cu).
    void own_reply(std::uint32_t lane) const {
        asm volatile("prefetchw %0" : : "m"(reply(lane).seq));
    }
    [[nodiscard]] const std::byte* ring() const { return base_ + layout_.ring; }
    /// Has the program of that generation sent a command? Each lap of the ring has a record where
    /// it begins.
    [[nodiscard]] bool has_begun(std::uint64_t generation) const {
        const std::uint64_t published =
            at<wire::CommandHeader>(layout_.ring).publish.load(std::memory_order_acquire);
        return published != 0 && (published - 1) >> wire::kGenerationShift == generation;
    }
    /// For a region that begins its life with commands in it (mirror_state.h).
    [[nodiscard]] std::byte* writable_ring() const { return base_ + layout_.ring; }
    /// An extent of the bulk area; empty when it does not lie inside.
    [[nodiscard]] std::span<std::byte> bulk(std::uint64_t offset, std::uint64_t bytes) const {
        if (offset > layout_.bulk_bytes || bytes > layout_.bulk_bytes - offset) {
            return {};
        }
        return {base_ + layout_.bulk + offset, bytes};
    }
    /// The pinned pool at its shared address.
    [[nodiscard]] std::span<std::byte> pinned() const {
        return {reinterpret_cast<std::byte*>(wire::kPinnedBase), layout_.pinned_bytes};
    }
    [[nodiscard]] bool pinned_contains(std::uint64_t address, std::uint64_t bytes) const {
        return address >= wire::kPinnedBase &&
               address - wire::kPinnedBase <= layout_.pinned_bytes &&
               bytes <= layout_.pinned_bytes - (address - wire::kPinnedBase);
    }

private:
    ChannelMemory(control::UniqueFd file, const Where& where, const wire::ChannelLayout& layout)
        : file_(std::move(file)), where_(where), layout_(layout) {}
    Result<void> map_parts();

    template <typename T>
    [[nodiscard]] T& at(std::uint64_t offset) const {
        return *reinterpret_cast<T*>(base_ + offset);
    }

    control::UniqueFd file_;
    Where where_;
    wire::ChannelLayout layout_;
    std::byte* base_ = nullptr;
    bool pinned_mapped_ = false;
};

}  // namespace gantry::worker
