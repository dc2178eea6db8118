// The driver's linker: inputs are staged like images, the linked image goes back in pieces.
#include "host-daemon/execution/dispatch/handlers.h"

#include <algorithm>

#include "proto/cuda/gen/worker_dispatch.h"

namespace gantry::worker {
namespace {

using cuda::wire_hand::ImageOption;
using cuda::wire_hand::LinkReply;

constexpr std::uint32_t kMostOptions = 64;
constexpr std::uint32_t kNameBytesMax = 4096;

void answer_logs(const Link& link, Reply& reply) GANTRY_REQUIRES(link.mutex) {
    std::string logs;
    LinkReply answer{};
    answer.logs = link.jit().logs(&logs);
    answer.trailing_bytes = static_cast<std::uint32_t>(logs.size());
    reply.put(answer);
    reply.trailing(std::as_bytes(std::span(logs)));
}

bool has_linker(const driver::DriverApi& api) {
    return api.cuLinkCreate_v2 != nullptr && api.cuLinkAddData_v2 != nullptr &&
           api.cuLinkComplete != nullptr && api.cuLinkDestroy != nullptr;
}

}  // namespace

CUresult on_cuLinkCreate_v2(CallContext& context, const wire::cuLinkCreate_v2_call& create,
                            std::span<const std::byte> trailing, Reply&) {
    Call& call = as_call(context);
    if (!has_linker(call.api())) {
        return call.unsupported(call.op());
    }
    auto options = create.option_count <= kMostOptions
                       ? Call::read_array<ImageOption>(trailing, create.option_count)
                       : std::nullopt;
    if (!options) {
        return call.malformed(call.op(), "options longer than the command");
    }
    CUresult result = call.reserve(HandleKind::kLinkState, create.link);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    const auto link = std::make_shared<Link>(call.process().device, std::move(*options),
                                             create.info_log_bytes, create.error_log_bytes);
    const MutexLock lock(link->mutex);
    result = link->create();
    if (result == CUDA_SUCCESS) {
        result = call.add_object(create.link, reinterpret_cast<std::uint64_t>(link->state()));
    }
    if (result == CUDA_SUCCESS) {
        call.process().code.links.add(create.link, link);
    }
    return result;
}

CUresult on_cuLinkAddData_v2(CallContext& context, const wire::cuLinkAddData_v2_call& add,
                             std::span<const std::byte> trailing, Reply& reply) {
    Call& call = as_call(context);
    const LinkPtr link = call.process().code.links.find(add.link);
    auto image =
        call.process().code.images.take(add.image_id, gantry::wire::align_up(add.image_bytes, 8));
    if (link == nullptr) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    const std::uint64_t padded = gantry::wire::align_up(std::uint64_t{add.name_bytes}, 8);
    if (!image.ok() || add.name_bytes > kNameBytesMax || padded > trailing.size() ||
        add.option_count > kMostOptions) {
        return call.malformed(call.op(),
                              image.ok() ? "name or options" : "the input is not staged");
    }
    Link::Input input;
    input.type = add.input_type;
    input.name.assign(reinterpret_cast<const char*>(trailing.data()), add.name_bytes);
    std::span<const std::byte> rest = trailing.subspan(padded);
    auto options = Call::read_array<ImageOption>(rest, add.option_count);
    if (!options) {
        return call.malformed(call.op(), "options longer than the command");
    }
    input.options = std::move(*options);
    input.image = std::move(image).value();
    input.bytes = add.image_bytes;
    const MutexLock lock(link->mutex);
    const CUresult result = link->add(std::move(input));
    answer_logs(*link, reply);
    return result;
}

CUresult on_cuLinkComplete(CallContext& context, const wire::cuLinkComplete_call& complete,
                           std::span<const std::byte>, Reply& reply) {
    Call& call = as_call(context);
    const LinkPtr link = call.process().code.links.find(complete.link);
    if (link == nullptr) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    const MutexLock lock(link->mutex);
    if (complete.offset == cuda::wire_hand::kLinkLogs) {
        answer_logs(*link, reply);
        return CUDA_SUCCESS;
    }
    if (const CUresult result = link->complete(); result != CUDA_SUCCESS) {
        reply.put(LinkReply{});
        return result;
    }
    const auto& cubin = link->cubin();
    if (complete.offset > cubin.size()) {
        return call.malformed(call.op(), "an offset behind the end");
    }
    std::uint64_t bulk_offset = 0;
    const std::size_t room =
        std::max<std::size_t>(call.offered_bulk(&bulk_offset).size(),
                              gantry::wire::kReplyInlineBytes - sizeof(LinkReply));
    const auto piece = std::span(cubin).subspan(
        complete.offset, std::min<std::uint64_t>(room, cubin.size() - complete.offset));
    LinkReply answer{};
    answer.trailing_bytes = static_cast<std::uint32_t>(piece.size());
    answer.cubin_bytes = cubin.size();
    reply.put(answer);
    reply.trailing(piece);
    return CUDA_SUCCESS;
}

}  // namespace gantry::worker
