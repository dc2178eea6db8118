// Levenshtein's distance: the fewest characters to insert, delete or replace that make one text of
// another. For naming what a misspelt word may have meant.
//
// libc only (the shim includes it), no allocation. Cost: the product of both lengths.
#pragma once

#include <cstddef>

namespace gantry {

inline constexpr std::size_t kEditDistanceBytesMax = 64;

/// Compares the first kEditDistanceBytesMax characters of each.
inline std::size_t edit_distance(const char* a, std::size_t a_size, const char* b,
                                 std::size_t b_size) {
    a_size = a_size < kEditDistanceBytesMax ? a_size : kEditDistanceBytesMax;
    b_size = b_size < kEditDistanceBytesMax ? b_size : kEditDistanceBytesMax;
    std::size_t row[kEditDistanceBytesMax + 1];
    for (std::size_t j = 0; j <= b_size; ++j) {
        row[j] = j;
    }
    for (std::size_t i = 1; i <= a_size; ++i) {
        std::size_t diagonal = row[0];
        row[0] = i;
        for (std::size_t j = 1; j <= b_size; ++j) {
            const std::size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
            diagonal = row[j];
            const std::size_t other = (row[j] < row[j - 1] ? row[j] : row[j - 1]) + 1;
            row[j] = replaced < other ? replaced : other;
        }
    }
    return row[b_size];
}

}  // namespace gantry
