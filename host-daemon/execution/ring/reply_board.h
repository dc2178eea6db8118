// ReplyBoard: publishes answers into the lanes' reply pages and keeps each lane's last answer.
//
// Invariant: a lane's page shows an answer only after everything the answer speaks of (payload,
// bulk bytes) was written; `seq` is stored last, with release. The log holds the last answer of
// every lane until its next one, because that next command is the guest's acknowledgement; a target
// publishes the whole log again, so that an answer whose bytes the hypervisor did not carry is not
// lost.
//
// Threads: publish() from anywhere. A guest may answer a page with its lane's next command before
// the log has the answer, and that command's answer may then be there first: the log takes an
// answer only in place of an earlier one. A hostile guest that sends several commands on a lane
// without waiting spoils its own page only. log(), load() and republish() only while nobody
// publishes. Cost: one copy of the payload into the page and, when the guest has it, one into the
// log, one locked instruction, one fence, and a wake-up call only if the guest says that it sleeps.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "host-daemon/execution/ring/channel_memory.h"

namespace gantry::worker {

/// All of an answer but its bytes.
struct AnswerHead {
    std::uint64_t position = 0;  ///< Of the command answered.
    std::uint32_t lane = 0;
    std::uint32_t status = 0;  ///< CUresult.
    std::uint32_t flags = 0;   ///< wire::ReplyFlag bits.
    std::uint64_t bulk_offset = 0;
    std::uint64_t bulk_bytes = 0;
    float device_wait_ns = 0;
};

struct Answer : AnswerHead {
    std::vector<std::byte> payload;
    std::vector<std::byte> bulk;  ///< Only in a log taken by log(): the extent's bytes.
};

class ReplyBoard {
public:
    ReplyBoard() : last_(wire::kLaneCount) {}

    void attach(ChannelMemory* memory) { memory_ = memory; }

    /// The payload is cut to what a page holds; callers have checked that it fits.
    void publish(const AnswerHead& answer, std::span<const std::byte> payload);
    /// Answers a kConfirm: only the lane's word in HostWords.
    void confirm(std::uint32_t lane, std::uint64_t position);

    /// The last answer of every lane that has one, oldest first, with the bytes of its extent.
    [[nodiscard]] std::vector<Answer> log() const;
    [[nodiscard]] std::vector<std::uint64_t> confirmed() const;
    /// Restores a log taken by log(); entries with impossible numbers are refused.
    Result<void> load(std::span<const Answer> answers, std::span<const std::uint64_t> confirmed);
    /// Writes the whole log and all confirm words into the region again, oldest first.
    void republish();

private:
    const std::atomic<std::uint64_t>& write_page(const AnswerHead& answer,
                                                 std::span<const std::byte> payload);
    void wake(std::uint32_t lane, const std::atomic<std::uint64_t>& word);

    ChannelMemory* memory_ = nullptr;
    std::vector<Answer> last_;                    ///< By lane; position 0 and no seq: none yet.
    std::array<bool, wire::kLaneCount> valid_{};  ///< Bytes: lanes publish beside each other.
    std::array<std::atomic_flag, wire::kLaneCount> publishing_{};  ///< Held for a lane's log.
    std::uint64_t confirmed_[wire::kLaneCount] = {};
};

/// Wakes whoever sleeps on the low half of a 64-bit word.
inline void wake_word(const std::atomic<std::uint64_t>& word) {
    wire::futex_wake_all(reinterpret_cast<const std::atomic<std::uint32_t>*>(&word));
}

}  // namespace gantry::worker
