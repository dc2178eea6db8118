#include "host-daemon/execution/ring/reply_board.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <thread>

namespace gantry::worker {

void ReplyBoard::wake(std::uint32_t lane, const std::atomic<std::uint64_t>& word) {
    if (memory_->sleep() != wire::Sleep::kFutex) {
        return;
    }
    // The guest sets its flag, then looks at the word once more before it sleeps; the fence orders
    // our store of the word before our look at the flag.
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (memory_->guest_words().lane_waiting[lane].load(std::memory_order_relaxed) != 0) {
        wake_word(word);
    }
}

/// The word that whoever waits for the answer sleeps on.
const std::atomic<std::uint64_t>& ReplyBoard::write_page(const AnswerHead& answer,
                                                         std::span<const std::byte> payload) {
    wire::ReplyPage& page = memory_->reply(answer.lane);
    const std::size_t bytes = std::min(payload.size(), wire::kReplyInlineBytes);
    if (bytes != 0) {
        wire::copy_few(page.payload, payload.data(), bytes);
    }
    page.status = answer.status;
    page.flags = answer.flags;
    page.payload_bytes = static_cast<std::uint32_t>(bytes);
    page.device_wait_ns = answer.device_wait_ns;
    page.bulk_offset = answer.bulk_offset;
    page.bulk_bytes = answer.bulk_bytes;
    page.seq.store(answer.position + 1, std::memory_order_release);
    return page.seq;
}

void ReplyBoard::publish(const AnswerHead& answer, std::span<const std::byte> payload) {
    GANTRY_ASSERT(answer.lane < wire::kLaneCount, "lane %u", answer.lane);
    const std::atomic<std::uint64_t>& word = write_page(answer, payload);
    // The log is read at command boundaries only: a guest that looks at its page need not wait for
    // it. One that sleeps is woken when all is done, as it might take this thread's processor.
    std::atomic_flag& publishing = publishing_[answer.lane];
    while (publishing.test_and_set(std::memory_order_acquire)) {
        std::this_thread::yield();  // As long as it takes to copy an answer.
    }
    Answer& kept = last_[answer.lane];
    if (!valid_[answer.lane] || kept.position <= answer.position) {
        static_cast<AnswerHead&>(kept) = answer;
        kept.payload.assign(payload.begin(), payload.end());  // Keeps its capacity.
        valid_[answer.lane] = true;
    }
    publishing.clear(std::memory_order_release);
    wake(answer.lane, word);
}

void ReplyBoard::confirm(std::uint32_t lane, std::uint64_t position) {
    confirmed_[lane] = position + 1;
    auto& word = memory_->host_words().confirm_seq[lane];
    word.store(position + 1, std::memory_order_release);
    wake(lane, word);
}

std::vector<Answer> ReplyBoard::log() const {
    std::vector<Answer> answers;
    for (std::uint32_t lane = 0; lane < wire::kLaneCount; ++lane) {
        if (!valid_[lane]) {
            continue;
        }
        answers.push_back(last_[lane]);
        const auto extent = memory_->bulk(last_[lane].bulk_offset, last_[lane].bulk_bytes);
        answers.back().bulk.assign(extent.begin(), extent.end());
    }
    std::sort(answers.begin(), answers.end(),
              [](const Answer& a, const Answer& b) { return a.position < b.position; });
    return answers;
}

std::vector<std::uint64_t> ReplyBoard::confirmed() const {
    return {std::begin(confirmed_), std::end(confirmed_)};
}

Result<void> ReplyBoard::load(std::span<const Answer> answers,
                              std::span<const std::uint64_t> confirmed) {
    if (confirmed.size() > wire::kLaneCount) {
        return Error{Code::kInvalidArgument, "snapshot.lane",
                     fmt::format("{} confirm words, there are {} lanes", confirmed.size(),
                                 wire::kLaneCount)};
    }
    for (const Answer& answer : answers) {
        if (answer.lane >= wire::kLaneCount || answer.payload.size() > wire::kReplyInlineBytes ||
            (!answer.bulk.empty() && answer.bulk.size() != answer.bulk_bytes)) {
            return Error{Code::kInvalidArgument, "snapshot.answer",
                         fmt::format("the kept answer of lane {} is impossible", answer.lane)};
        }
    }
    for (const Answer& answer : answers) {
        last_[answer.lane] = answer;
        valid_[answer.lane] = true;
    }
    std::copy(confirmed.begin(), confirmed.end(), std::begin(confirmed_));
    return {};
}

void ReplyBoard::republish() {
    std::vector<std::uint32_t> order;
    for (std::uint32_t lane = 0; lane < wire::kLaneCount; ++lane) {
        if (valid_[lane]) {
            order.push_back(lane);
        }
    }
    // Extents are reused by the guest once it has read them: the newest answer must win.
    std::sort(order.begin(), order.end(), [this](std::uint32_t a, std::uint32_t b) {
        return last_[a].position < last_[b].position;
    });
    for (const std::uint32_t lane : order) {
        Answer& answer = last_[lane];
        const auto extent = memory_->bulk(answer.bulk_offset, answer.bulk.size());
        if (!answer.bulk.empty() && !extent.empty()) {
            std::memcpy(extent.data(), answer.bulk.data(), answer.bulk.size());
        }
        answer.bulk.clear();
        wake(lane, write_page(answer, answer.payload));
    }
    for (std::uint32_t lane = 0; lane < wire::kLaneCount; ++lane) {
        if (confirmed_[lane] != 0) {
            confirm(lane, confirmed_[lane] - 1);
        }
    }
}

}  // namespace gantry::worker
