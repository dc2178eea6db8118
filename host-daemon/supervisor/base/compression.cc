#include "host-daemon/supervisor/base/compression.h"

#include <lz4.h>

#include <algorithm>
#include <chrono>

namespace gantry::supervisor {
namespace {

constexpr std::uint64_t kSampleInterval = 16;
/// LZ4 unpacks several times faster than it packs; the exact factor never decides.
constexpr double kUnpackFactor = 4.0;
/// Weight of the newest sample.
constexpr double kSampleWeight = 0.25;

}  // namespace

bool CompressionChooser::wanted() {
    if (mode_ != "auto") {
        return mode_ == "on";
    }
    return batches_ % kSampleInterval == 0 || engine::compression_pays(inputs_);
}

bool CompressionChooser::pack(const std::string& raw, std::string* out) {
    const bool do_pack = !raw.empty() && wanted();
    ++batches_;
    if (!do_pack) {
        return false;
    }
    out->resize(static_cast<std::size_t>(LZ4_compressBound(static_cast<int>(raw.size()))));
    const auto begun = std::chrono::steady_clock::now();
    const int packed = LZ4_compress_default(raw.data(), out->data(), static_cast<int>(raw.size()),
                                            static_cast<int>(out->size()));
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begun;
    if (packed <= 0) {
        return false;
    }
    out->resize(static_cast<std::size_t>(packed));
    const double size = static_cast<double>(raw.size());
    const double rate = size / std::max(took.count(), 1e-9);
    const double ratio = static_cast<double>(packed) / size;
    const bool first = inputs_.compress_bytes_per_second == 0.0;
    const double weight = first ? 1.0 : kSampleWeight;
    inputs_.compress_bytes_per_second += weight * (rate - inputs_.compress_bytes_per_second);
    inputs_.decompress_bytes_per_second = kUnpackFactor * inputs_.compress_bytes_per_second;
    inputs_.ratio += weight * (ratio - inputs_.ratio);
    return packed < static_cast<int>(raw.size());
}

}  // namespace gantry::supervisor
