// Texture and surface objects by handle: what kernels look up, and what a snapshot restores.
//
// A handle is a small number, as on hardware: textures and surfaces share one count from 1; the
// lowest free number is used. An object may be made at a wanted number (extension).
// Threads: the engine looks up without a lock (slots are published atomically); creation and
// destruction lock. A destroyed object's description is kept until its slot is used again and no
// instruction that looked it up still runs. What it describes may be gone: the engine looks every
// texel's address up.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "host-daemon/softgpu/engine/texture.h"
#include "host-daemon/softgpu/memory/array.h"
#include "proto/cuda/abi.h"

namespace gantry::softgpu {

class TextureTable final : public TextureUnit {
public:
    static TextureTable& instance();

    struct Entry {
        bool is_surface = false;
        TextureDescription texture;
        SurfaceDescription surface;
        CUDA_RESOURCE_DESC resource{};
        CUDA_TEXTURE_DESC description{};
        CUDA_RESOURCE_VIEW_DESC view{};
        bool has_view = false;
        std::shared_ptr<Object> keeps;  ///< The array behind it.
        void* context = nullptr;
    };

    /// Adds an entry; `wanted` 0 means any number. 0 when the number is taken.
    std::uint64_t add(std::shared_ptr<const Entry> entry, std::uint64_t wanted);
    bool remove(std::uint64_t handle, bool is_surface);
    std::shared_ptr<const Entry> find(std::uint64_t handle, bool is_surface) const;

    [[nodiscard]] const TextureDescription* texture(std::uint64_t handle) const override;
    [[nodiscard]] const SurfaceDescription* surface(std::uint64_t handle) const override;

private:
    static constexpr std::size_t kSlots = std::size_t{1} << 20;
    TextureTable() : slots_(new std::atomic<const Entry*>[kSlots]()), owners_(1) {}
    /// `old` is what the number stood for before, for a kernel may still read it.
    std::uint64_t put(std::shared_ptr<const Entry> entry, std::uint64_t wanted,
                      std::shared_ptr<const Entry>& old);
    const Entry* live(std::uint64_t handle) const {
        return handle < kSlots ? slots_[handle].load(std::memory_order_acquire) : nullptr;
    }

    std::unique_ptr<std::atomic<const Entry*>[]> slots_;
    mutable std::mutex mutex_;
    std::vector<std::shared_ptr<const Entry>> owners_;  ///< By number; kept after removal.
    std::uint64_t lowest_free_ = 1;
};

}  // namespace gantry::softgpu
