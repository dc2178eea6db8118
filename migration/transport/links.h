// How one gantryd reaches another, as interfaces: nothing of gRPC is needed to use them.
//
// A migration's target opens everything: a stream of engine messages and several bulk streams.
// send() on either side is thread-safe, does not block long and may drop: the engine's machines
// repeat what was not answered. Handlers run on threads of the link; they may call send().
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "migration/engine/messages.h"
#include "migration/engine/needs.h"
#include "proto/base/result.h"
#include "proto/control/gantryd.pb.h"

namespace gantry::transport {

/// Raised when a change of the peer service would be misread by an older release.
inline constexpr std::uint32_t kPeerProtocolVersion = 1;

/// The source's way to answer a target.
class MessageLink {
public:
    virtual ~MessageLink() = default;
    virtual void send(const engine::Message& message) = 0;
};

struct TargetLinkHandlers {
    std::function<void(engine::Message)> message;
    /// One batch of a bulk stream; success lets the link acknowledge it.
    std::function<Result<void>(const control::BulkDown&)> batch;
    std::function<void(const Error&)> bulk_lost;
    /// The source could not be reached, or refused us for good (versions, certificates).
    std::function<void(const Error&)> failed;
};

/// The target's connection to the source, kept up (dialled again and again) until destroyed.
class TargetLink {
public:
    virtual ~TargetLink() = default;
    virtual void send(const engine::Message& message) = 0;
    /// Opens the bulk streams of this migration; a second call for another one replaces them.
    virtual void open_bulk(engine::MigrationId migration, int stream_count) = 0;
};

}  // namespace gantry::transport
