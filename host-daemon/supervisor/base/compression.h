// Whether to send batches as LZ4: by order, or when the measured link is slower than the codec.
//
// One thread at a time. In "auto" every 16th batch is compressed as a sample even while compression
// is off, so that the choice can change with the content.
#pragma once

#include <cstdint>
#include <string>

#include "migration/engine/transfer.h"

namespace gantry::supervisor {

class CompressionChooser {
public:
    /// "auto", "on" or "off".
    explicit CompressionChooser(std::string mode) : mode_(std::move(mode)) {}

    /// Link rate as seen so far, bytes per second; 0: not known.
    void note_link(double bytes_per_second) { inputs_.link_bytes_per_second = bytes_per_second; }
    /// Packs `raw` into `out` when that is to be done; false: send it as it is.
    bool pack(const std::string& raw, std::string* out);

private:
    bool wanted();

    std::string mode_;
    engine::CompressionInputs inputs_;
    std::uint64_t batches_ = 0;
};

}  // namespace gantry::supervisor
