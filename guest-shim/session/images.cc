// Images on their way to a module load.
#include "guest-shim/session/connection.h"

namespace gantry::session {

std::uint64_t new_image_id() noexcept { return g_connection.next_image.fetch_add(1); }

CUresult stage_image(std::uint64_t image_id, std::uint64_t total_bytes, std::uint64_t offset,
                     const void* source, std::uint64_t bytes) noexcept {
    const auto* from = static_cast<const std::byte*>(source);
    std::uint64_t limit = max_trailing(sizeof(wire::StageImageCall));
    limit = limit < kPieceBytes ? limit : kPieceBytes;
    do {
        const std::uint64_t piece = bytes < limit ? bytes : limit;
        const wire::StageImageCall arguments{image_id, total_bytes, offset};
        const CUresult result =
            post_control(wire::ControlOp::kStageImage, &arguments, sizeof(arguments), from,
                         static_cast<std::uint32_t>(piece));
        if (result != CUDA_SUCCESS) {
            return result;
        }
        from += piece;
        offset += piece;
        bytes -= piece;
    } while (bytes != 0);
    return CUDA_SUCCESS;
}

}  // namespace gantry::session
