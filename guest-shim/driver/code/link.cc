// The linker. Inputs are staged like images; the linked cubin is fetched when it is complete and
// stays valid until the link state is destroyed.
#include <cstdlib>
#include <cstring>

#include "guest-shim/driver/code/code.h"
#include "guest-shim/driver/code/image.h"
#include "guest-shim/driver/code/jit_options.h"
#include "guest-shim/driver/core/call_rules.h"
#include "proto/cuda/gen/impl.h"
#include "proto/cuda/gen/wire_structs.h"
#include "proto/cuda/refuse_if.h"

namespace gantry::shim {
namespace {

using cuda::wire_hand::ImageKind;
using cuda::wire_hand::ImageOption;
using cuda::wire_hand::LinkReply;

constexpr std::uint32_t kFetchBytes = 256u << 10;

struct Link {
    std::uint64_t handle;
    JitOptions* options;  ///< The application's: logs go back into its buffers at every step.
    std::byte* cubin;
};

constinit SlotTable<Link> g_links;

Link* find_link(CUlinkState state) { return g_links.find(bits(state)); }

void destroy(Link* link) {
    std::free(link->options);
    std::free(link->cubin);
    g_links.destroy(link->handle);
}

JitOptions* new_options() {
    void* memory = std::malloc(sizeof(JitOptions));
    return memory == nullptr ? nullptr : new (memory) JitOptions;
}

/// The name, padded to 8, then the options: LinkAddCall's trailing bytes; malloc'ed.
std::byte* pack_input(const char* name, std::uint32_t name_bytes, const JitOptions& options,
                      std::uint32_t* bytes) {
    const std::uint32_t padded = (name_bytes + 7) / 8 * 8;
    const auto rest = static_cast<std::uint32_t>(options.sent_count() * sizeof(ImageOption));
    auto* packed = static_cast<std::byte*>(std::calloc(1, padded + rest + 1));
    if (packed != nullptr) {
        std::memcpy(packed, name, name_bytes);
        std::memcpy(packed + padded, options.sent(), rest);
    }
    *bytes = padded + rest;
    return packed;
}

CUresult add_input(Link* link, CUjitInputType type, const void* data, std::uint64_t bytes,
                   const char* name, const JitOptions& options) {
    ImageList list;
    CUresult result = add_sized(data, bytes, ImageKind::kElf, &list);
    cuda::wire_hand::LinkAddCall arguments{};
    result = result != CUDA_SUCCESS ? result : stage(list, &arguments.image_id);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    arguments.link = link->handle;
    arguments.image_bytes = bytes;
    arguments.input_type = static_cast<std::uint32_t>(type);
    arguments.name_bytes = name != nullptr ? static_cast<std::uint32_t>(std::strlen(name)) : 0;
    arguments.option_count = options.sent_count();
    std::uint32_t trailing_bytes = 0;
    std::byte* trailing = pack_input(name, arguments.name_bytes, options, &trailing_bytes);
    const std::uint32_t capacity = link->options->info_capacity() + link->options->error_capacity();
    auto* logs = static_cast<char*>(std::calloc(1, capacity + 1));
    result = CUDA_ERROR_OUT_OF_MEMORY;
    if (trailing != nullptr && logs != nullptr) {
        LinkReply reply{};
        std::uint32_t got = 0;
        result = session::call(cuda::Op::cuLinkAddData_v2, &arguments, sizeof(arguments), trailing,
                               trailing_bytes, &reply, sizeof(reply), logs, capacity, &got);
        link->options->put_back(reply.logs, logs, got);
    }
    std::free(trailing);
    std::free(logs);
    return result;
}

/// One piece of the cubin; the first tells how large it is.
CUresult fetch(Link* link, std::uint64_t offset, std::byte* piece, LinkReply* reply,
               std::uint32_t* got) {
    const cuda::wire_hand::LinkCompleteCall arguments{link->handle, offset};
    return session::call(cuda::Op::cuLinkComplete, &arguments, sizeof(arguments), nullptr, 0, reply,
                         sizeof(*reply), piece, kFetchBytes, got);
}

CUresult fetch_cubin(Link* link, std::byte* piece, std::uint64_t* bytes) {
    LinkReply reply{};
    std::uint32_t got = 0;
    CUresult result = fetch(link, 0, piece, &reply, &got);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    *bytes = reply.cubin_bytes;
    std::free(link->cubin);
    link->cubin = static_cast<std::byte*>(std::malloc(*bytes + 1));
    std::uint64_t have = 0;
    while (link->cubin != nullptr && result == CUDA_SUCCESS) {
        GANTRY_REFUSE_IF(got == 0 || got > *bytes - have, CUDA_ERROR_UNKNOWN);
        std::memcpy(link->cubin + have, piece, got);
        have += got;
        if (have == *bytes) {
            return CUDA_SUCCESS;
        }
        result = fetch(link, have, piece, &reply, &got);
    }
    return link->cubin == nullptr ? CUDA_ERROR_OUT_OF_MEMORY : result;
}

/// What the linker has said so far, into the application's buffers.
void fetch_logs(Link* link) {
    JitOptions* options = link->options;
    if (!options->has_outputs()) {
        return;
    }
    const std::uint32_t capacity = options->info_capacity() + options->error_capacity();
    auto* logs = static_cast<char*>(std::calloc(1, capacity + 1));
    const cuda::wire_hand::LinkCompleteCall arguments{link->handle, cuda::wire_hand::kLinkLogs};
    LinkReply reply{};
    std::uint32_t got = 0;
    if (logs != nullptr &&
        session::call(cuda::Op::cuLinkComplete, &arguments, sizeof(arguments), nullptr, 0, &reply,
                      sizeof(reply), logs, capacity, &got) == CUDA_SUCCESS) {
        options->put_back(reply.logs, logs, got);
    }
    std::free(logs);
}

}  // namespace
}  // namespace gantry::shim

namespace gantry::shim::rules {

CUresult live_link(CUlinkState state) noexcept {
    return find_link(state) != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult link_ended(CUresult result, CUlinkState state) noexcept {
    if (Link* link = find_link(state); link != nullptr) {
        destroy(link);
    }
    return result;
}

}  // namespace gantry::shim::rules

namespace gantry::cuda_impl {

using namespace gantry::shim;

CUresult cuLinkCreate_v2(unsigned int numOptions, CUjit_option* options, void** optionValues,
                         CUlinkState* stateOut) noexcept {
    GANTRY_REFUSE_IF(stateOut == nullptr, CUDA_ERROR_INVALID_VALUE);
    std::uint64_t handle = 0;
    Link* link = g_links.create(HandleKind::kLinkState, &handle);
    JitOptions* kept = new_options();
    GANTRY_REFUSE_IF(link == nullptr || kept == nullptr, CUDA_ERROR_OUT_OF_MEMORY);
    *link = Link{handle, kept, nullptr};
    CUresult result = kept->read(numOptions, options, optionValues);
    if (result == CUDA_SUCCESS) {
        const cuda::wire_hand::LinkCreateCall arguments{
            handle, kept->sent_count(), kept->info_capacity(), kept->error_capacity(), 0};
        result =
            session::call(cuda::Op::cuLinkCreate_v2, &arguments, sizeof(arguments), kept->sent(),
                          static_cast<std::uint32_t>(kept->sent_count() * sizeof(ImageOption)),
                          nullptr, 0, nullptr, 0, nullptr);
    }
    if (result != CUDA_SUCCESS) {
        destroy(link);
        return result;
    }
    *stateOut = reinterpret_cast<CUlinkState>(handle);
    return CUDA_SUCCESS;
}

CUresult cuLinkAddData_v2(CUlinkState state, CUjitInputType type, void* data, size_t size,
                          const char* name, unsigned int numOptions, CUjit_option* options,
                          void** optionValues) noexcept {
    Link* link = find_link(state);
    GANTRY_REFUSE_IF(link == nullptr, CUDA_ERROR_INVALID_HANDLE);
    JitOptions extra;
    const CUresult result = extra.read(numOptions, options, optionValues);
    return result != CUDA_SUCCESS ? result : add_input(link, type, data, size, name, extra);
}

CUresult cuLinkAddFile_v2(CUlinkState state, CUjitInputType type, const char* path,
                          unsigned int numOptions, CUjit_option* options,
                          void** optionValues) noexcept {
    char* bytes = nullptr;
    std::size_t count = 0;
    if (const CUresult result = read_file(path, &bytes, &count); result != CUDA_SUCCESS) {
        return result;
    }
    // Text inputs count their NUL, as cuLinkAddData's callers do.
    const std::size_t size = type == CU_JIT_INPUT_PTX ? count + 1 : count;
    const CUresult result =
        cuLinkAddData_v2(state, type, bytes, size, path, numOptions, options, optionValues);
    std::free(bytes);
    return result;
}

CUresult cuLinkComplete(CUlinkState state, void** cubinOut, size_t* sizeOut) noexcept {
    Link* link = find_link(state);
    if (link == nullptr || cubinOut == nullptr) {
        return link == nullptr ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
    }
    auto* piece = static_cast<std::byte*>(std::malloc(kFetchBytes));
    GANTRY_REFUSE_IF(piece == nullptr, CUDA_ERROR_OUT_OF_MEMORY);
    std::uint64_t bytes = 0;
    const CUresult result = fetch_cubin(link, piece, &bytes);
    std::free(piece);
    fetch_logs(link);
    if (result == CUDA_SUCCESS) {
        *cubinOut = link->cubin;
        if (sizeOut != nullptr) {
            *sizeOut = bytes;
        }
    }
    return result;
}

}  // namespace gantry::cuda_impl
