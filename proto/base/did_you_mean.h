// What a misspelt word may have meant: a name a letter or two beside it, or one that it begins.
//
// Threads: none of its own. Cost: see edit_distance.h, for each candidate.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "proto/base/edit_distance.h"

namespace gantry {

/// "; did you mean 'NAME'?" of the nearest candidate; nothing where none is near.
inline std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates) {
    constexpr std::size_t kLettersWrongMax = 2;
    constexpr std::size_t kWrongOfFive = 2;  // Two letters of five, as in "wacth".
    constexpr std::size_t kBeginningMin = 3;
    const std::string* best = nullptr;
    std::size_t best_distance = kLettersWrongMax + 1;
    for (const std::string& one : candidates) {
        std::size_t distance = edit_distance(word.data(), word.size(), one.data(), one.size());
        if (word.size() >= kBeginningMin && one.starts_with(word)) {
            distance = 0;
        }
        if (distance < best_distance && 5 * distance <= kWrongOfFive * word.size()) {
            best = &one;
            best_distance = distance;
        }
    }
    return best == nullptr ? "" : "; did you mean '" + *best + "'?";
}

}  // namespace gantry
