// PlaceGuesses: where a batch of blocks will lie in a file, guessed before it is known how much of
// those in front of it is stored: all that may be. Its bytes can be copied there while they are
// fingerprinted, in one go; where the guess was wrong they are copied again.
//
// Invariant: no guess is given while one that may be wrong is in use, so that no two in use
// overlap. A right guess lies behind all batches in front of it. What is copied to a wrong one lies
// behind them, too, and is either overwritten by what comes there or left behind the end of all,
// below used_end(). OrderedSection (ordered_section.h) gives the batches their order.
// Threads: guess() and used() any; placed() one at a time. Cost: a mutex.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <numeric>
#include <optional>
#include <span>
#include <vector>

namespace gantry::supervisor {

class PlaceGuesses {
public:
    /// `stored_max`: bytes of each batch.
    PlaceGuesses(std::uint64_t first_place, std::span<const std::uint64_t> stored_max)
        : next_(first_place), before_(stored_max.size() + 1) {
        std::partial_sum(stored_max.begin(), stored_max.end(), before_.begin() + 1);
    }

    struct Guess {
        std::uint64_t place = 0;
        std::uint64_t bytes = 0;  ///< All that may be stored of the batch.
    };
    /// For a batch whose turn has not come; nothing: it has to wait for that.
    std::optional<Guess> guess(std::size_t batch) {
        const std::lock_guard lock(mutex_);
        begun_ = std::max(begun_, batch + 1);
        if (placed_ < none_before_) {
            return std::nullopt;
        }
        return Guess{next_ + before_[batch] - before_[placed_], bytes_of(batch)};
    }
    /// The batch is about to be copied there.
    void used(const Guess& guess) {
        const std::lock_guard lock(mutex_);
        end_ = std::max(end_, guess.place + guess.bytes);
    }
    /// In the batch's turn: where the one behind it begins.
    void placed(std::size_t batch, std::uint64_t next) {
        const std::lock_guard lock(mutex_);
        if (next != next_ + bytes_of(batch)) {
            none_before_ = begun_ + kNoGuesses;
        }
        placed_ = batch + 1;
        next_ = next;
    }
    [[nodiscard]] std::uint64_t used_end() const { return end_; }

private:
    [[nodiscard]] std::uint64_t bytes_of(std::size_t batch) const {
        return before_[batch + 1] - before_[batch];
    }

    /// Batches behind a wrong guess: another is likely, and costs a copy.
    static constexpr std::size_t kNoGuesses = 8;

    std::mutex mutex_;
    std::size_t begun_ = 0;  ///< Batches, as the next two.
    std::size_t placed_ = 0;
    std::size_t none_before_ = 0;  ///< No guess until so many are placed.
    std::uint64_t next_;           ///< Place of the first that is not placed.
    std::vector<std::uint64_t> before_;
    std::uint64_t end_ = 0;
};

}  // namespace gantry::supervisor
