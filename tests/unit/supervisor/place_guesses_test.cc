// What is copied to guessed places, by several threads, and what is left of it in the end.
#include "host-daemon/supervisor/base/place_guesses.h"

#include <gtest/gtest.h>

#include <atomic>
#include <deque>
#include <random>
#include <thread>
#include <vector>

#include "host-daemon/supervisor/parts/ordered_section.h"

namespace gantry::supervisor {
namespace {

constexpr std::size_t kFirst = 3;

/// A file of words, one for each stored block of a batch; as PartSaver fills it.
class Filling {
public:
    /// `elided_percent`: of the blocks that may be stored.
    Filling(std::uint32_t seed, std::uint32_t elided_percent) {
        std::mt19937 random(seed);
        std::vector<std::uint64_t> most;
        std::uint32_t word = 1;
        for (std::size_t i = 0; i < 300; ++i) {
            Batch& batch = batches_.emplace_back();
            for (std::size_t blocks = random() % 5; blocks != 0; --blocks) {
                const bool is_stored = random() % 100 >= elided_percent;
                batch.may_be.push_back(word);
                if (is_stored) {
                    batch.stored.push_back(word);
                    wanted_.push_back(word);
                }
                ++word;
            }
            batch.pause = random() % 4 == 0;
            most.push_back(batch.may_be.size());
        }
        file_.resize(kFirst + word);
        wanted_.insert(wanted_.begin(), kFirst, 0);
        next_ = kFirst;
        guesses_.emplace(kFirst, most);
    }

    void run() {
        const auto save = [&](std::size_t i, const auto& in_turn) -> Result<void> {
            const Batch& batch = batches_[i];
            const auto guess = guesses_->guess(i);
            if (guess) {
                EXPECT_EQ(guess->bytes, batch.may_be.size());
                guesses_->used(*guess);
                copy(batch.may_be, guess->place);
            }
            if (batch.pause) {
                std::this_thread::yield();
            }
            std::size_t place = 0;
            GANTRY_TRY(in_turn([&]() -> Result<void> {
                place = next_;
                next_ += batch.stored.size();
                guesses_->placed(i, next_);
                return {};
            }));
            if (guess && guess->place == place && batch.stored == batch.may_be) {
                ++guessed_;
            } else {
                copy(batch.stored, place);
            }
            return {};
        };
        ASSERT_TRUE(OrderedSection().run(4, batches_.size(), save).ok());
        for (std::size_t at = next_; at < guesses_->used_end(); ++at) {
            file_[at] = 0;
        }
        wanted_.resize(file_.size());
        EXPECT_EQ(std::vector<std::uint32_t>(file_.begin(), file_.end()), wanted_);
    }
    [[nodiscard]] std::size_t guessed() const { return guessed_; }
    [[nodiscard]] std::size_t size() const { return batches_.size(); }

private:
    struct Batch {
        std::vector<std::uint32_t> may_be;
        std::vector<std::uint32_t> stored;
        bool pause = false;
    };

    void copy(const std::vector<std::uint32_t>& words, std::size_t place) {
        for (const std::uint32_t word : words) {
            file_.at(place++) = word;
        }
    }

    std::vector<Batch> batches_;
    std::vector<std::uint32_t> wanted_;
    std::deque<std::atomic<std::uint32_t>> file_;  ///< Wrong guesses may meet, never what counts.
    std::size_t next_ = 0;                         ///< Changed in turn.
    std::optional<PlaceGuesses> guesses_;
    std::atomic<std::size_t> guessed_{0};
};

TEST(PlaceGuesses, AllAreRightWhereAllIsStored) {
    Filling filling(1, 0);
    filling.run();
    EXPECT_EQ(filling.guessed(), filling.size());
}

TEST(PlaceGuesses, WrongOnesDamageNothingAndLeaveNothing) {
    for (std::uint32_t seed = 0; seed < 60; ++seed) {
        for (const std::uint32_t percent : {1U, 10U, 60U, 100U}) {
            Filling filling(seed, percent);
            filling.run();
            ASSERT_FALSE(::testing::Test::HasFailure()) << "seed " << seed << ", " << percent;
        }
    }
}

TEST(PlaceGuesses, NoneIsGivenBehindAWrongOne) {
    PlaceGuesses guesses(0, std::vector<std::uint64_t>(20, 2));
    for (const std::size_t batch : {0U, 2U, 1U}) {
        const auto guess = guesses.guess(batch);
        ASSERT_TRUE(guess);
        EXPECT_EQ(guess->place, 2 * batch);
    }
    guesses.placed(0, 1);
    EXPECT_FALSE(guesses.guess(3)) << "2 is still being copied where 3 might lie";
    std::size_t batch = 1;
    for (; batch < 20 && !guesses.guess(batch + 2); ++batch) {
        guesses.placed(batch, 1 + 2 * batch);
    }
    EXPECT_LT(batch, 17U) << "guessed again when it has long been right";
    EXPECT_GT(batch, 3U);
}

}  // namespace
}  // namespace gantry::supervisor
