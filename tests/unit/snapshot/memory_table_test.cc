// Long tables: what is wrong is found wherever it stands, however many entries come at a time.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <string>
#include <vector>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "proto/snapshot/memory_reader.h"

namespace gantry::snapshot {
namespace {

using layout::kEntryBytes;

constexpr std::uint64_t kPart = 7;
constexpr std::uint64_t kSectionAt = 4096;
constexpr std::size_t kEntries = 50'000;
constexpr std::size_t kPieces = 8;  ///< At whose ends something is wrong.

struct Entry {
    std::uint64_t part = kPart;
    std::uint64_t index = 0;
    StoredForm form = StoredForm::kBytes;
    Fingerprint fingerprint;
    std::uint64_t origin = 0;
};

void put(std::byte* at, const Entry& entry) {
    const auto word = [at](std::size_t offset, std::uint64_t value, std::size_t bytes) {
        std::memcpy(at + offset, &value, bytes);
    };
    word(0, entry.part, 8);
    word(8, entry.index, 8);
    word(20, static_cast<std::uint64_t>(entry.form), 4);
    word(24, entry.fingerprint.low, 8);
    word(32, entry.fingerprint.high, 8);
    if (entry.form == StoredForm::kCopyOf) {
        word(40, kPart, 8);
        word(48, entry.origin, 8);
    }
    word(60, entry.form == StoredForm::kBytes ? kBlockBytes : 0, 4);
}

/// Blocks 0, 2, 4 and so on; of each eight one is zero, and one copies a block far before it.
class Table {
public:
    Table() : entries_(kEntries) {
        for (std::size_t i = 0; i < kEntries; ++i) {
            entries_[i].index = 2 * i;
            entries_[i].fingerprint = {i * 77 + 1, i};
            if (i % 8 == 3) {
                entries_[i].form = StoredForm::kZero;
                entries_[i].fingerprint = key_.zero_block();
            } else if (i % 8 == 5 && i > kEntries / 3) {
                entries_[i].form = StoredForm::kCopyOf;
                const std::size_t origin = (i - kEntries / 3) / 8 * 8;
                entries_[i].origin = entries_[origin].index;
                entries_[i].fingerprint = entries_[origin].fingerprint;
            }
        }
    }

    Entry& operator[](std::size_t at) { return entries_[at]; }

    /// What is found to be wrong where so many entries come at a time.
    std::string problem(std::size_t at_a_time) const {
        std::vector<std::byte> bytes(kEntries * kEntryBytes);
        std::uint64_t stored = 0;
        for (std::size_t i = 0; i < kEntries; ++i) {
            put(&bytes[i * kEntryBytes], entries_[i]);
            stored += entries_[i].form == StoredForm::kBytes ? kBlockBytes : 0;
        }
        MemoryHead head;
        head.part = kPart;
        head.count = kEntries;
        head.table_checksum = XXH3_64bits_withSeed(bytes.data(), bytes.size(), kSectionAt);
        MemoryTable table(head, kSectionAt, key_, kEntries);
        for (std::size_t done = 0; done < kEntries; done += at_a_time) {
            const auto some = std::span(bytes).subspan(
                done * kEntryBytes, std::min(at_a_time, kEntries - done) * kEntryBytes);
            table.hash(some);
            table.parse(some);
        }
        const MemoryProblem problem = table.end(stored);
        if (problem.what == nullptr) {
            EXPECT_EQ(table.blocks().size(), kEntries);
            for (std::size_t i = 0; i < table.blocks().size(); i += 997) {
                EXPECT_EQ(table.blocks()[i].ref.index, entries_[i].index);
                EXPECT_EQ(table.blocks()[i].form, entries_[i].form);
                EXPECT_EQ(table.blocks()[i].fingerprint, entries_[i].fingerprint);
            }
        }
        EXPECT_FALSE(problem.is_damage);
        return problem.what == nullptr ? "" : problem.what;
    }

private:
    FingerprintKey key_{Seed{3, 4}};
    std::vector<Entry> entries_;
};

class LongTable : public ::testing::TestWithParam<std::size_t> {
protected:
    /// What is found where entry `at` was changed so.
    std::string problem_with(std::size_t at,
                             const std::function<void(Table&, std::size_t)>& change) {
        Table table;
        change(table, at);
        return table.problem(GetParam());
    }
};

std::vector<std::size_t> places() {
    std::vector<std::size_t> out = {8, kEntries - 8};
    for (std::size_t piece = 1; piece < kPieces; ++piece) {
        const std::size_t first = kEntries * piece / kPieces;
        out.insert(out.end(), {first - 1, first, first + 1});
    }
    return out;
}

TEST_P(LongTable, IsTakenAsItIs) { EXPECT_EQ(Table().problem(GetParam()), ""); }

TEST_P(LongTable, BlocksOutOfOrderAreFoundEverywhere) {
    for (const std::size_t at : places()) {
        EXPECT_EQ(problem_with(
                      at, [](Table& table, std::size_t i) { table[i].index = table[i - 1].index; }),
                  "blocks out of order")
            << at;
    }
}

TEST_P(LongTable, WhatOneBlockIsFoundWrongForIsToldEverywhere) {
    for (const std::size_t at : places()) {
        EXPECT_EQ(problem_with(at, [](Table& table, std::size_t i) { table[i].part = kPart + 1; }),
                  "a memory section with blocks of another part")
            << at;
        EXPECT_EQ(
            problem_with(at, [](Table& table,
                                std::size_t i) { table[i].form = static_cast<StoredForm>(9); }),
            "a block of unknown form")
            << at;
        EXPECT_EQ(problem_with(at,
                               [](Table& table, std::size_t i) {
                                   table[i].form = StoredForm::kZero;
                                   table[i].fingerprint = {1, 1};
                               }),
                  "a zero block does not match its fingerprint")
            << at;
    }
}

TEST_P(LongTable, CopiesOfWhatIsNotThereAreFoundEverywhere) {
    for (const std::size_t at : places()) {
        EXPECT_EQ(problem_with(at,
                               [](Table& table, std::size_t i) {
                                   table[i].form =
                                       StoredForm::kCopyOf;  // Of one that comes later, if at all.
                                   table[i].origin = table[i].index + 2;
                               }),
                  "a block copies one that is not there")
            << at;
    }
    const std::size_t copy = kEntries * 3 / 4 / 8 * 8 + 5;
    EXPECT_EQ(problem_with(copy, [](Table& table, std::size_t i) { ++table[i].origin; }),
              "a block copies one that is not there");
    EXPECT_EQ(problem_with(copy, [](Table& table, std::size_t i) { ++table[i].fingerprint.low; }),
              "a block copies one that is not there");
}

INSTANTIATE_TEST_SUITE_P(AtATime, LongTable,
                         ::testing::Values(std::size_t{1000}, std::size_t{32768}, kEntries));

}  // namespace
}  // namespace gantry::snapshot
