#include "host-daemon/state/blocks/memory_image.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "host-daemon/state/blocks/arrays.h"
#include "host-daemon/state/blocks/block_ranges.h"

namespace gantry::state {

MemoryImage::MemoryImage(worker::GuestProcess& process) : process_(process) {
    const driver::DriverApi& api = process.device.api();
    process.device.bind_thread();
    if (api.cuStreamCreateWithPriority(&stream_, CU_STREAM_NON_BLOCKING, 0) != CUDA_SUCCESS) {
        stream_ = nullptr;
    }
    void* host = nullptr;
    page_locked_ = api.cuMemHostAlloc != nullptr &&
                   api.cuMemHostAlloc(&host, kBatchBlocks * kBlockBytes,
                                      CU_MEMHOSTALLOC_PORTABLE) == CUDA_SUCCESS;
    if (!page_locked_) {
        host = ::operator new (kBatchBlocks* kBlockBytes, std::align_val_t{4096});
    }
    buffer_ = static_cast<std::byte*>(host);
}

MemoryImage::~MemoryImage() {
    const driver::DriverApi& api = process_.device.api();
    process_.device.bind_thread();
    for (const std::span<std::byte> area : staging_) {
        api.cuMemHostUnregister(area.data());
    }
    if (stream_ != nullptr) {
        api.cuStreamDestroy_v2(stream_);
    }
    if (page_locked_) {
        api.cuMemFreeHost(buffer_);
    } else {
        ::operator delete (buffer_, std::align_val_t{4096});
    }
}

std::vector<BlockRange> MemoryImage::ranges() const {
    if (process_.is_broken()) {
        return {};  // Nobody can read it any more, nor does anyone need it.
    }
    std::map<std::uint64_t, std::uint64_t> device;  // First block -> end block.
    auto add = [&device](std::uint64_t address, std::uint64_t bytes) {
        const std::uint64_t first = address / kBlockBytes;
        const std::uint64_t end = (address + bytes + kBlockBytes - 1) / kBlockBytes;
        std::uint64_t& known = device[first];
        known = std::max(known, end);
    };
    if (!arena_is_shared_) {
        for (const worker::ExtentRecord& extent : process_.memory.device.extents()) {
            add(extent.address.value, extent.bytes);
        }
    }
    for (const worker::OutsideRange& range : process_.memory.device.outside_ranges()) {
        add(range.address, range.bytes);
    }
    std::vector<BlockRange> out;
    for (const auto& [first, end] : device) {
        if (!out.empty() && out.back().first + out.back().count >= first) {
            const std::uint64_t last = std::max(out.back().first + out.back().count, end);
            out.back().count = last - out.back().first;
        } else {
            out.push_back({MemorySpace::kDevice, first, end - first});
        }
    }
    const auto hold = process_.memory.device.hold_layout();
    for (const worker::ArrayShape& array : worker::list_arrays(process_)) {
        out.push_back({MemorySpace::kArray, array.order << 32,
                       (array.linear_bytes + kBlockBytes - 1) / kBlockBytes});
    }
    return out;
}

std::uint64_t MemoryImage::block_count() const {
    std::uint64_t count = 0;
    for (const BlockRange& range : ranges()) {
        count += range.count;
    }
    return count;
}

bool MemoryImage::contains(BlockAddress block) const {
    for (const BlockRange& range : ranges()) {
        if (range.space == block.space && block.index >= range.first &&
            block.index - range.first < range.count) {
            return true;
        }
    }
    return false;
}

std::vector<MemoryImage::Piece> MemoryImage::pieces_of(std::uint64_t address,
                                                       std::uint64_t bytes) const {
    std::vector<Piece> pieces;
    auto clip = [&](std::uint64_t start, std::uint64_t length, std::uint64_t lies_at) {
        const std::uint64_t from = std::max(start, address);
        const std::uint64_t to = std::min(start + length, address + bytes);
        if (from < to) {
            pieces.push_back({from, to - from, lies_at + (from - start)});
        }
    };
    for (const worker::ExtentRecord& extent : process_.memory.device.extents_in(address, bytes)) {
        clip(extent.address.value, extent.bytes, extent.address.value);
    }
    for (const worker::OutsideRange& range : process_.memory.device.outside_in(address, bytes)) {
        clip(range.address, range.bytes, range.lies_at);
    }
    return pieces;
}

std::uint64_t MemoryImage::bytes_of(std::span<const Piece> pieces) {
    std::uint64_t bytes = 0;
    for (const Piece& piece : pieces) {
        bytes += piece.bytes;
    }
    return bytes;
}

bool MemoryImage::add_staging(std::span<std::byte> area) {
    const driver::DriverApi& api = process_.device.api();
    process_.device.bind_thread();
    if (api.cuMemHostRegister_v2 == nullptr ||
        api.cuMemHostRegister_v2(area.data(), area.size(), CU_MEMHOSTREGISTER_PORTABLE) !=
            CUDA_SUCCESS) {
        return false;
    }
    staging_.push_back(area);
    return true;
}

void MemoryImage::remove_staging(std::span<std::byte> area) {
    const auto known = std::find_if(staging_.begin(), staging_.end(),
                                    [area](const auto& one) { return one.data() == area.data(); });
    if (known != staging_.end()) {
        process_.device.bind_thread();
        process_.device.api().cuMemHostUnregister(area.data());
        staging_.erase(known);
    }
}

bool MemoryImage::is_direct(const std::byte* at, std::uint64_t bytes) const {
    const auto lies_in = [&](std::span<const std::byte> area) {
        return at >= area.data() && bytes <= area.size() &&
               static_cast<std::uint64_t>(at - area.data()) <= area.size() - bytes;
    };
    return lies_in(buffer()) || std::any_of(staging_.begin(), staging_.end(), lies_in);
}

CUresult MemoryImage::copy_out(std::uint64_t address, std::byte* to, std::uint64_t bytes) {
    const driver::DriverApi& api = process_.device.api();
    if (is_direct(to, bytes)) {
        const CUresult queued = api.cuMemcpyDtoHAsync_v2(to, address, bytes, stream_);
        return queued == CUDA_SUCCESS ? api.cuStreamSynchronize(stream_) : queued;
    }
    for (std::uint64_t done = 0; done < bytes;) {
        const std::uint64_t step = std::min(bytes - done, kBatchBlocks * kBlockBytes);
        CUresult result = api.cuMemcpyDtoHAsync_v2(buffer_, address + done, step, stream_);
        if (result == CUDA_SUCCESS) {
            result = api.cuStreamSynchronize(stream_);
        }
        if (result != CUDA_SUCCESS) {
            return result;
        }
        std::memcpy(to + done, buffer_, step);
        done += step;
    }
    return CUDA_SUCCESS;
}

void MemoryImage::write_in_place(std::uint64_t address, const std::byte* from,
                                 std::uint64_t bytes) {
    constexpr std::uint64_t kPieceBytes = 8 * kBlockBytes;
    threads_.run((bytes + kPieceBytes - 1) / kPieceBytes, [&](std::size_t piece) {
        const std::uint64_t at = piece * kPieceBytes;
        const std::uint64_t count = std::min(bytes - at, kPieceBytes);
        auto* to = reinterpret_cast<std::byte*>(address + at);
        if (count >= kBlockBytes && (address + at) % kBlockBytes == 0) {
            // Fresh memory: its pages in one go instead of a fault for each. A hint only.
            madvise(to, count, MADV_POPULATE_WRITE);
        }
        if (from != nullptr) {
            std::memcpy(to, from + at, count);
        } else {
            std::memset(to, 0, count);
        }
    });
}

CUresult MemoryImage::copy_in(std::uint64_t address, const std::byte* from, std::uint64_t bytes) {
    const driver::DriverApi& api = process_.device.api();
    if (process_.device.is_host_addressable()) {
        write_in_place(address, from, bytes);
        return CUDA_SUCCESS;
    }
    if (from == nullptr) {
        writing_ = true;
        return api.cuMemsetD8Async(address, 0, bytes, stream_);
    }
    if (is_direct(from, bytes)) {
        writing_ = true;
        return api.cuMemcpyHtoDAsync_v2(address, from, bytes, stream_);
    }
    for (std::uint64_t done = 0; done < bytes;) {
        const std::uint64_t step = std::min(bytes - done, kBatchBlocks * kBlockBytes);
        std::memcpy(buffer_, from + done, step);
        CUresult result = api.cuMemcpyHtoDAsync_v2(address + done, buffer_, step, stream_);
        if (result == CUDA_SUCCESS) {
            result = api.cuStreamSynchronize(stream_);
        }
        if (result != CUDA_SUCCESS) {
            return result;
        }
        done += step;
    }
    return CUDA_SUCCESS;
}

Result<bool> MemoryImage::read_device(std::uint64_t address, std::span<std::byte> out) {
    const auto hold = process_.memory.device.hold_layout();
    const auto pieces = pieces_of(address, out.size());
    if (pieces.empty()) {
        return false;
    }
    if (bytes_of(pieces) != out.size()) {
        std::memset(out.data(), 0, out.size());
    }
    for (const Piece& piece : pieces) {
        const CUresult result =
            copy_out(piece.lies_at, out.data() + (piece.address - address), piece.bytes);
        if (result != CUDA_SUCCESS) {
            return driver::to_error(
                process_.device.api(), result, "state.read",
                fmt::format("reading {} bytes at {:#x}", piece.bytes, piece.address));
        }
    }
    return true;
}

Result<bool> MemoryImage::read(const BlockRange& range, std::span<std::byte> out) {
    process_.device.bind_thread();
    if (range.space == MemorySpace::kArray) {
        return read_array(range, out);
    }
    if (range.space != MemorySpace::kDevice) {
        return false;
    }
    return read_device(range.first * kBlockBytes, out);
}

Result<void> MemoryImage::check_writable(std::uint64_t address) const {
    if (!arena_is_shared_ || address < wire::kArenaBase ||
        address - wire::kArenaBase >= wire::kArenaBytes) {
        return {};
    }
    return Error{Code::kInvalidArgument, "handover.block",
                 fmt::format("a block at {:#x} came for memory that was handed over", address)};
}

Result<bool> MemoryImage::write_device(std::uint64_t address, std::span<const std::byte> bytes) {
    const std::vector<Piece> pieces = pieces_of(address, kBlockBytes);
    GANTRY_TRY(write_pieces(pieces, address, bytes));
    return !pieces.empty();
}

Result<void> MemoryImage::write_pieces(std::span<const Piece> pieces, std::uint64_t address,
                                       std::span<const std::byte> bytes) {
    for (const Piece& piece : pieces) {
        const std::byte* from = bytes.empty() ? nullptr : bytes.data() + (piece.address - address);
        const CUresult result = copy_in(piece.lies_at, from, piece.bytes);
        if (result != CUDA_SUCCESS) {
            return driver::to_error(
                process_.device.api(), result, "state.write",
                fmt::format("writing {} bytes at {:#x}", piece.bytes, piece.address));
        }
    }
    return {};
}

Result<bool> MemoryImage::write(BlockAddress block, std::span<const std::byte> bytes) {
    process_.device.bind_thread();
    if (!bytes.empty() && bytes.size() != kBlockBytes) {
        return Error{Code::kInvalidArgument, "state.block",
                     fmt::format("a block of {} bytes", bytes.size())};
    }
    if (block.space == MemorySpace::kArray) {
        return write_array(block, bytes);
    }
    if (block.space != MemorySpace::kDevice || block.index > (1ull << 47) / kBlockBytes) {
        return false;
    }
    GANTRY_TRY(check_writable(block.index * kBlockBytes));
    return write_device(block.index * kBlockBytes, bytes);
}

Result<bool> MemoryImage::write_run(BlockAddress first, std::uint64_t count,
                                    std::span<const std::byte> bytes) {
    process_.device.bind_thread();
    if (first.space != MemorySpace::kDevice || first.index > (1ull << 47) / kBlockBytes) {
        return false;
    }
    const std::uint64_t address = first.index * kBlockBytes;
    GANTRY_TRY(check_writable(address));
    const std::vector<Piece> pieces = pieces_of(address, count * kBlockBytes);
    if (bytes_of(pieces) != count * kBlockBytes) {
        return false;
    }
    GANTRY_TRY(write_pieces(pieces, address, bytes));
    return true;
}

Result<void> MemoryImage::pull(std::uint64_t first, std::uint64_t count, CUdeviceptr from) {
    const CUresult result = process_.device.api().cuMemcpyDtoDAsync_v2(
        first * kBlockBytes, from, count * kBlockBytes, stream_);
    writing_ = true;
    if (result != CUDA_SUCCESS) {
        return driver::to_error(process_.device.api(), result, "state.pull",
                                fmt::format("copying {} blocks from another worker", count));
    }
    return {};
}

Result<void> MemoryImage::settle() {
    if (!writing_) {
        return {};
    }
    writing_ = false;
    process_.device.bind_thread();
    const CUresult result = process_.device.api().cuStreamSynchronize(stream_);
    if (result != CUDA_SUCCESS) {
        return driver::to_error(process_.device.api(), result, "state.write",
                                "waiting for blocks to be written");
    }
    return {};
}

std::vector<BlockRange> MemoryImage::whole_in(const BlockRange& range) const {
    std::vector<BlockRange> whole;
    for (const worker::ExtentRecord& extent :
         process_.memory.device.extents_in(range.first * kBlockBytes, range.count * kBlockBytes)) {
        const std::uint64_t first =
            std::max((extent.address.value + kBlockBytes - 1) / kBlockBytes, range.first);
        const std::uint64_t end = std::min((extent.address.value + extent.bytes) / kBlockBytes,
                                           range.first + range.count);
        if (first >= end) {
            continue;
        }
        if (!whole.empty() && whole.back().first + whole.back().count == first) {
            whole.back().count += end - first;
        } else {
            whole.push_back({range.space, first, end - first});
        }
    }
    return whole;  // Ascending, as extents are.
}

bool MemoryImage::are_whole(std::span<const BlockAddress> blocks) const {
    for (std::size_t i = 0; i < blocks.size();) {
        std::size_t run = 1;
        while (i + run < blocks.size() && blocks[i + run].space == blocks[i].space &&
               blocks[i + run].index == blocks[i].index + run) {
            ++run;
        }
        if (blocks[i].space != MemorySpace::kDevice ||
            blocks[i].index + run > (1ull << 47) / kBlockBytes ||
            count_of(whole_in({blocks[i].space, blocks[i].index, run})) != run) {
            return false;
        }
        i += run;
    }
    return true;
}

bool MemoryImage::is_whole(BlockAddress block) const {
    if (block.space != MemorySpace::kDevice) {
        return true;
    }
    return bytes_of(pieces_of(block.index * kBlockBytes, kBlockBytes)) >= kBlockBytes;
}

Result<bool> MemoryImage::read_array(const BlockRange& range, std::span<std::byte> out) {
    const auto hold = process_.memory.device.hold_layout();
    const auto array = worker::find_array(process_, range.first >> 32);
    if (!array) {
        return false;
    }
    std::vector<std::byte> linear(array->linear_bytes);
    if (const CUresult result =
            worker::copy_array(process_, *array, linear, worker::ArrayCopy::kOut, stream_);
        result != CUDA_SUCCESS) {
        return driver::to_error(process_.device.api(), result, "state.array", "reading an array");
    }
    const std::uint64_t offset = (range.first & 0xffffffff) * kBlockBytes;
    std::memset(out.data(), 0, out.size());
    if (offset < linear.size()) {
        std::memcpy(out.data(), linear.data() + offset,
                    std::min<std::uint64_t>(out.size(), linear.size() - offset));
    }
    return true;
}

Result<bool> MemoryImage::write_array(BlockAddress block, std::span<const std::byte> bytes) {
    const auto array = worker::find_array(process_, block.index >> 32);
    if (!array) {
        return false;
    }
    // An array is written as a whole: its other blocks are read back first.
    std::vector<std::byte> linear(array->linear_bytes);
    CUresult result =
        worker::copy_array(process_, *array, linear, worker::ArrayCopy::kOut, stream_);
    const std::uint64_t offset = (block.index & 0xffffffff) * kBlockBytes;
    if (result == CUDA_SUCCESS && offset < linear.size()) {
        const std::uint64_t count = std::min<std::uint64_t>(kBlockBytes, linear.size() - offset);
        if (bytes.empty()) {
            std::memset(linear.data() + offset, 0, count);
        } else {
            std::memcpy(linear.data() + offset, bytes.data(), count);
        }
        result = worker::copy_array(process_, *array, linear, worker::ArrayCopy::kIn, stream_);
    }
    if (result != CUDA_SUCCESS) {
        return driver::to_error(process_.device.api(), result, "state.array", "writing an array");
    }
    return true;
}

}  // namespace gantry::state
