#include "host-daemon/worker/image_loader.h"

#include "host-daemon/worker/log.h"

namespace gantry::worker {
namespace {

using cuda::wire_hand::ImageKind;
using cuda::wire_hand::ImageOption;
using cuda::wire_hand::ImagePart;
using cuda::wire_hand::LoadCall;
using cuda::wire_hand::LoadReply;

constexpr std::uint32_t kWrapperMagic = 0x466243b1;
constexpr std::uint32_t kPrelinkedVersion = 2;
constexpr std::uint32_t kMostOptions = 64;
constexpr std::uint32_t kLogBytesMax = 1u << 20;

/// What the driver finds behind the pointer it is given.
struct Wrapper {
    std::uint32_t magic;
    std::uint32_t version;
    const void* data;
    const void* parts;
};
static_assert(sizeof(Wrapper) == 24);

/// A part must look like what it says, and end inside the image: a driver reads as far as the
/// image's own headers tell it.
bool is_sound(const Image& image, const ImagePart& part) {
    const std::uint64_t size = image.bytes.size();
    if (part.offset % 8 != 0 || part.offset > size || part.bytes > size - part.offset ||
        part.bytes < 16) {
        return false;
    }
    const std::byte* bytes = image.bytes.data() + part.offset;
    std::uint32_t magic = 0;
    std::memcpy(&magic, bytes, sizeof(magic));
    switch (part.kind) {
        case ImageKind::kFatbin: {
            std::uint16_t header_bytes = 0;
            std::uint64_t payload_bytes = 0;
            std::memcpy(&header_bytes, bytes + 6, sizeof(header_bytes));
            std::memcpy(&payload_bytes, bytes + 8, sizeof(payload_bytes));
            return magic == 0xba55ed50 && header_bytes >= 16 && header_bytes <= part.bytes &&
                   payload_bytes <= part.bytes - header_bytes;
        }
        case ImageKind::kElf:
            return magic == 0x464c457f;
        case ImageKind::kPtx:
            return bytes[part.bytes - 1] == std::byte{0};
        default:
            return false;
    }
}

struct DriverImage {
    Wrapper wrapper{};
    std::vector<const void*> parts;
    const void* pointer = nullptr;
};

void describe_to_driver(const LoadedImage& loaded, DriverImage* out) {
    const std::byte* base = loaded.image->bytes.data();
    out->pointer = base + loaded.parts[0].offset;
    if (loaded.parts.size() == 1) {
        return;
    }
    for (std::size_t i = 1; i < loaded.parts.size(); ++i) {
        out->parts.push_back(base + loaded.parts[i].offset);
    }
    out->parts.push_back(nullptr);
    out->wrapper = {kWrapperMagic, kPrelinkedVersion, out->pointer, out->parts.data()};
    out->pointer = &out->wrapper;
}

bool read_load(const LoadCall& load, std::span<const std::byte> trailing, LoadedImage* out) {
    if (load.part_count == 0 || load.part_count > cuda::wire_hand::kMaxImageParts ||
        load.jit_option_count > kMostOptions || load.library_option_count > kMostOptions) {
        return false;
    }
    auto parts = Call::read_array<ImagePart>(trailing, load.part_count);
    auto jit = Call::read_array<ImageOption>(trailing, load.jit_option_count);
    auto library = Call::read_array<ImageOption>(trailing, load.library_option_count);
    if (!parts || !jit || !library) {
        return false;
    }
    out->parts = std::move(*parts);
    out->jit_options = std::move(*jit);
    out->library_options = std::move(*library);
    return true;
}

CUresult hand_to_driver(Call& call, const LoadedImage& loaded, JitOptions& options,
                        std::uint64_t* native) {
    DriverImage image;
    describe_to_driver(loaded, &image);
    if (!loaded.library) {
        CUmodule module = nullptr;
        const CUresult result = call.api().cuModuleLoadDataEx(&module, image.pointer,
                                                              options.count(), options.names(),
                                                              options.values());
        *native = reinterpret_cast<std::uint64_t>(module);
        return result;
    }
    CUlibrary library = nullptr;
    const CUresult result =
        call.api().cuLibraryLoadData(&library, image.pointer, options.names(), options.values(),
                                     options.count(), nullptr, nullptr, 0);
    *native = reinterpret_cast<std::uint64_t>(library);
    return result;
}

}  // namespace

bool is_plain_jit_option(std::uint32_t option) {
    switch (static_cast<CUjit_option>(option)) {
        case CU_JIT_MAX_REGISTERS:
        case CU_JIT_THREADS_PER_BLOCK:
        case CU_JIT_OPTIMIZATION_LEVEL:
        case CU_JIT_TARGET:
        case CU_JIT_FALLBACK_STRATEGY:
        case CU_JIT_GENERATE_DEBUG_INFO:
        case CU_JIT_LOG_VERBOSE:
        case CU_JIT_GENERATE_LINE_INFO:
        case CU_JIT_CACHE_MODE:
        case CU_JIT_POSITION_INDEPENDENT_CODE:
        case CU_JIT_MIN_CTA_PER_SM:
        case CU_JIT_MAX_THREADS_PER_BLOCK:
        case CU_JIT_OVERRIDE_DIRECTIVE_VALUES:
            return true;
        default:
            return false;
    }
}

JitOptions::JitOptions(std::span<const ImageOption> options, std::uint32_t info_log_bytes,
                       std::uint32_t error_log_bytes) {
    for (const ImageOption& option : options) {
        if (is_plain_jit_option(option.option)) {
            add(static_cast<CUjit_option>(option.option),
                reinterpret_cast<void*>(static_cast<std::uintptr_t>(option.value)));
        }
    }
    auto add_log = [this](std::vector<char>& log, std::uint32_t bytes, CUjit_option buffer,
                          CUjit_option size) {
        if (bytes != 0) {
            log.resize(std::min(bytes, kLogBytesMax));
            add(buffer, log.data());
            add(size, reinterpret_cast<void*>(log.size()));
        }
    };
    add_log(info_, info_log_bytes, CU_JIT_INFO_LOG_BUFFER, CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES);
    add_log(error_, error_log_bytes, CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES);
    wall_time_index_ = names_.size();
    if (!names_.empty()) {
        add(CU_JIT_WALL_TIME, nullptr);
    }
}

void JitOptions::add(CUjit_option name, void* value) {
    names_.push_back(name);
    values_.push_back(value);
}

std::string JitOptions::text(const std::vector<char>& log) {
    return {log.data(), strnlen(log.data(), log.size())};
}

float JitOptions::wall_time_ms() const {
    float value = 0.0f;
    if (wall_time_index_ < values_.size()) {
        std::memcpy(&value, &values_[wall_time_index_], sizeof(value));
    }
    return value;
}

CUresult load_image(Call& call, const LoadCall& load, std::span<const std::byte> trailing,
                    HandleKind kind, Reply& reply) {
    GuestProcess& process = call.process();
    LoadedImage loaded;
    loaded.handle = load.handle;
    loaded.library = kind == HandleKind::kLibrary;
    loaded.context = call.header().context;
    auto image = process.images.take(load.image_id, load.image_bytes);
    if (!image.ok() || !read_load(load, trailing, &loaded) ||
        call.reserve(kind, load.handle) != CUDA_SUCCESS) {
        return call.malformed(call.op(), image.ok() ? "parts, options or handle"
                                                    : "the image is not staged");
    }
    loaded.image = std::move(image).value();
    for (const ImagePart& part : loaded.parts) {
        if (!is_sound(*loaded.image, part)) {
            return CUDA_ERROR_INVALID_IMAGE;
        }
    }
    JitOptions options(loaded.jit_options, load.info_log_bytes, load.error_log_bytes);
    std::uint64_t native = 0;
    CUresult result = hand_to_driver(call, loaded, options, &native);
    LoadReply answer{};
    const std::string info = options.info_log();
    const std::string error = options.error_log();
    answer.info_log_bytes = static_cast<std::uint32_t>(info.size());
    answer.error_log_bytes = static_cast<std::uint32_t>(error.size());
    answer.trailing_bytes = answer.info_log_bytes + answer.error_log_bytes;
    answer.wall_time_ms = options.wall_time_ms();
    reply.put(answer);
    reply.trailing(std::as_bytes(std::span(info)));
    reply.trailing(std::as_bytes(std::span(error)));
    if (result == CUDA_SUCCESS) {
        result = call.add_object(load.handle, native);
        process.modules.add(std::move(loaded));
        // Where the driver alone picks addresses, a library's variables are loaded at once: in the
        // order of loads, which a restore repeats, not in that of the questions for them.
        if (kind == HandleKind::kModule || process.device.extension() == nullptr) {
            process.learn_variables(load.handle);
        }
    }
    return result;
}

}  // namespace gantry::worker
